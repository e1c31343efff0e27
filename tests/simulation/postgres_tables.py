"""Tables of the scripted PostgreSQL: frozen definitions with their rows, and how the catalog shows them.

Values are PostgreSQL's own text. A row has a value for each attribute number; one that is missing has what the column
says that older rows have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from wal2lake.decode import Relation, RelationColumn
from wal2lake.schema import Bounds, Membership, ReplicaIdentity, TableId
from wal2lake.source.tables.catalog_table import CatalogColumn, CatalogTable, Leaf
from wal2lake.types import PgType

Text = str | None
Row = Mapping[int, Text]

TOASTED_LENGTH = 2000
"""longer values are stored outside of their row, and are not sent by an update that leaves them alone"""


LONGEST_KEY = 2600
"""longer values do not fit into an index"""


class Lock(IntEnum):
    """How a transaction holds a table."""

    SHARED = 0
    """others read and write it, too"""
    DEFINING = 1
    """and nobody else holds it so: SHARE UPDATE EXCLUSIVE"""
    EXCLUSIVE = 2

    def conflicts(self, other: Lock) -> bool:
        return Lock.EXCLUSIVE in (self, other) or self is other is Lock.DEFINING


class Blocked(Exception):
    """A real session would wait for another transaction here."""


class Refused(Exception):
    """PostgreSQL refuses the statement."""


@dataclass(frozen=True)
class ColumnType:
    """A type with its modifier, as `format_type` writes it."""

    type: PgType
    formatted: str
    typmod: int = -1


def _numeric(precision: int, scale: int) -> ColumnType:
    return ColumnType(PgType(1700, "numeric"), f"numeric({precision},{scale})", (precision << 16 | scale) + 4)


TYPES: Mapping[str, ColumnType] = {
    "int4": ColumnType(PgType(23, "int4"), "integer"),
    "int8": ColumnType(PgType(20, "int8"), "bigint"),
    "text": ColumnType(PgType(25, "text"), "text"),
    "bool": ColumnType(PgType(16, "bool"), "boolean"),
    "date": ColumnType(PgType(1082, "date"), "date"),
    "uuid": ColumnType(PgType(2950, "uuid"), "uuid"),
    "float8": ColumnType(PgType(701, "float8"), "double precision"),
    "timestamptz": ColumnType(PgType(1184, "timestamptz"), "timestamp with time zone"),
    "numeric(10,2)": _numeric(10, 2),
}


@dataclass(frozen=True)
class ScriptedColumn:
    name: str
    type: ColumnType
    attnum: int
    not_null: bool = False
    dropped: bool = False
    missing: Text = None
    """what rows have that are older than the column"""


@dataclass(frozen=True)
class Span:
    """Bounds of a partition: from `low` up to, but without, `high`, of the parent's partition column."""

    low: int
    high: int

    def holds(self, value: Text) -> bool:
        return value is not None and self.low <= int(value) < self.high


@dataclass(frozen=True)
class ScriptedTable:
    oid: int
    id: TableId
    columns: tuple[ScriptedColumn, ...]
    """with those that were dropped"""
    file: int
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    primary_key: tuple[int, ...] = ()
    """attribute numbers"""
    key_index: int = 0
    identity_index: tuple[int, ...] = ()
    partition_column: int = 0
    """attribute number of what its partitions are divided by; 0: it is not partitioned"""
    parent: int | None = None
    span: Span | None = None
    since: int = 0
    """the transaction that made it a partition"""
    made: bool = False
    """it was created as a partition"""

    @property
    def partitioned(self) -> bool:
        return self.partition_column != 0

    @property
    def live(self) -> tuple[ScriptedColumn, ...]:
        return tuple(column for column in self.columns if not column.dropped)

    def column(self, name: str) -> ScriptedColumn:
        return next(column for column in self.live if column.name == name)

    def has(self, name: str) -> bool:
        return any(column.name == name for column in self.live)

    def names(self, attnums: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.columns[attnum - 1].name for attnum in attnums)

    def numbers(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.column(name).attnum for name in names)

    @property
    def identifying(self) -> tuple[int, ...]:
        """Attribute numbers of the columns that an old row is identified by; none under FULL and NOTHING."""
        match self.identity:
            case ReplicaIdentity.DEFAULT:
                return self.primary_key
            case ReplicaIdentity.INDEX:
                return self.identity_index
            case _:
                return ()

    def value(self, row: Row, column: ScriptedColumn) -> Text:
        return row.get(column.attnum, column.missing)

    def values(self, row: Row) -> tuple[Text, ...]:
        return tuple(self.value(row, column) for column in self.live)

    def with_columns(self, columns: tuple[ScriptedColumn, ...]) -> ScriptedTable:
        return replace(self, columns=columns)

    def relation(self) -> Relation:
        """Its description in the stream."""
        keys = set(self.identifying)
        full = self.identity is ReplicaIdentity.FULL
        columns = tuple(
            RelationColumn(column.name, column.type.type.oid, column.type.typmod, full or column.attnum in keys)
            for column in self.live
        )
        return Relation(self.oid, self.id.schema, self.id.name, self.identity, columns)


@dataclass(frozen=True)
class State:
    """All tables and rows at one moment. Never changed: a commit makes the next one."""

    tables: Mapping[int, ScriptedTable] = field(default_factory=dict)
    rows: Mapping[int, Mapping[int, Row]] = field(default_factory=dict)
    """by heap and row number"""
    publications: Mapping[str, Publication] = field(default_factory=dict)

    def find(self, id: TableId) -> ScriptedTable | None:
        return next((table for table in self.tables.values() if table.id == id), None)

    def lineage(self, table: ScriptedTable) -> Iterator[ScriptedTable]:
        """A table and what it is a partition of, up to the root."""
        above: ScriptedTable | None = table
        while above is not None:
            yield above
            above = self.tables.get(above.parent) if above.parent is not None else None

    def root(self, table: ScriptedTable) -> ScriptedTable:
        return [*self.lineage(table)][-1]

    def below(self, table: ScriptedTable) -> Iterator[ScriptedTable]:
        """A table and all its partitions, of every level."""
        yield table
        for other in sorted(self.tables.values(), key=lambda one: one.oid):
            if other.parent == table.oid:
                yield from self.below(other)

    def heaps(self, table: ScriptedTable) -> list[ScriptedTable]:
        return [one for one in self.below(table) if not one.partitioned]

    def contents(self, table: ScriptedTable) -> Counter[tuple[Text, ...]]:
        """The rows of a table with their multiplicity, in the order of the table's columns."""
        names = [column.name for column in table.live]
        found: Counter[tuple[Text, ...]] = Counter()
        for heap in self.heaps(table):
            columns = [heap.column(name) for name in names]
            for row in self.rows.get(heap.oid, {}).values():
                found[tuple(heap.value(row, column) for column in columns)] += 1
        return found

    def catalog_table(self, table: ScriptedTable) -> CatalogTable:
        above = [*self.lineage(table)][1:]
        decisive = {one.names((one.partition_column,))[0] for one in above}
        columns = tuple(
            CatalogColumn(
                column.name, column.type.type.oid, column.type.typmod, 0, column.not_null, "", column.type.formatted,
                column.attnum, column.missing if not table.partitioned else None,
            )
            for column in table.live
        )  # fmt: skip
        return CatalogTable(
            table.oid, table.id, "p" if table.partitioned else "r", table.identity, table.names(table.primary_key),
            table.names(table.identity_index) if table.identity is ReplicaIdentity.INDEX else (), self.root(table).oid,
            len(table.columns), tuple(one.id for one in above), table.key_index if table.primary_key else 0,
            tuple(sorted(decisive)), columns,
        )  # fmt: skip

    def leaves(self, table: ScriptedTable) -> list[Leaf]:
        """As the catalog shows them: in the order of their oids, a plain table as its own."""
        found = []
        for heap in sorted(self.heaps(table), key=lambda one: one.oid):
            levels = self.levels(heap, table)
            parent = self.tables[heap.parent].id if levels and heap.parent is not None else None
            found.append(Leaf(heap.oid, heap.id, "r", "p", heap.file, levels, parent))
        return found

    def levels(self, leaf: ScriptedTable, below: ScriptedTable | None = None) -> tuple[Membership, ...]:
        """Its membership at each level, up to a table above it, or to the root."""
        line = [*self.lineage(leaf)]
        end = next((n for n, level in enumerate(line) if below is not None and level.oid == below.oid), len(line) - 1)
        return tuple(Membership(level.oid, level.since, level.made) for level in line[:end])

    def bounds(self, leaf: ScriptedTable) -> Bounds | None:
        """The condition that the rows of a partition meet, as PostgreSQL writes it."""
        line = [*self.lineage(leaf)]
        if len(line) == 1:
            return None
        conditions, columns = [], []
        for parent, partition in reversed(list(zip(line[1:], line, strict=False))):
            (name,) = parent.names((parent.partition_column,))
            assert partition.span is not None
            conditions += [f"({name} IS NOT NULL)", f"({name} >= {partition.span.low})"]
            conditions.append(f"({name} < {partition.span.high})")
            columns.append((name, line[-1].column(name).attnum))
        return Bounds(f"({' AND '.join(conditions)})", tuple(sorted(set(columns))))


@dataclass(frozen=True)
class Publication:
    name: str
    tables: frozenset[int]
    append: bool = False
    """neither updates nor deletes are published"""
    mark: str | None = None

    def holds(self, line: tuple[int, ...]) -> bool:
        """Whether it publishes a table of this line of partitions."""
        return not self.tables.isdisjoint(line)
