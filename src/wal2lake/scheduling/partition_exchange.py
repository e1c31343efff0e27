"""Exchanges single partitions of a table: applies changes up to a snapshot's position, then copies their rows at it.

    snapshot at C ──► partitions at C ──► changes up to C ──► one commit that replaces the rows within their bounds

Changes of those partitions before C are skipped, because the copy includes them. If bounds do not identify the rows,
the whole table is copied instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from ..changelog import Manifest
from ..errors import CommitFailed, CopyFailed, CopyNeeded, LakeInconsistent, RowsNotKept, Wal2LakeError
from ..evolution import (
    Incompatible,
    Unclear,
    attached,
    doubted,
    follow,
    moved,
    require_fillable,
    texts_differ,
    with_heaps,
)
from ..executor import Executor
from ..lake import Applied, Exchange, LakeTables, exchange, of_partitions
from ..position import ZERO, Lsn
from ..reconcile import Policy, unfollowed
from ..schema import TableSchema
from ..source import SourceDatabase
from ..source.sessions import Patience
from .batch_plan import LogView, Until, plan_batch

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1


class PartitionExchanges:
    """Runs on a worker's thread; the loop makes sure that the log reaches `awaited`."""

    def __init__(
        self, source: SourceDatabase, lake: LakeTables, view: LogView, patience: Patience,
        may_copy: Callable[[TableSchema], object], logged: Callable[[], Lsn], lost: Callable[[], bool],
        manifests: Callable[[int], Iterable[Manifest]], wake: Callable[[], object],
        epoch: Callable[[], int], executor: Executor,
    ) -> None:  # fmt: skip
        """`logged`: the position of the log; `lost`: whether the stream has a gap, so that it can't go on."""
        self._epoch, self._executor = epoch, executor
        self._source, self._lake, self._view, self._patience = source, lake, view, patience
        self._may_copy, self._manifests, self._wake = may_copy, manifests, wake
        self._logged, self._lost = logged, lost
        self._awaited: dict[int, Lsn] = {}

    @property
    def awaited(self) -> Lsn:
        """The highest position that work waits for the log to reach."""
        return max(list(self._awaited.values()), default=ZERO)

    def work(self, applied: Applied, policy: Policy) -> Applied:
        """The table at the position of a new snapshot, with the partitions of the source at that snapshot.

        Raises CopyNeeded if the whole table must be copied, and CopyFailed if it is to be retried.
        """
        oid = applied.schema.oid
        opened = self._source.open_snapshot(self._patience)
        try:
            snapshot = opened.snapshot
            if snapshot.visibility is not None:
                # Changes of other partitions are applied up to a position, and this snapshot does not equal one.
                cause = "single partitions can be exchanged only at the snapshot of a replication connection"
                raise CopyNeeded(table=str(applied.schema.id), cause=cause)
            with self._source.described_at(applied.schema, snapshot.name) as described:
                self._may_copy(described)
                try:
                    keep = policy.keep_partitions
                    # Also of those without rows: changes that were captured may be from before their ATTACH.
                    lake = doubted(applied.schema, described, attached(applied.schema, described))
                    until = Until(snapshot.lsn, _judged(lake, described, keep).left_out)
                    # From here on the lake table lacks changes of these partitions, which must survive a crash.
                    unknown = doubted(applied.schema, described, until.left_out)
                    at = self._lake.evolve(applied, unknown, self._source.table_id(oid), self._epoch())
                    at = self._with_columns(self._caught_up(at, until, policy), described, policy)
                    # The changes may have added partitions, and columns may have been renamed.
                    what = _judged(at.schema, described, keep)
                except (Incompatible, Unclear) as error:
                    raise unfollowed(applied.schema, error, policy) from error
                source = self._source.copy_source(of_partitions(described, what))
                log.info("%s: copying %d partitions at %s", at.schema.id, len(what.copied), snapshot.lsn)
                kept = tuple(dict.fromkeys((*at.schema.archived, *what.archived)))
                target = replace(with_heaps(at.schema, described), archived=kept)
                return self._lake.exchange(
                    at, source, snapshot, what, target, self._source.table_id(oid), self._epoch()
                )
        finally:
            self._awaited.pop(oid, None)
            opened.close()

    def _caught_up(self, applied: Applied, until: Until, policy: Policy) -> Applied:
        """The table with all changes up to the snapshot that do not belong to the exchange."""
        oid = applied.schema.oid
        self._awaited[oid] = until.lsn
        self._wake()
        while self._logged() < until.lsn:
            if self._patience.stopped():
                raise CommitFailed(table=str(applied.schema.id), cause="the run ends")
            if self._lost():
                # A new slot is created, and the table re-copied, only when no work is running.
                cause = "the stream was lost before all changes up to its snapshot were captured"
                raise CopyFailed(table=str(applied.schema.id), cause=cause, sqlstate=None, unfit=False)
            self._executor.sleep(_LOOK_SECONDS)
        while applied.lsn < until.lsn:
            planned = plan_batch(applied, self._manifests(oid), self._view, policy=policy, exchanged=until)
            if planned.attached and (planned.batch is None or planned.batch.to_lsn == applied.lsn):
                raise _not_exchangeable(applied.schema, planned.attached, policy)
            if planned.batch is None:
                if planned.obstacle is not None:
                    raise planned.obstacle
                break
            if planned.batch.segments or planned.batch.truncations:
                for _, segment in planned.batch.segments:
                    self._view.verify(segment)
                try:
                    applied = self._lake.apply(applied, planned.batch, self._source.table_id(oid), self._epoch())
                except LakeInconsistent as error:
                    cause = "changes refer to rows of a partition that was attached and detached again"
                    raise CopyNeeded(table=str(applied.schema.id), cause=cause) from error
            else:
                batch = planned.batch
                applied = applied.at(batch.to_lsn, batch.to_manifest)
            if planned.obstacle is not None and applied.lsn < until.lsn:
                raise planned.obstacle
        return applied

    def _with_columns(self, applied: Applied, described: TableSchema, policy: Policy) -> Applied:
        if (altered := texts_differ(applied.schema, described)) is not None:
            raise Incompatible(altered)
        target = follow(applied.schema, described, policy.keep_dropped)
        require_fillable(applied.schema, target)
        if target == applied.schema:
            return applied
        return self._lake.evolve(applied, target, self._source.table_id(applied.schema.oid), self._epoch())


def _not_exchangeable(lake: TableSchema, partitions: Collection[int], policy: Policy) -> Wal2LakeError:
    """The error if partitions of a lake table have changes that may not be its own, and are not in the source."""
    if policy.keep_partitions and any(heap.oid in partitions for heap in lake.heaps):
        # Rows that are kept can't be copied, and these changes may be theirs.
        return RowsNotKept(table=str(lake.id))
    cause = "a partition was attached and detached again, and has changes of that time"
    return CopyNeeded(table=str(lake.id), cause=cause)


def _judged(lake: TableSchema, described: TableSchema, keep: bool) -> Exchange:
    """The exchange to make; an empty one if what was seen before was undone."""
    partitions = moved(lake, described)
    if partitions is None:
        return Exchange((), (), frozenset())
    if (found := exchange(lake, described, partitions, keep)) is None:
        raise Incompatible(str(partitions))
    return found
