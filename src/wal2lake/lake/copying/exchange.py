"""Exchanges single partitions of a lake table: the rows within their bounds are replaced by a copy, in one commit.

attached with rows      insert the copy of that partition
detached, dropped       delete the rows within its bounds
attached again          both
without known bounds    only a copy of the whole table is exact
"""

# ruff: noqa: S608 - all names in the statements are constant or quoted
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...evolution import Moved
from ...schema import Bounds, HeapFile, TableSchema
from ..applying.alter import selection
from ..applying.apply import by_address
from ..applying.partition import Untranslatable, outside, within
from ..format import TableFormat
from ..model import Exchange
from ..names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COPIED = "wal2lake_partitions"


def exchange(lake: TableSchema, source: TableSchema, moved: Moved, keep: bool = False) -> Exchange | None:
    """The exchange after which a lake table has the partitions of the source; None if a re-copy is needed.

    With `keep`, rows of dropped partitions stay.
    """
    known = {heap.oid: heap for heap in lake.heaps if heap.file}
    before = [known[heap.oid] for heap in moved.unknown if heap.oid in known]
    now = {heap.oid: heap for heap in source.heaps}
    freed = bool(moved.gone) or any(_attached_again(heap, now[heap.oid]) for heap in before)
    copied = {heap.oid: heap for heap in moved.unknown}
    if freed:
        # Rows within bounds that are free again may belong to a new partition, or to one with unknown bounds.
        if any(heap.bounds is None for heap in source.heaps):
            return None
        copied |= {heap.oid: heap for heap in source.heaps if heap.oid not in known}
    try:
        gone = [within(heap.bounds, lake) for heap in moved.gone]
        if (moved.gone or before) and not keep and all(heap.bounds is not None for heap in source.heaps):
            gone.append(outside(source.heaps, lake))
        replaced = [within(heap.bounds, lake) for heap in (*before, *copied.values())]
    except Untranslatable:
        return None
    parts = tuple(copied.values())
    if keep:
        archived = tuple(heap.bounds for heap in moved.gone if heap.bounds is not None)
        return Exchange(parts, tuple(dict.fromkeys(replaced)), frozenset(copied), archived)
    left_out = frozenset((*copied, *(heap.oid for heap in moved.gone)))
    return Exchange(parts, tuple(dict.fromkeys((*gone, *replaced))), left_out)


def _attached_again(before: HeapFile, now: HeapFile) -> bool:
    """Whether a partition may have had other bounds since; without levels its rows are unknown for another reason."""
    return before.bounds != now.bounds or bool(before.levels and before.levels != now.levels)


def archived(lake: TableSchema, source: TableSchema) -> tuple[tuple[Bounds, ...], str]:
    """The bounds of dropped partitions whose rows a lake table keeps when all others are copied, and their condition.

    Raises Untranslatable if they can't be separated from the rows of existing partitions.
    """
    present = {heap.oid for heap in source.heaps}
    gone = [heap for heap in lake.heaps if heap.oid not in present]
    if any(heap.bounds is None for heap in gone):
        raise Untranslatable
    kept = tuple(dict.fromkeys((*lake.archived, *(heap.bounds for heap in gone if heap.bounds is not None))))
    if not kept:
        return (), "false"
    inside = " OR ".join(within(bounds, lake) for bounds in kept)
    return kept, f"({inside}) AND {outside(source.heaps, lake)}"


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
    # Not a DELETE: if whole files are deleted, its commit may not have the record.
    file, position = map(quoted, tables.row_address)
    none = ", ".join(f"CAST(NULL AS {column.lake.spark}) AS c{place}" for place, column in enumerate(schema.columns))
    parts = [f"SELECT 'D' AS op, {file} AS file, {position} AS position, {none} FROM {name} WHERE {condition}"]
    if what.copied:
        came = ", ".join(f"{quoted(column)} AS c{place}" for place, column in enumerate(schema.names))
        parts.append(f"SELECT 'I', CAST(NULL AS string), CAST(NULL AS bigint), {came} FROM ({own})")
    tables.merge(session, schema.id, by_address(tables, " UNION ALL ".join(parts), schema))
    return True


def of_partitions(source: TableSchema, what: Exchange) -> TableSchema:
    """The source table with the copied partitions only."""
    return replace(source, heaps=what.copied)
