"""Exchanging single partitions in a lake table: the rows within their bounds give way to a copy, in one commit.

attached with rows      the copy of that partition comes in
detached, dropped       the rows within its bounds go
attached again          both
anything without bounds only a copy of the whole table tells its rows
"""

# ruff: noqa: S608 - every name in these texts is ours or quoted
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..evolution import Moved
from ..schema import Bounds, HeapFile, TableSchema
from .alter import selection
from .apply import match_statement
from .format import TableFormat
from .names import quoted
from .partition import Untranslatable, within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COPIED = "wal2lake_partitions"


@dataclass(frozen=True)
class Exchange:
    """Which partitions are copied, and which rows of the lake table give way."""

    copied: tuple[HeapFile, ...]
    replaced: tuple[str, ...]
    """conditions of Spark SQL"""
    left_out: frozenset[int]
    """partitions whose changes before the copy don't count"""
    archived: tuple[Bounds, ...] = ()
    """where rows of partitions that went are kept"""


def exchange(lake: TableSchema, source: TableSchema, moved: Moved, keep: bool = False) -> Exchange | None:
    """What brings a lake table's partitions to those of the source; None if a copy of the whole table is needed.

    With `keep`, rows of partitions that went stay.
    """
    known = {heap.oid: heap for heap in lake.heaps if heap.file}
    before = [known[heap.oid] for heap in moved.unknown if heap.oid in known]
    now = {heap.oid: heap for heap in source.heaps}
    freed = bool(moved.gone) or any(heap.bounds != now[heap.oid].bounds for heap in before)
    copied = {heap.oid: heap for heap in moved.unknown}
    if freed:
        # Rows within bounds that are free again may be those of any partition that came since, or of one without.
        if any(heap.bounds is None for heap in source.heaps):
            return None
        copied |= {heap.oid: heap for heap in source.heaps if heap.oid not in known}
    try:
        gone = [within(heap.bounds, lake) for heap in moved.gone]
        replaced = [within(heap.bounds, lake) for heap in (*before, *copied.values())]
    except Untranslatable:
        return None
    parts = tuple(copied.values())
    if keep:
        archived = tuple(heap.bounds for heap in moved.gone if heap.bounds is not None)
        return Exchange(parts, tuple(dict.fromkeys(replaced)), frozenset(copied), archived)
    left_out = frozenset((*copied, *(heap.oid for heap in moved.gone)))
    return Exchange(parts, tuple(dict.fromkeys((*gone, *replaced))), left_out)


def archived(lake: TableSchema, source: TableSchema) -> tuple[tuple[Bounds, ...], str]:
    """Where a lake table keeps rows of partitions that went, when all others are copied, and the condition of them.

    Raises Untranslatable if they can't be told from those of the partitions that are there.
    """
    present = {heap.oid for heap in source.heaps}
    gone = [heap for heap in lake.heaps if heap.oid not in present]
    if any(heap.bounds is None for heap in gone):
        raise Untranslatable
    kept = tuple(dict.fromkeys((*lake.archived, *(heap.bounds for heap in gone if heap.bounds is not None))))
    if not kept:
        return (), "false"
    inside = " OR ".join(within(bounds, lake) for bounds in kept)
    others = " OR ".join(within(heap.bounds, lake) for heap in source.heaps) or "false"
    return kept, f"({inside}) AND NOT coalesce({others}, false)"


def write(
    session: SparkSession,
    tables: TableFormat,
    schema: TableSchema,
    rows: DataFrame,
    source: TableSchema,
    what: Exchange,
) -> bool:
    """Make the commit; `rows` are those of the copied partitions, in the columns of `source`. Whether there was one."""
    name, condition = tables.sql_name(schema.id), " OR ".join(what.replaced)
    stale = bool(what.replaced) and not session.sql(f"SELECT 1 FROM {name} WHERE {condition} LIMIT 1").isEmpty()
    rows.createOrReplaceTempView(_COPIED)
    own = selection(_COPIED, source, schema)
    if not stale:
        if what.copied:
            tables.append(session, session.sql(own), schema.id)
        return bool(what.copied)
    # Not a DELETE: where whole files go, Iceberg makes it a commit that does not carry the record.
    file, position = map(quoted, tables.row_address)
    none = ", ".join(f"CAST(NULL AS {column.lake.spark}) AS c{place}" for place, column in enumerate(schema.columns))
    parts = [f"SELECT 'D' AS op, {file} AS file, {position} AS position, {none} FROM {name} WHERE {condition}"]
    if what.copied:
        came = ", ".join(f"{quoted(column)} AS c{place}" for place, column in enumerate(schema.names))
        parts.append(f"SELECT 'I', CAST(NULL AS string), CAST(NULL AS bigint), {came} FROM ({own})")
    session.sql(match_statement(tables, " UNION ALL ".join(parts), schema))
    return True


def of_partitions(source: TableSchema, what: Exchange) -> TableSchema:
    """The source table with the copied partitions alone."""
    return replace(source, heaps=what.copied)
