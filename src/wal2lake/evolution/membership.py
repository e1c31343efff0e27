"""Partitions that were attached, detached or rewritten, found by what identifies their membership. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from ..schema import HeapFile, Membership, TableSchema


@dataclass(frozen=True)
class Moved:
    """Partitions whose rows in the lake may differ from those of the source without a change in the stream."""

    unknown: tuple[HeapFile, ...] = ()
    """they are partitions of the source"""
    gone: tuple[HeapFile, ...] = ()
    """they are not partitions of the source"""

    def __str__(self) -> str:
        if self.gone:
            return "a partition was dropped or detached"
        return "a partition was attached with rows, or its rows were rewritten or changed while it was detached"


def moved(lake: TableSchema, source: TableSchema) -> Moved | None:
    """Partitions that moved between the catalog state that the lake table has and a later one; None: none.

    All rows of a partition are in the stream if it was a member with the same relfilenode at both times, or if it is
    new and had no rows: it was created as a partition, or is empty. Everything else is doubtful.
    """
    if not (lake.partitioned or source.partitioned):
        return None
    known = {heap.oid: heap for heap in lake.heaps if heap.file}
    above = {level for heap in lake.heaps for level in heap.levels}
    unknown = tuple(
        heap
        for heap in source.heaps
        # Kept rows of a dropped partition are replaced if a partition with overlapping bounds is copied.
        if not heap.same_rows(known.get(heap.oid)) and (lake.archived or not _new(heap, known, above))
    )
    present = {heap.oid for heap in source.heaps}
    gone = tuple(heap for heap in lake.heaps if heap.oid not in present)
    return Moved(unknown, gone) if unknown or gone else None


def _new(heap: HeapFile, known: Container[int], above: Container[Membership]) -> bool:
    """Whether a partition is new and had no rows when it, or the level it came with, was attached."""
    return heap.oid not in known and (heap.empty or all(level.made or level in above for level in heap.levels))


def attached(lake: TableSchema, source: TableSchema) -> frozenset[int]:
    """Partitions of the source that are new to the lake table and came by an ATTACH, with rows or without."""
    known = {heap.oid for heap in lake.heaps if heap.file}
    new = {heap.oid: heap.levels for heap in source.heaps if heap.oid not in known}
    return later_members(lake, new) if source.partitioned else frozenset()


def later_members(lake: TableSchema, members: Mapping[int, tuple[Membership, ...]]) -> frozenset[int]:
    """Partitions with a membership that the lake table does not know, so that they may have been others before."""
    known = {heap.oid: heap.levels for heap in lake.heaps if heap.file}
    above = {level for heap in lake.heaps for level in heap.levels}

    def is_known(oid: int, levels: tuple[Membership, ...]) -> bool:
        if oid in known:
            return bool(levels) and levels == known[oid]
        return bool(levels) and all(level.made or level in above for level in levels)

    return frozenset(oid for oid, levels in members.items() if not is_known(oid, levels))


def with_leaves(lake: TableSchema, leaves: Iterable[int]) -> TableSchema:
    """The same schema with partitions whose changes reach the lake table before the catalog was read again.

    A partition that is gone by then has left rows in the lake table, so it must not be forgotten.
    """
    if not lake.partitioned:
        return lake
    known = {heap.oid for heap in lake.heaps}
    new = tuple(HeapFile(oid, 0) for oid in sorted(leaves) if oid not in known)
    return replace(lake, heaps=(*lake.heaps, *new)) if new else lake


def doubted(lake: TableSchema, source: TableSchema, leaves: Container[int]) -> TableSchema:
    """The same schema, in which the rows of some partitions are unknown whatever the catalog says later."""
    now = {heap.oid: heap for heap in source.heaps if heap.oid in leaves}
    known = {heap.oid: heap for heap in lake.heaps if heap.file or heap.oid not in now}
    heaps = {**now, **known}
    return replace(lake, heaps=tuple(replace(h, levels=()) if h.oid in leaves else h for h in heaps.values()))


def in_doubt(lake: TableSchema) -> bool:
    """Whether the lake table is known to lack changes of some partitions until their rows are copied."""
    return lake.partitioned and any(heap.file and not heap.levels for heap in lake.heaps)


def with_heaps(lake: TableSchema, source: TableSchema, later: Iterable[HeapFile] = ()) -> TableSchema:
    """The same schema with the partitions of the source, and those that may have come after it was read."""
    known = {heap.oid for heap in source.heaps}
    return replace(lake, heaps=(*source.heaps, *(heap for heap in later if heap.oid not in known)))
