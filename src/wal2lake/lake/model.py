"""Inputs and outputs of the lake: plain values, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from ..change import Refusal, Truncation
from ..changelog import Segment
from ..position import NO_VERSION, ZERO, LakeVersion, Lsn
from ..schema import Bounds, HeapFile, TableId, TableSchema
from ..visibility import Visibility

_WIDE = 500
"""bytes of a stored row from which it counts as wide"""
_SMALL = 32 * 1024 * 1024
"""bytes of a table from which it counts as large"""


@dataclass(frozen=True)
class Facts:
    """Facts of the current version of a table for maintenance. Empty facts never lead to work."""

    data_files: int = 0
    delete_files: int = 0
    records: int = 0
    """stored rows, including deleted ones"""
    deleted: int = 0
    """stored rows that are deleted"""
    size: int = 0
    snapshots: int = 0
    oldest: float = 0.0
    """time of the oldest version, in seconds since 1970"""
    newest: float = 0.0
    """time of the current version"""

    @property
    def wide(self) -> bool:
        """Whether rows are so large and so many that shuffling all costs more than reading them twice."""
        return self.size > max(_WIDE * self.records, _SMALL)

    @property
    def files(self) -> int:
        # A deletion vector belongs to a data file; position delete files of older formats may outnumber them.
        return max(self.data_files, self.delete_files)


@dataclass(frozen=True)
class Applied:
    """The record in a table's own lake commit: the table equals the source at `lsn`."""

    lsn: Lsn
    manifest: int
    """number of the last manifest that is applied; a copy has the last one published before it, or 0"""
    changes: int
    """changes applied since the copy"""
    rows: int
    """rows in the table"""
    schema: TableSchema
    """the source table's schema as the lake table has it"""
    compaction_facts: Facts = field(default=Facts(), compare=False)
    """facts for maintenance; may be some commits old"""
    version: LakeVersion = field(default=NO_VERSION, compare=False)
    """version of the lake commit; batches without effect move the position without a commit"""
    visibility: Visibility | None = None
    """the rows include transactions from `lsn` on that this snapshot sees; None: there are none"""

    def at(self, lsn: Lsn, manifest: int) -> Self:
        """The record of the same rows at a later position."""
        return replace(self, lsn=lsn, manifest=manifest, visibility=still_visible(self.visibility, lsn))


def still_visible(visibility: Visibility | None, lsn: Lsn) -> Visibility | None:
    """What a table at a position still needs of the snapshot of its copy."""
    return visibility if visibility is not None and lsn < visibility.until else None


@dataclass(frozen=True)
class Batch:
    """Changes of one table in contiguous manifests, to be applied in one commit."""

    to_lsn: Lsn
    to_manifest: int
    segments: tuple[tuple[str, Segment], ...]
    """URI or absolute path, and facts, in order"""
    truncations: tuple[Truncation, ...] = ()
    skip_before: Lsn | None = None
    """skip changes with a commit LSN below this: they are in the copy already"""
    schema: TableSchema | None = None
    """the table's columns after the batch; None: unchanged"""
    written: Mapping[int, TableSchema] = field(default_factory=dict)
    """schemas of the segments, by version, if they differ from the table's"""
    since: Lsn = ZERO
    """a commit at which the source had the schema that the table will have"""
    end_before: Lsn | None = None
    """skip changes with this commit LSN or a higher one: the batch ends within a transaction's segment"""
    left_out: frozenset[int] = frozenset()
    """skip changes in these partitions: their rows will be exchanged"""
    visibility: Visibility | None = None
    """skip changes of transactions that this snapshot sees: they are in the copy already"""

    @property
    def complete(self) -> bool:
        """Whether all changes of its segments belong to it."""
        return not (self.skip_before or self.end_before or self.left_out or self.visibility)

    def counts(self, change: Truncation) -> bool:
        """Whether a truncation belongs to it."""
        return change.commit_lsn >= (self.skip_before or 0) and not copied(change, self.visibility)

    def shape(self, segment: Segment, table: TableSchema) -> TableSchema:
        """The schema that a segment was written with."""
        return self.written.get(segment.schema, table)

    @property
    def rows(self) -> int:
        """Rows of its segments, and truncations."""
        return sum(segment.rows for _, segment in self.segments) + len(self.truncations)

    @property
    def changes(self) -> int:
        """Number of changes as they were made in the source."""
        return sum(segment.changes for _, segment in self.segments) + len(self.truncations)


def copied(change: Truncation | Refusal, visibility: Visibility | None) -> bool:
    """Whether a copy at the snapshot of an ordinary session includes a change."""
    if visibility is None or change.commit_lsn >= visibility.until:
        return False
    if change.xid is None:
        raise ValueError("the change has no xid, which a copy by visibility needs")
    return visibility.sees(change.commit_lsn, change.xid)


@dataclass(frozen=True)
class Into:
    """The destination of a copy."""

    table: TableId
    formerly: str | None = None
    """a dropped source table whose lake table may be taken over"""
    rows: bool = True
    """whether the source's rows are copied; False: start empty, or with the existing rows"""
    keep: bool = False
    """keep rows of partitions that the source has dropped"""
    least: int = 0
    """the lowest allowed version of the copy's commit"""


@dataclass(frozen=True)
class Exchange:
    """Partitions to copy, and rows of the lake table to replace."""

    copied: tuple[HeapFile, ...]
    replaced: tuple[str, ...]
    """conditions of Spark SQL"""
    left_out: frozenset[int]
    """partitions whose changes before the copy are skipped"""
    archived: tuple[Bounds, ...] = ()
    """bounds of dropped partitions whose rows are kept"""


@dataclass(frozen=True)
class Work:
    compact: bool
    expire: bool
    urgent: bool
    """do it before waiting changes, because without it every apply gets slower"""
    tidy: bool = False
    """drop every deleted row: the table is idle"""
