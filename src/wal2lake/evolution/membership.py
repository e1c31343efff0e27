"""Partitions of a table that came, went or may have other rows, told by what identifies their membership. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from ..schema import HeapFile, Membership, TableSchema


@dataclass(frozen=True)
class Moved:
    """Partitions whose rows in the lake are not those of the source, or may not be: no change tells of them."""

    unknown: tuple[HeapFile, ...] = ()
    """they are partitions of the source"""
    gone: tuple[HeapFile, ...] = ()
    """they are none any more"""

    def __str__(self) -> str:
        if self.gone:
            return "a partition was dropped or detached"
        return "a partition was attached with rows, or its rows were rewritten or changed while it was detached"


def moved(lake: TableSchema, source: TableSchema) -> Moved | None:
    """What became of partitions between the look that the lake table remembers and a later one; None: nothing.

    All rows of a partition are in the stream if it was a member with the same file of rows ever since the last look,
    or is new and had no rows: it was created as a partition, or has none. Anything else leaves a doubt.
    """
    if not (lake.partitioned or source.partitioned):
        return None
    known = {heap.oid: heap for heap in lake.heaps if heap.file}
    above = {level for heap in lake.heaps for level in heap.levels}
    unknown = tuple(
        heap
        for heap in source.heaps
        # Rows that are kept of others give way to those of a partition that came: it is copied over them.
        if not heap.same_rows(known.get(heap.oid)) and (lake.archived or not _new(heap, known, above))
    )
    present = {heap.oid for heap in source.heaps}
    gone = tuple(heap for heap in lake.heaps if heap.oid not in present)
    return Moved(unknown, gone) if unknown or gone else None


def _new(heap: HeapFile, known: Container[int], above: Container[Membership]) -> bool:
    """Whether a partition is new and had no rows when it, or the level that it came with, became a member."""
    return heap.oid not in known and (heap.empty or all(level.made or level in above for level in heap.levels))


def with_leaves(lake: TableSchema, leaves: Iterable[int]) -> TableSchema:
    """The same schema that knows of partitions whose changes come into the lake table before a look has seen them.

    One that is gone at the next look has left its rows in the lake table, and must not be forgotten.
    """
    if not lake.partitioned:
        return lake
    known = {heap.oid for heap in lake.heaps}
    new = tuple(HeapFile(oid, 0) for oid in sorted(leaves) if oid not in known)
    return replace(lake, heaps=(*lake.heaps, *new)) if new else lake


def doubted(lake: TableSchema, source: TableSchema, leaves: Container[int]) -> TableSchema:
    """The same schema in which the rows of some partitions are unknown, whatever a later look finds."""
    now = {heap.oid: heap for heap in source.heaps if heap.oid in leaves}
    known = {heap.oid: heap for heap in lake.heaps if heap.file or heap.oid not in now}
    heaps = {**now, **known}
    return replace(lake, heaps=tuple(replace(h, levels=()) if h.oid in leaves else h for h in heaps.values()))


def with_heaps(lake: TableSchema, source: TableSchema, later: Iterable[HeapFile] = ()) -> TableSchema:
    """The same schema with the partitions that the source has, and those that may have come after the look at it."""
    known = {heap.oid for heap in source.heaps}
    return replace(lake, heaps=(*source.heaps, *(heap for heap in later if heap.oid not in known)))
