"""The segments of the next manifest: which ones grow, which are finished, and which the manifest may name.

Rows of a transaction that has not committed are kept out of the segments of complete transactions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..changelog import CommitStamp, ManifestEntry, Segment, SegmentRows, SegmentWriter
from ..decode import Boundary, DecodedTable, Refusals
from ..executor import Future, Pool
from ..position import Lsn
from ..schema import Membership

T = TypeVar("T")
Decoded = tuple[DecodedTable | None, Refusals]


@dataclass(eq=False)
class GrowingSegment:
    """A segment that is being written, and the thread that writes it."""

    oid: int
    writer: SegmentWriter
    thread: Pool
    size: int = 0
    refusals: Refusals = field(default_factory=Refusals)
    """of its rows; only the writing thread uses it until the segment is finished"""
    finished: Future[Segment | None] | None = None

    def take(self, decoded: Future[Decoded]) -> Future[None]:
        """Write rows as soon as they are decoded, after those taken before."""
        return self.thread.submit(self._write, decoded)

    def finish(self, commit: CommitStamp | None = None) -> None:
        if self.finished is None:
            self.finished = self.thread.submit(self._finish, commit)

    def _write(self, decoded: Future[Decoded]) -> None:
        table, refusals = decoded.result()
        self.refusals.add(refusals)
        if table is not None and table.batch.num_rows:
            self.writer.write(
                SegmentRows(
                    table.schema.oid, table.version, table.batch, table.inserts, table.updates, table.deletes,
                    table.key_changes, table.unchanged, _leaves(table), table.split,
                )
            )  # fmt: skip

    def _finish(self, commit: CommitStamp | None) -> Segment | None:
        """None if no row could be decoded."""
        if commit is not None:
            self.refusals = self.refusals.stamped(Lsn(commit.lsn))
        if not self.writer.rows:
            self.writer.discard()
            return None
        return self.writer.finish(commit)


@dataclass
class OpenSegments:
    """The segments of the next manifest."""

    complete: list[GrowingSegment] = field(default_factory=list)
    """segments of whole transactions only, while an open transaction has segments of its own"""
    grown: list[GrowingSegment] = field(default_factory=list)
    """in the order in which they were started"""
    growing: dict[tuple[int, int], GrowingSegment] = field(default_factory=dict)
    """segments that take more rows, by table and schema version"""
    uncertain: bool = False
    """`grown` holds rows of a transaction that has not committed"""

    @property
    def empty(self) -> bool:
        """Whether no row of a complete transaction waits for a manifest."""
        return not self.complete and (self.uncertain or not self.grown)

    def turn(self, certain: bool) -> None:
        """Keep the rows of an open transaction out of the segments of complete ones."""
        if not certain and not self.uncertain:
            self.complete += self._closed()
        self.uncertain = not certain

    def append_committed(self, segments: list[GrowingSegment], commit: CommitStamp) -> None:
        """Add the segments of a transaction that has committed, after those of earlier ones."""
        self.complete += self._closed()
        for each in segments:
            each.finish(commit)
        self.complete += segments

    def take(self) -> list[GrowingSegment]:
        """The segments of complete transactions."""
        if not self.uncertain:
            self.complete += self._closed()
        taken, self.complete = self.complete, []
        for each in taken:
            each.finish()
        return taken

    def _closed(self) -> list[GrowingSegment]:
        grown, self.grown, self.growing = self.grown, [], {}
        for each in grown:
            each.finish()
        return grown


def tables_of(
    cut: Boundary, segments: Sequence[GrowingSegment], names: Mapping[int, str],
    attached: Mapping[int, tuple[Membership, ...]], doubts: Mapping[int, frozenset[int]],
) -> dict[int, ManifestEntry]:  # fmt: skip
    """What a manifest says of each table. Waits until the segments are on disk.

    `doubts`: partitions, with tables that may have had them besides the one that their changes are given to.
    """
    by_table: defaultdict[int, list[Segment]] = defaultdict(list)
    refusals: defaultdict[int, Refusals] = defaultdict(Refusals)
    for oid, some in cut.refusals.items():
        for refusal in some:
            refusals[oid].note(refusal)
    for each in segments:
        assert each.finished is not None
        if (segment := each.finished.result()) is not None:
            by_table[each.oid].append(segment)
        if each.refusals:
            refusals[each.oid].add(each.refusals)
    oids = sorted({*by_table, *cut.truncations, *refusals})
    entries = (
        ManifestEntry(
            oid, names.get(oid, str(oid)), tuple(by_table[oid]), tuple(cut.truncations.get(oid, ())),
            tuple(refusals[oid]),
        )
        for oid in oids
    )  # fmt: skip
    found = {entry.oid: replace(entry, attached=_of(entry.partitions, attached)) for entry in entries}
    for leaf in sorted({leaf for entry in found.values() for leaf in entry.partitions} & doubts.keys()):
        for oid in sorted(doubts[leaf]):
            entry = found.get(oid, ManifestEntry(oid, names.get(oid, str(oid))))
            found[oid] = replace(entry, doubted=(*entry.doubted, leaf))
    return found


def _of(partitions: Iterable[int], attached: Mapping[int, T]) -> dict[int, T]:
    return {leaf: attached[leaf] for leaf in sorted(partitions) if leaf in attached}


def _leaves(table: DecodedTable) -> frozenset[int]:
    """The partitions whose changes are in it."""
    if not table.schema.partitioned:
        return frozenset()
    found = table.batch.column(table.schema.meta.relation).unique().to_pylist()
    return frozenset(oid for oid in found if oid is not None)
