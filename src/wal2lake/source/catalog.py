"""What the source's catalog says of tables: their columns, keys, types, partitions and sizes.

Keys are found by name. A table's schema is described as the stream will send it, so that copy and stream agree:
generated columns are in it only where the server publishes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ..config import TableConfig, settings_of
from ..errors import ConfigError, PartitionForeign, PartitionUnlogged, SourceBusy, TableError
from ..pgtypes import (
    STRING,
    LakeType,
    Masking,
    PgType,
    delimiter,
    lake_type,
    masked,
    override_allowed,
)
from ..quoting import identifier
from ..schema import Bounds, Column, HeapFile, Identity, Membership, TableId, TableSchema
from . import identity, selection, typefacts
from .connect import Connection, explained, query
from .locking import wait_briefly
from .selection import Named, Selection
from .typefacts import TypeFacts

GENERATED_PUBLISHED_SINCE = 180000


@dataclass(frozen=True)
class CatalogColumn:
    """A column as pg_attribute has it."""

    name: str
    type_oid: int
    typmod: int
    dims: int
    not_null: bool
    generated: str
    type_name: str
    attnum: int
    missing: str | None

    def published(self, server_version: int) -> bool:
        """Whether a publication can send it."""
        return not self.generated or (self.generated == "s" and server_version >= GENERATED_PUBLISHED_SINCE)


@dataclass(frozen=True)
class CatalogTable:
    """A table as pg_class and pg_index have it."""

    oid: int
    id: TableId
    relkind: str
    identity: Identity
    primary_key: tuple[str, ...]
    """empty where it is deferrable or not valid yet"""
    identity_key: tuple[str, ...]
    root: int
    attributes: int
    """the highest number that a column of it has, or had"""
    above: tuple[TableId, ...]
    """the tables that it is a partition of, the nearest first"""
    key_index: int
    """oid of the primary key's index; 0: there is none"""
    partition_columns: tuple[str | None, ...]
    """what decides which partition a row is in, at every level above; None: an expression"""
    columns: tuple[CatalogColumn, ...]

    @property
    def partitioned(self) -> bool:
        return self.relkind == "p"

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the index that PostgreSQL identifies its old rows by; empty if it sends them whole or not."""
        match self.identity:
            case Identity.INDEX:
                return self.identity_key
            case Identity.DEFAULT:
                return self.primary_key
            case _:
                return ()


@dataclass(frozen=True)
class Leaf:
    oid: int
    id: TableId
    relkind: str
    persistence: str
    file: int
    levels: tuple[Membership, ...]
    parent: TableId | None
    """what it is a partition of"""

    @property
    def logged(self) -> bool:
        """Whether its changes are in the WAL."""
        return self.relkind == "r" and self.persistence == "p"


def tables(conn: Connection, oids: Collection[int]) -> dict[int, CatalogTable]:
    """Tables by oid as the catalog has them now; those that no longer exist are left out."""
    with _one_moment(conn):
        return _tables(conn, oids)


@contextmanager
def _one_moment(conn: Connection) -> Iterator[None]:
    """All questions to the catalog see one moment: a table, its columns and its files belong together."""
    with explained("reading", "the catalog"), conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def _tables(conn: Connection, oids: Collection[int]) -> dict[int, CatalogTable]:
    rows = conn.execute(query("tables"), {"oids": list(oids)}).fetchall()
    columns: defaultdict[int, list[CatalogColumn]] = defaultdict(list)
    for row in conn.execute(query("columns"), {"oids": list(oids)}):
        columns[row[0]].append(CatalogColumn(*row[1:]))
    return {
        oid: CatalogTable(
            oid, TableId(schema, name), relkind, Identity(identity), tuple(primary), tuple(by_index), root,
            attributes, tuple(TableId(*id) for id in above), index, tuple(decisive), tuple(columns[oid]),
        )
        for oid, schema, name, relkind, identity, primary, by_index, root, attributes, above, index, decisive in rows
    }  # fmt: skip


def types(conn: Connection, oids: Iterable[int]) -> dict[int, PgType]:
    """Types by oid, with those beneath domains and arrays."""
    with explained("reading", "the catalog"):
        return {row[0]: PgType(*row) for row in conn.execute(query("types"), {"oids": sorted(set(oids))})}


def leaves(conn: Connection, oids: Collection[int]) -> dict[int, list[Leaf]]:
    """The leaves of each table; a table that is not partitioned is its own."""
    found: dict[int, list[Leaf]] = {oid: [] for oid in oids}
    with explained("reading", "the partitions"):
        rows = conn.execute(query("leaves"), {"oids": list(oids)})
        for root, oid, schema, name, kind, persistence, file, parent, *levels in rows:
            membership = tuple(Membership(*level) for level in zip(*levels, strict=True))
            above = TableId(*parent) if parent is not None else None
            found[root].append(Leaf(oid, TableId(schema, name), kind, persistence, file, membership, above))
    return found


def _empty(conn: Connection, partitions: Iterable[Leaf]) -> frozenset[int]:
    """Those that have no rows, of partitions that were attached, or may have been; others are not asked."""
    asked = [leaf.oid for leaf in partitions if leaf.logged and not all(level.made for level in leaf.levels)]
    if not asked:
        return frozenset()
    try:
        with explained("measuring", "partitions"), conn.transaction():
            wait_briefly(conn)
            return frozenset(oid for (oid,) in conn.execute(query("empty_heaps"), {"oids": asked}))
    except SourceBusy:
        return frozenset()


def misleading_leaves(conn: Connection, oids: Collection[int]) -> dict[int, list[TableId]]:
    """Of partitioned tables without a key: leaves that send a key of their own, which the whole table has not."""
    with _one_moment(conn):
        roots = {oid: table for oid, table in _tables(conn, oids).items() if table.partitioned}
        below = leaves(conn, list(roots)) if roots else {}
        parts = _tables(conn, [leaf.oid for some in below.values() for leaf in some]) if roots else {}
    return {
        oid: [leaf.id for leaf in found]
        for oid, root in roots.items()
        if (found := identity.misleading(root, [parts[leaf.oid] for leaf in below[oid] if leaf.oid in parts]))
    }


def partition_predicate(conn: Connection, leaf: int) -> str | None:
    """The condition that a partition's rows meet, as PostgreSQL writes it."""
    with explained("reading", "a partition's bounds"):
        row = conn.execute(query("partition_predicate"), {"oids": [leaf], "wait": True}).fetchone()
    return row[1] if row else None


class KnownBounds:
    """Bounds of partitions, which stay as they are as long as a partition is a member: they are read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[Membership, ...]], Bounds | None] = {}

    def read(self, conn: Connection, leaves: Collection[Leaf]) -> None:
        """Ask for those that are not known. One that somebody has locked stays unknown."""
        asked = {leaf.oid: leaf for leaf in leaves if (leaf.oid, leaf.levels) not in self._known}
        if not asked:
            return
        with suppress(SourceBusy), explained("reading", "the bounds of partitions"), conn.transaction():
            wait_briefly(conn)
            rows = conn.execute(query("partition_predicate"), {"oids": list(asked), "wait": False})
            for oid, text, columns in rows.fetchall():
                found = Bounds(text, tuple((name, int(number)) for name, number in columns)) if text else None
                self._known[oid, asked[oid].levels] = found

    def of(self, leaf: Leaf, schema: TableSchema) -> Bounds | None:
        """Where a leaf's rows are among the table's; None where that can't be told, or is to be hidden."""
        return None if schema.masked else self._known.get((leaf.oid, leaf.levels))


def describe(
    conn: Connection, oids: Collection[int], overrides: Mapping[str, TableConfig] | None = None,
    bounds: KnownBounds | None = None,
) -> dict[int, TableSchema]:  # fmt: skip
    """Schemas of tables (roots or leaves where partitioned) by oid; those that no longer exist are left out.

    The bounds of partitions are part of them if `bounds` is given.
    """
    with _one_moment(conn):
        found = _tables(conn, oids)
        of_root = leaves(conn, list(found))
        parts_of = {oid: of_root[oid] for oid, table in found.items() if table.partitioned}
        below = _tables(conn, [leaf.oid for group in parts_of.values() for leaf in group]) if parts_of else {}
        known = types(conn, {column.type_oid for table in found.values() for column in table.columns})
        empty = _empty(conn, (leaf for group in parts_of.values() for leaf in group))
        facts = typefacts.read(conn, known)
        if bounds is not None:
            bounds.read(conn, [leaf for group in parts_of.values() for leaf in group])
    wanted = overrides_by_table(overrides or {})
    publication = selection.named(conn, overrides, found)
    schemas = {}
    for oid, table in found.items():
        parts = [below[leaf.oid] for leaf in parts_of.get(oid, ()) if leaf.oid in below]
        settings = settings_of(wanted, table.id, table.above)
        chosen = _chosen(table, parts, settings, conn.info.server_version, publication)
        schema = _with_facts(_schema(table, parts, known, settings, chosen, conn.info.server_version), facts)
        heaps = tuple(
            replace(_heap(leaf, empty), bounds=bounds.of(leaf, schema) if bounds and table.partitioned else None)
            for leaf in of_root[oid]
        )
        schemas[oid] = replace(schema, heaps=heaps)
    return schemas


def _heap(leaf: Leaf, empty: Collection[int]) -> HeapFile:
    outside = (leaf.id, leaf.relkind, leaf.parent) if leaf.parent is not None and not leaf.logged else None
    return HeapFile(leaf.oid, leaf.file, leaf.levels, leaf.oid in empty, outside)


def outside_wal(schema: TableSchema) -> TableError | None:
    """The error of a table that has a partition whose changes nobody can follow; None if all are in the WAL."""
    for heap in schema.heaps:
        if heap.outside is not None:
            name, kind, parent = heap.outside
            error = PartitionForeign if kind == "f" else PartitionUnlogged
            sql_name, sql_parent = (identifier(each.schema, each.name) for each in (name, parent))
            return error(table=str(schema.id), partition=str(name), sql_name=sql_name, sql_parent=sql_parent)
    return None


def _with_facts(schema: TableSchema, facts: Mapping[int, TypeFacts]) -> TableSchema:
    columns = []
    for column in schema.columns:
        told = facts.get(column.type_oid, TypeFacts()) if column.mask is not Masking.NULL else TypeFacts()
        columns.append(replace(column, relies=told.relies, unaltered=told.unaltered))
    return replace(schema, columns=tuple(columns))


def overrides_by_table(overrides: Mapping[str, TableConfig]) -> dict[str, TableConfig]:
    """Settings by the names of tables as `str(TableId)` writes them."""
    found = {}
    for name, settings in overrides.items():
        try:
            found[str(TableId.parse(name))] = settings
        except ValueError:
            raise ConfigError(
                field=f"tables.{name}", cause="not a table name", allowed="write it as schema.table"
            ) from None
    return found


def _chosen(
    table: CatalogTable, parts: Sequence[CatalogTable], settings: TableConfig, server_version: int,
    publication: Named | None,
) -> Selection:  # fmt: skip
    """What is mirrored of a table, each column named. Raises ConfigError where a setting does not fit it."""
    published = {column.name: column.published(server_version) for column in table.columns}
    key = identity.of(table, parts).key or table.primary_key
    selection.require_fit(table.id, settings, published, key, table.partitioned, server_version, publication)
    numbers = {column.name: column.attnum for column in table.columns}
    if settings.columns:
        return Selection(frozenset(numbers[name] for name in settings.columns), settings.where)
    if publication is None:
        return Selection(None, settings.where)
    # A table that the publication lacks is refused, or left out, by who asks for its tables.
    return publication.tables.get(table.oid, Selection())


def _schema(
    table: CatalogTable, parts: Sequence[CatalogTable], known: Mapping[int, PgType], settings: TableConfig,
    chosen: Selection, server_version: int,
) -> TableSchema:  # fmt: skip
    columns = tuple(
        Column(
            c.name, c.type_oid, c.typmod, c.type_name,
            carrier(table.id, c.name, lake_type(c.type_oid, c.typmod, c.dims, known), settings), not c.not_null,
            c.attnum, *_missing(table, c, parts), mask=settings.mask.get(c.name),
            delimiter=delimiter(c.type_oid, known),
        )
        for c in table.columns if _sent(c, chosen, server_version)
    )  # fmt: skip
    _refuse_unknown(table, settings)
    told = identity.of(table, parts)
    if not set(told.key) <= {column.name for column in columns}:
        told = identity.Told(told.identity)
    return TableSchema(
        table.oid, table.id, tuple(map(masked_column, columns)), told.key, told.identity, table.partitioned,
        where=chosen.where, only=tuple(sorted(chosen.columns or ())), entry=chosen.entry,
        settings_from=table.above, key_index=told.index, catalog_key=table.primary_key, by_name=chosen.by_name,
    )  # fmt: skip


def _sent(column: CatalogColumn, chosen: Selection, server_version: int) -> bool:
    if chosen.columns is not None:
        return column.attnum in chosen.columns
    return column.published(server_version) and (chosen.generated or not column.generated)


def masked_column(column: Column) -> Column:
    """A column, just masked, with what that makes of it: the lake type, and the value of rows older than it."""
    if column.mask is None:
        return column
    missing = None if column.missing is None else masked(column.missing, column.mask)
    # Older rows are NULL behind that mask, too, whatever they have.
    known = column.missing_known or column.mask is Masking.NULL
    lake = STRING if column.mask is Masking.SHA256 else column.lake
    nullable = column.nullable or column.mask is Masking.NULL
    return replace(column, lake=lake, missing=missing, missing_known=known, nullable=nullable)


def _missing(table: CatalogTable, column: CatalogColumn, parts: Sequence[CatalogTable]) -> tuple[str | None, bool]:
    """What rows have that are older than a column, and whether that is known. Of a partitioned table, leaves say it."""
    if column.generated:
        return None, False
    if not table.partitioned:
        return column.missing, True
    told = {own.missing for part in parts for own in part.columns if own.name == column.name}
    return (told.pop(), True) if len(told) == 1 else (None, not told)


def carrier(table: TableId, column: str, declared: LakeType, settings: TableConfig | None) -> LakeType:
    """The lake type of a column: as declared, or as the configuration says instead."""
    wanted = settings.types.get(column) if settings is not None else None
    if wanted is None:
        return declared
    if not override_allowed(declared, wanted):
        raise ConfigError(
            field=f"tables.{table}.types.{column}", cause=f"{wanted} can't carry a column that is {declared}",
            allowed="string carries every type; decimal(p,s) carries numerics",
        )  # fmt: skip
    return wanted


def _refuse_unknown(table: CatalogTable, settings: TableConfig) -> None:
    names = [column.name for column in table.columns]
    for name in settings.types:
        if name not in names:
            raise ConfigError(
                field=f"tables.{table.id}.types.{name}", cause="the table has no such column",
                allowed=f"its columns are: {', '.join(names)}",
            )  # fmt: skip
