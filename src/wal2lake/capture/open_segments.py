"""The segments of a manifest to come: which grow, which are finished, and what of them a manifest may name.

Rows of a transaction whose commit has not come stay out of the segments of those that are complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from ..changelog import Segment, TableCut
from ..changelog.segment import Rows, SegmentWriter
from ..changelog.stamp import Commit
from ..decode import Cut, DecodedTable, Refusals
from ..position import Lsn

Decoded = tuple[DecodedTable | None, Refusals]


@dataclass(eq=False)
class OpenSegment:
    """A segment that is being written, and the thread that writes it."""

    oid: int
    writer: SegmentWriter
    thread: ThreadPoolExecutor
    size: int = 0
    refusals: Refusals = field(default_factory=Refusals)
    """of its rows; they are the thread's until it is finished"""
    finished: Future[Segment | None] | None = None

    def take(self, decoded: Future[Decoded]) -> Future[None]:
        """Have rows written when they are decoded, after those taken before."""
        return self.thread.submit(self._write, decoded)

    def finish(self, commit: Commit | None = None) -> None:
        if self.finished is None:
            self.finished = self.thread.submit(self._finish, commit)

    def _write(self, decoded: Future[Decoded]) -> None:
        table, refusals = decoded.result()
        self.refusals.add(refusals)
        if table is not None and table.batch.num_rows:
            self.writer.write(
                Rows(
                    table.schema.oid, table.version, table.batch, table.inserts, table.updates, table.deletes,
                    table.key_changes, table.unchanged, _leaves(table), table.split,
                )
            )  # fmt: skip

    def _finish(self, commit: Commit | None) -> Segment | None:
        """None where no row could be decoded."""
        if commit is not None:
            self.refusals = self.refusals.stamped(Lsn(commit.lsn))
        if not self.writer.rows:
            self.writer.discard()
            return None
        return self.writer.finish(commit)


@dataclass
class OpenSegments:
    """The segments of the manifest to come."""

    complete: list[OpenSegment] = field(default_factory=list)
    """with whole transactions only, though one is open that has segments of its own"""
    grown: list[OpenSegment] = field(default_factory=list)
    """in the order in which they were begun"""
    growing: dict[tuple[int, int], OpenSegment] = field(default_factory=dict)
    """those that take more rows, by table and schema version"""
    uncertain: bool = False
    """`grown` holds rows of a transaction whose commit has not come"""

    @property
    def empty(self) -> bool:
        """Whether no row of a whole transaction waits for a manifest."""
        return not self.complete and (self.uncertain or not self.grown)

    def turn(self, certain: bool) -> None:
        """Keep an open transaction's rows out of the segments of those that are complete."""
        if not certain and not self.uncertain:
            self.complete += self._closed()
        self.uncertain = not certain

    def adopt(self, segments: list[OpenSegment], commit: Commit) -> None:
        """Take segments of a transaction that has committed, after those of the ones before it."""
        self.complete += self._closed()
        for each in segments:
            each.finish(commit)
        self.complete += segments

    def take(self) -> list[OpenSegment]:
        """Those of whole transactions."""
        if not self.uncertain:
            self.complete += self._closed()
        taken, self.complete = self.complete, []
        for each in taken:
            each.finish()
        return taken

    def _closed(self) -> list[OpenSegment]:
        grown, self.grown, self.growing = self.grown, [], {}
        for each in grown:
            each.finish()
        return grown


def tables_of(cut: Cut, segments: Sequence[OpenSegment], names: dict[int, str]) -> dict[int, TableCut]:
    """What each table has in a manifest. Waits until the segments are on disk."""
    by_table: defaultdict[int, list[Segment]] = defaultdict(list)
    refusals: defaultdict[int, Refusals] = defaultdict(Refusals)
    for each in segments:
        assert each.finished is not None
        if (segment := each.finished.result()) is not None:
            by_table[each.oid].append(segment)
        if each.refusals:
            refusals[each.oid].add(each.refusals)
    oids = sorted({*by_table, *cut.truncations, *refusals})
    return {
        oid: TableCut(
            oid, names.get(oid, str(oid)), tuple(by_table[oid]), tuple(cut.truncations.get(oid, ())),
            tuple(refusals[oid]),
        )
        for oid in oids
    }  # fmt: skip


def _leaves(table: DecodedTable) -> frozenset[int]:
    """The partitions that the changes of a table are in."""
    if not table.schema.partitioned:
        return frozenset()
    found = table.batch.column(table.schema.meta.relation).unique().to_pylist()
    return frozenset(oid for oid in found if oid is not None)
