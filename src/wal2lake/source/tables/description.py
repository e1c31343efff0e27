"""Makes a table's schema from facts of the catalog and settings. Pure.

Key columns are found by name. The schema is what the stream will send, so that copy and stream agree: generated columns
are included only if the server publishes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...config import TableConfig, settings_of
from ...errors import ConfigError, PartitionForeign, PartitionUnlogged, TableError
from ...quoting import identifier
from ...schema import Bounds, Column, HeapFile, TableId, TableSchema
from ...types import STRING, LakeType, Masking, PgType, delimiter, lake_type, masked, override_allowed
from . import identity, selection
from .catalog_table import CatalogColumn, CatalogTable, Leaf
from .selection import Named, Selection
from .typefacts import TypeFacts


@dataclass(frozen=True)
class CatalogFacts:
    """Facts of the catalog about some tables at one moment."""

    server_version: int
    tables: Mapping[int, CatalogTable]
    leaves: Mapping[int, Sequence[Leaf]]
    """of each table; one that is not partitioned is its own leaf"""
    parts: Mapping[int, CatalogTable]
    """the leaves of partitioned tables"""
    types: Mapping[int, PgType]
    type_facts: Mapping[int, TypeFacts] = field(default_factory=dict)
    empty: Collection[int] = ()
    """partitions that are known to be empty"""
    publication: Named | None = None
    """the publication that the group names"""


def schemas(
    facts: CatalogFacts, overrides: Mapping[str, TableConfig] | None = None,
    bounds: Callable[[Leaf, TableSchema], Bounds | None] | None = None,
) -> dict[int, TableSchema]:  # fmt: skip
    """Schemas of the tables by oid. Raises ConfigError if a setting does not fit its table."""
    wanted = overrides_by_table(overrides or {})
    version = facts.server_version
    described = {}
    for oid, table in facts.tables.items():
        leaves = facts.leaves[oid]
        parts = [facts.parts[leaf.oid] for leaf in leaves if leaf.oid in facts.parts] if table.partitioned else []
        settings = settings_of(wanted, table.id, table.above)
        chosen = _chosen(table, parts, settings, version, facts.publication)
        schema = _with_facts(_schema(table, parts, facts.types, settings, chosen, version), facts.type_facts)
        heaps = tuple(
            replace(_heap(leaf, facts.empty), bounds=bounds(leaf, schema) if bounds and table.partitioned else None)
            for leaf in leaves
        )
        described[oid] = replace(schema, heaps=heaps)
    return described


def _heap(leaf: Leaf, empty: Collection[int]) -> HeapFile:
    outside = (leaf.id, leaf.relkind, leaf.parent) if leaf.parent is not None and not leaf.logged else None
    return HeapFile(leaf.oid, leaf.file, leaf.levels, leaf.oid in empty, outside)


def outside_wal(schema: TableSchema) -> TableError | None:
    """The error of a table with a partition whose changes are not in the WAL; None if there is none."""
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
    """Settings by table name in the form of `str(TableId)`."""
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
    """The mirrored part of a table, with all columns listed. Raises ConfigError if a setting does not fit."""
    published = {column.name: column.published(server_version) for column in table.columns}
    key = identity.of(table, parts).key or table.primary_key
    selection.require_fit(table.id, settings, published, key, table.partitioned, server_version, publication)
    numbers = {column.name: column.attnum for column in table.columns}
    if settings.columns:
        return Selection(frozenset(numbers[name] for name in settings.columns), settings.where)
    if publication is None:
        return Selection(None, settings.where)
    # Tables that are missing in the publication are handled by the callers.
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
    """A column with a new mask: the lake type and the value of older rows follow from the mask."""
    if column.mask is None:
        return column
    missing = None if column.missing is None else masked(column.missing, column.mask)
    # Under a null mask older rows are NULL, too.
    known = column.missing_known or column.mask is Masking.NULL
    lake = STRING if column.mask is Masking.SHA256 else column.lake
    nullable = column.nullable or column.mask is Masking.NULL
    return replace(column, lake=lake, missing=missing, missing_known=known, nullable=nullable)


def _missing(table: CatalogTable, column: CatalogColumn, parts: Sequence[CatalogTable]) -> tuple[str | None, bool]:
    """The value of rows older than a column, and whether it is known. For a partitioned table the leaves decide."""
    if column.generated:
        return None, False
    if not table.partitioned:
        return column.missing, True
    told = {own.missing for part in parts for own in part.columns if own.name == column.name}
    return (told.pop(), True) if len(told) == 1 else (None, not told)


def carrier(table: TableId, column: str, declared: LakeType, settings: TableConfig | None) -> LakeType:
    """The lake type of a column: that of the configuration, or the declared one."""
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
