"""Facts about the source that the preflight check judges: queries and plain values, no judgement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import SourceBusy, UpdatesRefused, Wal2LakeError
from ..quoting import dollar_quoted, regclass
from ..quoting import identifier as quoted
from ..schema import Identity, TableId, TableSchema
from .connect import Connection, explained, query
from .locking import wait_briefly


def over_unix_socket(conn: Connection) -> bool:
    """Whether libpq, with its defaults and the environment, came by a socket and not over TCP."""
    return not conn.info.host or conn.info.host.startswith(("/", "@"))


@dataclass(frozen=True)
class HeapFacts:
    """One table that will be published: a wanted table, or a leaf of a partitioned one."""

    root: TableId
    """the wanted table"""
    id: TableId
    kind: str
    """pg_class.relkind"""
    persistence: str
    """pg_class.relpersistence"""
    schema_usable: bool
    readable: bool
    root_schema_usable: bool
    root_readable: bool
    """whether the wanted table itself can be read, and so be locked while it is copied"""
    owned: bool
    """whether the root is the role's, or of one that it is a member of"""
    owner: str
    owner_superuser: bool
    row_security: bool
    """policies hide rows from the role"""
    bytes: int
    """of rows and TOAST, perhaps by statistics only"""

    @property
    def sql_name(self) -> str:
        return quoted(self.id.schema, self.id.name)

    @property
    def sql_root(self) -> str:
        return quoted(self.root.schema, self.root.name)


def measured_heaps(conn: Connection, oids: Collection[int]) -> tuple[HeapFacts, ...]:
    """The same with the sizes of files, unless somebody has a table locked: then as far as statistics tell."""
    try:
        with conn.transaction():
            wait_briefly(conn)
            return heap_facts(conn, oids, measured=True)
    except SourceBusy:
        return heap_facts(conn, oids)


def heap_facts(conn: Connection, oids: Collection[int], measured: bool = False) -> tuple[HeapFacts, ...]:
    """What will be published for the tables with these oids; waits for no lock, unless files are to be measured."""
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
    """Something that wal2lake has made in the source database."""

    kind: str
    """as SQL calls it"""
    name: tuple[str, ...]
    owner: str
    owned: bool


def own_objects(conn: Connection, publications: Sequence[str]) -> tuple[OwnObject, ...]:
    """Publications of these names, the schema of the state store, and its tables."""
    with explained("reading", "the publications"):
        rows = conn.execute(query("our_objects"), {"publications": list(publications)}).fetchall()
    return tuple(OwnObject(kind, tuple(name), owner, owned) for kind, name, owner, owned in rows)


def unreadable(conn: Connection, oid: int) -> tuple[TableId, str] | None:
    """The first part of a table that the role can't read whole, with SQL that lets it; None if it can read all."""
    role = conn.info.user
    for heap in heap_facts(conn, [oid]):
        if grants := read_grants(heap, quoted(role)):
            return heap.id, " ".join(grants.values())
        if heap.row_security:
            return heap.id, f"ALTER ROLE {quoted(role)} BYPASSRLS;"
    return None


def read_grants(heap: HeapFacts, role: str) -> dict[str, str]:
    """What is to be granted so that a table can be copied, by the name of the object. `role` is quoted."""
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
    identity: Identity
    primary_key: bool | None
    """whether it is a valid and immediate one; None: there is none"""
    unidentified: bool
    filtered_by: Sequence[str]
    """columns that its row filter looks at outside of its replica identity"""
    listed: bool
    """whether it has a list of columns, which replica identity FULL allows not even if it has all"""
    key: Sequence[str] = ()
    """the columns of its replica identity"""

    @property
    def why(self) -> str:
        if not self.unidentified:
            if self.identity is Identity.FULL:
                return "it has a list of columns, and its replica identity FULL allows none"
            return f"its row filter looks at {', '.join(self.filtered_by)}, which is not in its replica identity"
        if self.identity is Identity.NOTHING:
            return "its replica identity is NOTHING"
        if self.identity is Identity.INDEX:
            return "the index of its replica identity is gone or invalid"
        return "its primary key is deferrable or invalid" if self.primary_key is False else "it has no primary key"

    @property
    def fix(self) -> str:
        name = quoted(self.id.schema, self.id.name)
        if self.filtered_by and self.listed:
            return index_fix(self.id, [*self.key, *self.filtered_by])
        default = self.identity is Identity.FULL or (self.primary_key and self.unidentified)
        return f"ALTER TABLE {name} REPLICA IDENTITY {'DEFAULT' if default else 'FULL'};"


def index_fix(table: TableId, columns: Sequence[str]) -> str:
    """SQL that makes some columns a table's replica identity. They have to be NOT NULL."""
    index, name = quoted(f"{table.name}_filter"), quoted(table.schema, table.name)
    listed = ", ".join(map(quoted, columns))
    return f"CREATE UNIQUE INDEX {index} ON {name} ({listed}); ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index};"


def refused_heaps(
    conn: Connection, oids: Iterable[int], publication: str | None = None
) -> dict[int, list[RefusedHeap]]:
    """For each table, those of its heaps on which updates and deletes are refused once it is published.

    Row filters and column lists are those that a publication has.
    """
    found: defaultdict[int, list[RefusedHeap]] = defaultdict(list)
    with explained("reading", "the replica identities of the tables"):
        rows = conn.execute(query("refused_updates"), {"oids": list(oids), "publication": publication}).fetchall()
    for root, schema, name, identity, *rest in rows:
        found[root].append(RefusedHeap(TableId(schema, name), Identity(identity), *rest))
    return dict(found)


def updates_refused(
    conn: Connection, tables: Mapping[int, TableId], publication: str | None = None
) -> dict[int, Wal2LakeError]:
    """The tables that must not be published, because the application's updates would fail, with what helps."""
    return {
        oid: UpdatesRefused(table=str(tables[oid]), cause=_cause(tables[oid], heaps), fix=fix_of(tables[oid], heaps))
        for oid, heaps in refused_heaps(conn, tables, publication).items()
    }


def _cause(table: TableId, heaps: Sequence[RefusedHeap]) -> str:
    first = heaps[0]
    return first.why if first.id == table else f"of its partition {first.id}, {first.why}"


def identity_fix(schema: TableSchema) -> str:
    """SQL that gives a table without a key a replica identity, and its partitions if it has some."""
    name = quoted(schema.id.schema, schema.id.name)
    return _of_leaves(schema.id) if schema.partitioned else f"ALTER TABLE {name} REPLICA IDENTITY FULL;"


def fix_of(table: TableId, heaps: Sequence[RefusedHeap]) -> str:
    """SQL after which it can be published."""
    if len(heaps) <= _MANY_LEAVES:
        return " ".join(heap.fix for heap in heaps)
    return _of_leaves(table)


def full_rows(table: TableId, leaves: Sequence[TableId]) -> str:
    """SQL after which PostgreSQL sends old rows of partitions whole."""
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
    """Updated and deleted rows that the statistics have counted, for each table by its heaps."""
    found: dict[int, dict[int, int]] = {oid: {} for oid in oids}
    with explained("reading", "the statistics of the tables"):
        for root, heap, changes in conn.execute(query("changes_counted"), {"oids": list(found)}):
            found[root][heap] = changes
    return found
