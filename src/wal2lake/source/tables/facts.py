"""Facts about the source for the preflight check: queries and plain values, no judgement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import SourceBusy, UpdatesRefused, Wal2LakeError
from ...quoting import dollar_quoted, regclass
from ...quoting import identifier as quoted
from ...schema import ReplicaIdentity, TableId, TableSchema
from ..sessions.connect import Connection, explained, query
from ..sessions.locking import wait_briefly


def over_unix_socket(conn: Connection) -> bool:
    """Whether libpq, with its defaults and the environment, connected over a Unix socket."""
    return not conn.info.host or conn.info.host.startswith(("/", "@"))


@dataclass(frozen=True)
class HeapFacts:
    """One table that will be published: a mirrored table, or a leaf of a partitioned one."""

    root: TableId
    """the mirrored table"""
    id: TableId
    kind: str
    """pg_class.relkind"""
    persistence: str
    """pg_class.relpersistence"""
    schema_usable: bool
    readable: bool
    root_schema_usable: bool
    root_readable: bool
    """whether the mirrored table can be read, and so be locked while it is copied"""
    owned: bool
    """whether the role owns the root, or is a member of its owner"""
    owner: str
    owner_superuser: bool
    row_security: bool
    """whether policies hide rows from the role"""
    bytes: int
    """of rows and TOAST; possibly from statistics"""

    @property
    def sql_name(self) -> str:
        return quoted(self.id.schema, self.id.name)

    @property
    def sql_root(self) -> str:
        return quoted(self.root.schema, self.root.name)


def measured_heaps(conn: Connection, oids: Collection[int]) -> tuple[HeapFacts, ...]:
    """The same with file sizes, unless a table is locked: then from statistics."""
    try:
        with conn.transaction():
            wait_briefly(conn)
            return heap_facts(conn, oids, measured=True)
    except SourceBusy:
        return heap_facts(conn, oids)


def heap_facts(conn: Connection, oids: Collection[int], measured: bool = False) -> tuple[HeapFacts, ...]:
    """Facts about everything that is published for these tables; waits for locks only if `measured`."""
    with explained("reading", "the privileges and keys of the tables"):
        rows = conn.execute(query("published_heaps"), {"oids": list(oids), "measured": measured}).fetchall()
    return tuple(
        HeapFacts(
            root=TableId(root_schema, root), id=TableId(schema, name), kind=kind, persistence=persistence,
            schema_usable=usable, readable=readable, root_schema_usable=root_usable, root_readable=root_readable,
            owned=owned, owner=owner, owner_superuser=superuser, row_security=row_security, bytes=size,
        )
        for (root_schema, root, schema, name, kind, persistence, usable, readable, root_usable, root_readable,
             owned, owner, superuser, row_security, size) in rows
    )  # fmt: skip


@dataclass(frozen=True)
class OwnObject:
    """An object that wal2lake made in the source database."""

    kind: str
    """the SQL keyword"""
    name: tuple[str, ...]
    owner: str
    owned: bool


def own_objects(conn: Connection, publications: Sequence[str]) -> tuple[OwnObject, ...]:
    """The publications with these names, the schema of the state store, and its tables."""
    with explained("reading", "the publications"):
        rows = conn.execute(query("our_objects"), {"publications": list(publications)}).fetchall()
    return tuple(OwnObject(kind, tuple(name), owner, owned) for kind, name, owner, owned in rows)


def unreadable(conn: Connection, oid: int) -> tuple[TableId, str] | None:
    """The first part of a table that the role can't read completely, with SQL that grants it; None if there is none."""
    role = conn.info.user
    for heap in heap_facts(conn, [oid]):
        if grants := read_grants(heap, quoted(role)):
            return heap.id, " ".join(grants.values())
        if heap.row_security:
            return heap.id, f"ALTER ROLE {quoted(role)} BYPASSRLS;"
    return None


def read_grants(heap: HeapFacts, role: str) -> dict[str, str]:
    """The grants that a copy of a table needs, by the name of the object. `role` is quoted."""
    missing: dict[str, str] = {}
    for id, usable, readable in (
        (heap.root, heap.root_schema_usable, heap.root_readable),
        (heap.id, heap.schema_usable, heap.readable),
    ):
        if not usable:
            missing[f"schema {quoted(id.schema)}"] = f"GRANT USAGE ON SCHEMA {quoted(id.schema)} TO {role};"
        if not readable:
            missing[str(id)] = f"GRANT SELECT ON {quoted(id.schema, id.name)} TO {role};"
    return missing


@dataclass(frozen=True)
class UnreadableLater:
    """An owner of partitioned tables in a schema: the role would lack a privilege on partitions that it adds there."""

    schema: str
    owner: str
    table: TableId
    """one of the tables"""
    privilege: str = "SELECT"


def unreadable_later(
    conn: Connection, oids: Collection[int], privileges: Sequence[str] = ("SELECT",)
) -> tuple[UnreadableLater, ...]:
    """Where default privileges are missing for the partitions of tables."""
    found = []
    for privilege in privileges:
        with explained("reading", "the default privileges"):
            rows = conn.execute(query("default_grants"), {"oids": list(oids), "privilege": privilege}).fetchall()
        found += [UnreadableLater(schema, owner, TableId(schema, name), privilege) for schema, owner, name in rows]
    return tuple(found)


INHERIT_OPTION_SINCE = 160000
_MANY_LEAVES = 3


def owner_remedy(role: str, table: TableId, owner: str, superuser: bool, inherits: bool, version: int) -> str:
    """SQL that gives a role the rights of a table's owner, without making it a superuser."""
    if superuser:
        return f"ALTER TABLE {quoted(table.schema, table.name)} OWNER TO {quoted(role)};"
    if inherits:
        return f"GRANT {quoted(owner)} TO {quoted(role)};"
    if version >= INHERIT_OPTION_SINCE:
        return f"GRANT {quoted(owner)} TO {quoted(role)} WITH INHERIT TRUE;"
    return f"GRANT {quoted(owner)} TO {quoted(role)}; ALTER ROLE {quoted(role)} INHERIT;"


@dataclass(frozen=True)
class RefusedHeap:
    """A heap on which PostgreSQL refuses UPDATE and DELETE while it is published."""

    id: TableId
    identity: ReplicaIdentity
    primary_key: bool | None
    """whether the primary key is valid and immediate; None: there is none"""
    unidentified: bool
    filtered_by: Sequence[str]
    """columns of its row filter that are not in its replica identity"""
    listed: bool
    """whether it has a column list, which replica identity FULL does not allow, even with all columns"""
    key: Sequence[str] = ()
    """the columns of its replica identity"""
    owned: bool = False
    """whether the role may change that"""

    @property
    def why(self) -> str:
        if not self.unidentified:
            if self.identity is ReplicaIdentity.FULL:
                return "it has a column list, which replica identity FULL does not allow"
            return f"its row filter uses {', '.join(self.filtered_by)}, which is not in its replica identity"
        if self.identity is ReplicaIdentity.NOTHING:
            return "its replica identity is NOTHING"
        if self.identity is ReplicaIdentity.INDEX:
            return "the index of its replica identity does not exist or is invalid"
        return "its primary key is deferrable or invalid" if self.primary_key is False else "it has no primary key"

    @property
    def fix(self) -> str:
        name = quoted(self.id.schema, self.id.name)
        if self.filtered_by and self.listed:
            return index_fix(self.id, [*self.key, *self.filtered_by])
        return f"ALTER TABLE {name} REPLICA IDENTITY {self.needs};"

    @property
    def needs(self) -> str:
        """The replica identity that it needs, unless it has a row filter and a column list."""
        default = self.identity is ReplicaIdentity.FULL or (self.primary_key and self.unidentified)
        return "DEFAULT" if default else "FULL"


def index_fix(table: TableId, columns: Sequence[str]) -> str:
    """SQL that makes some columns a table's replica identity. They must be NOT NULL."""
    index, name = quoted(f"{table.name}_filter"), quoted(table.schema, table.name)
    listed = ", ".join(map(quoted, columns))
    return f"CREATE UNIQUE INDEX {index} ON {name} ({listed}); ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index};"


def refused_heaps(
    conn: Connection, oids: Iterable[int], publication: str | None = None
) -> dict[int, list[RefusedHeap]]:
    """For each table, its heaps on which updates and deletes are refused once it is published.

    Row filters and column lists are those of a publication.
    """
    found: defaultdict[int, list[RefusedHeap]] = defaultdict(list)
    with explained("reading", "the replica identities of the tables"):
        rows = conn.execute(query("refused_updates"), {"oids": list(oids), "publication": publication}).fetchall()
    for root, schema, name, identity, *rest in rows:
        found[root].append(RefusedHeap(TableId(schema, name), ReplicaIdentity(identity), *rest))
    return dict(found)


def updates_refused(
    conn: Connection, tables: Mapping[int, TableId], publication: str | None = None
) -> dict[int, Wal2LakeError]:
    """Tables that must not be published because updates of the application would fail, with the remedy."""
    return {
        oid: UpdatesRefused(table=str(tables[oid]), cause=_cause(tables[oid], heaps), fix=fix_of(tables[oid], heaps))
        for oid, heaps in refused_heaps(conn, tables, publication).items()
    }


def _cause(table: TableId, heaps: Sequence[RefusedHeap]) -> str:
    first = heaps[0]
    return first.why if first.id == table else f"of its partition {first.id}, {first.why}"


def identity_fix(schema: TableSchema) -> str:
    """SQL that gives a table without a key, and its partitions, a replica identity."""
    name = quoted(schema.id.schema, schema.id.name)
    return _of_leaves(schema.id) if schema.partitioned else f"ALTER TABLE {name} REPLICA IDENTITY FULL;"


def fix_of(table: TableId, heaps: Sequence[RefusedHeap]) -> str:
    """SQL that makes it publishable."""
    if len(heaps) <= _MANY_LEAVES:
        return " ".join(heap.fix for heap in heaps)
    return _of_leaves(table)


def full_rows(table: TableId, leaves: Sequence[TableId]) -> str:
    """SQL that makes PostgreSQL log old rows of partitions completely."""
    if len(leaves) <= _MANY_LEAVES:
        return " ".join(f"ALTER TABLE {quoted(leaf.schema, leaf.name)} REPLICA IDENTITY FULL;" for leaf in leaves)
    return _of_leaves(table)


def _of_leaves(table: TableId) -> str:
    root = regclass(table.schema, table.name)
    leaves = f"SELECT relid FROM pg_partition_tree({root}) WHERE isleaf"  # noqa: S608 - the name is quoted
    change = "EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', leaf);"
    body = f"DECLARE leaf regclass; BEGIN FOR leaf IN {leaves} LOOP {change} END LOOP; END"
    return f"DO {dollar_quoted(body)};"


def changes_counted(conn: Connection, oids: Iterable[int]) -> dict[int, dict[int, int]]:
    """Updated and deleted rows in the statistics, for each table by heap."""
    found: dict[int, dict[int, int]] = {oid: {} for oid in oids}
    with explained("reading", "the statistics of the tables"):
        for root, heap, changes in conn.execute(query("changes_counted"), {"oids": list(found)}):
            found[root][heap] = changes
    return found
