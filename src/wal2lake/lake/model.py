"""What the lake is asked to do and what it answers: plain values, nothing of Spark in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..changelog.manifest import Segment, Truncation
from ..position import NO_VERSION, ZERO, LakeVersion, Lsn
from ..schema import TableId, TableSchema
from .compaction_policy import Facts


@dataclass(frozen=True)
class Applied:
    """The record that is written in a table's own lake commit: the table equals the source at `lsn`."""

    lsn: Lsn
    manifest: int
    """number of the last manifest that is in the table; the copy writes the last one published before it, or 0"""
    changes: int
    """changes applied since the copy"""
    rows: int
    """rows in the table"""
    schema: TableSchema
    """the source table's schema as the lake table has it"""
    compaction_facts: Facts = field(default=Facts(), compare=False)
    """what tells whether the table needs maintenance; may be some commits old"""
    version: LakeVersion = field(default=NO_VERSION, compare=False)
    """of the lake's commit; batches without effect move the position without one"""


@dataclass(frozen=True)
class Batch:
    """Changes of one table over contiguous manifests, to be applied in one commit."""

    to_lsn: Lsn
    to_manifest: int
    segments: tuple[tuple[Path, Segment], ...]
    """absolute path and facts, in order"""
    truncations: tuple[Truncation, ...] = ()
    skip_before: Lsn | None = None
    """ignore changes with a commit LSN below this: they are in the copy already"""
    schema: TableSchema | None = None
    """what the table's columns are to be before the changes come into it; None: they stay"""
    written: Mapping[int, TableSchema] = field(default_factory=dict)
    """schemas of the segments, by version, where they are not the table's"""
    since: Lsn = ZERO
    """a commit at which the source had the schema that the table is to have"""
    end_before: Lsn | None = None
    """ignore changes with this commit LSN or a higher one: the batch ends within a transaction's segment"""
    left_out: frozenset[int] = frozenset()
    """ignore changes in these partitions: their rows are to be exchanged as a whole"""

    @property
    def complete(self) -> bool:
        """Whether all changes of its segments are part of it."""
        return not (self.skip_before or self.end_before or self.left_out)

    def shape(self, segment: Segment, table: TableSchema) -> TableSchema:
        """The schema that a segment was written with."""
        return self.written.get(segment.schema, table)

    @property
    def rows(self) -> int:
        """Rows of its segments and truncations: what there is to read."""
        return sum(segment.rows for _, segment in self.segments) + len(self.truncations)

    @property
    def changes(self) -> int:
        """As they were made in the source."""
        return sum(segment.changes for _, segment in self.segments) + len(self.truncations)


@dataclass(frozen=True)
class Into:
    """The lake table that a copy goes into."""

    table: TableId
    formerly: str | None = None
    """a source table that is gone, whose lake table this one may take over"""
    rows: bool = True
    """whether the source's rows are read; False: it begins empty, or with what is there"""
    keep: bool = False
    """rows of partitions that the source has no more stay"""
    least: int = 0
    """the lowest number that the copy's commit may have"""
