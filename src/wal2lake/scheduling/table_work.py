"""Work on the lake tables of a group: which one is copied, applied to, altered or maintained next, and the results.

Decisions are made on the loop's thread; the work runs on the workers that all groups share.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..changelog import Backlog, ChangeLog
from ..config import Config, GroupConfig
from ..errors import ChangeLogDamaged, CopyNeeded, LakeInconsistent, SparkLost, Wal2LakeError, advise
from ..evolution import Incompatible, Unclear, follow, moved, texts_differ
from ..executor import Event, Executor
from ..lake import Applied, Batch, LakeTables
from ..observe import Progress
from ..position import Lsn
from ..quoting import shell
from ..reconcile import ExchangeNeeded, LakeNames, Renaming, SchemaChanges, TableRegistry, TableRuntime, unfollowed
from ..schema import TableSchema
from ..source import SourceDatabase
from ..source.sessions import Patience
from ..source.tables import require_masks
from ..state import Lease, StateStore
from ..state.lifecycle import Mode, TableState
from .batch_plan import LogView, plan_batch
from .cadence import Cadence
from .capture_link import CaptureLink
from .initial_copies import Copies, OpenSnapshot, rounds
from .maintenance_queue import MaintenanceQueue
from .partition_exchange import PartitionExchanges
from .worker_pool import TableJobs, Workers, outcome

log = logging.getLogger(__name__)

ONCE_ATTEMPTS = 3


@dataclass(frozen=True)
class GroupParts:
    """What the loop of a group and the work on its tables share."""

    executor: Executor
    source: SourceDatabase
    log: ChangeLog
    backlog: Backlog
    lake: LakeTables
    store: StateStore
    lease: Lease
    tables: TableRegistry
    lake_names: LakeNames
    renaming: Renaming
    capture: CaptureLink
    schema_changes: SchemaChanges
    wake: Event
    stopping: Event


class TableWork:
    def __init__(
        self, parts: GroupParts, config: Config, group: GroupConfig, progress: Progress, workers: Workers
    ) -> None:
        self.group, self._settings = group, config.tables
        self._source, self._log, self._backlog, self._lake = parts.source, parts.log, parts.backlog, parts.lake
        self._store, self._lease, self._tables, self._renaming = parts.store, parts.lease, parts.tables, parts.renaming
        self._capture, self._schema_changes, self._stopping = parts.capture, parts.schema_changes, parts.stopping
        self._view = LogView.of(self._log)
        executor = parts.executor
        self._clock = executor.clock
        patience, done = Patience(parts.stopping.is_set), parts.wake.set
        self._jobs = TableJobs(workers.applies, done, executor)
        self._copies = Copies(
            workers.copies, self._source, self._lake, progress, self._may_copy, self._copied, done, patience,
            parts.lake_names, lambda schema: self._schema_changes.policy(schema).keep_partitions,
            lambda: self._lease.epoch, executor,
        )  # fmt: skip
        self._exchanges = PartitionExchanges(
            self._source, self._lake, self._view, patience, self._may_copy, lambda: self._capture.logged,
            lambda: self._capture.lost is not None, self._backlog.waiting, done, lambda: self._lease.epoch, executor,
        )  # fmt: skip
        self._maintenance_queue = MaintenanceQueue(self._lake, self._clock)
        self._cadence = Cadence(group, config.tables)
        self.until: Lsn | None = None
        """the position that `run --once` must reach"""
        self.deferred = False
        """partitions of a table must be exchanged, and no worker was free"""

    def end_at(self, position: Lsn) -> None:
        """This is `run --once`, which ends when the tables have reached a position."""
        self.until = position

    def start(self) -> None:
        """Start work on the lake; during a restart of Spark all of it waits."""
        if self._capture.lost is None:
            self._tables.retry_interrupted()
            self._tables.retry()
        if not self._lease.recent:
            # Another process may be writing these tables.
            return
        self.copy_pending()
        for table in self._tables.awake:
            self._enqueue_if_due(table)
        self._start_applies()
        self._start_evolving()
        self._start_maintenance()

    def close(self) -> None:
        def cancel() -> None:
            self._lake.cancel([table.target for table in self._tables.awake if table.job is not None])

        cancel()
        self._copies.close(cancel)
        self._jobs.close(cancel)

    def finish_jobs(self) -> None:
        for table in (*self._copies.ended(), *self._jobs.ended()):
            result = outcome(table.end_job())
            self._schema_changes.ended(table.schema.oid, result.lsn if isinstance(result, Applied) else None)
            if table is self._maintenance_queue.under_way:
                self._maintained(table, result)
            elif table in self._renaming:
                self._renamed(table, result)
            elif isinstance(result, Applied):
                if table.state is TableState.SNAPSHOT and self._capture.lost is not None:
                    # A copy that was made while the stream was lost has no changes to continue with.
                    table.request_copy()
                self._finished(table, result)
                self._maintenance_queue.committed(table)
            elif self._stopping.is_set():
                table.abandon()
            elif result is not None:
                self._fail(table, result)

    # ---- copying

    def copy_pending(self, opened: OpenSnapshot | None = None) -> None:
        pending = [
            table for table in self._tables.awake
            if table.copy_may_begin and table.job is None and not table.paused
            and (opened is not None or self._is_streamed(table))
        ]  # fmt: skip
        # Another table may have to release the name first; a dropped one first gets what was captured of it.
        pending, hindered = self._renaming.ready(pending)
        for table, error in hindered:
            self._fail(table, error, copy_blocked=True)
        # A new slot exists; an older one may be lost, and then a copy would be useless.
        followed = opened is not None or self._capture.connected
        if not pending or not followed or self._capture.lost is not None:
            if opened is not None:
                opened.close()
            self._copies.leave_queue()
            return
        if opened is not None:
            self._begin_copies(pending, opened)
            return
        for tables in rounds(pending):
            if not self._copies.may_start:
                return
            self._begin_copies(tables)
        self._copies.leave_queue()

    def _is_streamed(self, table: TableRuntime) -> bool:
        """Whether the stream has the publication of a table."""
        second = self._source.append_only(table.schema) or table.record.mode is Mode.TRIGGER
        return self._capture.appends or not second or self.group.triggers

    def _begin_copies(self, tables: Sequence[TableRuntime], opened: OpenSnapshot | None = None) -> None:
        # A snapshot that is opened later includes what was seen; that of a new slot only what was before it.
        seen = self._backlog.seen if opened is None else self._log.stretch.copied
        for table in tables:
            # Manifests that a copy includes are deleted only from here on: waiting copies hold nothing.
            table.begin_copy(seen)
        self._copies.start(tables, opened)

    def _may_copy(self, schema: TableSchema) -> None:
        require_masks(self._settings, self._log.schemas.last(schema.oid), schema)

    def _copied(self, table: TableRuntime) -> None:
        try:
            if self._capture.lost is None:
                self._store.resync_done(self.group.name, table.schema.oid, table.copying_for)
        except Wal2LakeError as error:
            # It counts, as the request may have been ended: a table that waits for a copy does not keep its changes.
            log.warning("%s is copied; it may be copied once more: %s", table.name, error)

    # ---- applying

    def _enqueue_if_due(self, table: TableRuntime) -> None:
        """Queue a table for a worker if changes wait for it."""
        renamed = self._renaming.step(table)
        if isinstance(renamed, Wal2LakeError):
            self._not_renamed(table, renamed)
        elif renamed is not None:
            self._jobs.enqueue(table)
            return
        applied = table.applied
        if table.job is not None or applied is None or table.resync:
            return
        if table.retention.as_partition is not None:
            self._look_at_former_partition(table, applied.lsn)
        if not table.active or table.resync:
            return
        catching_up = table.state is TableState.CATCHUP and (
            self._schema_changes.awaits_exchange(table) or not table.caught_up(self._capture.logged)
        )
        if catching_up and table.waiting is None:
            self._capture.request_position()
        if self._commit_due(table, applied):
            self._jobs.enqueue(table)

    def _look_at_former_partition(self, table: TableRuntime, lsn: Lsn) -> None:
        """It was attached somewhere and detached again, unseen: changes of that time are in the other table's log."""
        if not self._backlog.captured_as_partition(table.schema.oid, lsn):
            table.note_partition(None)
        elif table.active:
            self._fail(table, CopyNeeded(table=table.name, cause="it was a partition of another table for a while"))
        else:
            self.request_copy(table)

    def _commit_due(self, table: TableRuntime, applied: Applied) -> bool:
        if table.waiting is None:
            return False
        if self.until is not None or table.state is TableState.CATCHUP or table.is_leaving:
            return True
        if self._capture.freshness.too_soon(table.began):
            return False
        waiting = self._backlog.after(table.schema.oid, applied.manifest)
        committed = table.record.last_commit_at
        return self._cadence.due(table.schema, committed, waiting, self._clock.now())

    def _start_applies(self) -> None:
        if not self._jobs.called or (self.until is None and not self._capture.fresh()):
            return
        while (table := self._jobs.next()) is not None:
            applied = table.applied
            if self._tables.get(table.schema.oid) is not table:
                # It was removed while queued, and may belong to another group.
                continue
            if (rename := self._renaming.begin(table)) is not None:
                self._jobs.start(table, rename)
                continue
            if not table.active or table.job is not None or applied is None or table.resync:
                continue
            if self._maintenance_queue.urgent(applied):
                self._maintain(table, applied)
                continue
            waiting = self._backlog.after(table.schema.oid, applied.manifest)
            policy = self._schema_changes.policy(table.schema)
            try:
                planned = plan_batch(applied, waiting, self._view, newest=self._backlog.newest, policy=policy)
            except ChangeLogDamaged as error:
                of_segment = str(error.fields.get("path")).endswith(".parquet")
                if not of_segment:
                    self._capture.lose(error)
                self._fail(table, damaged_for(table.name, error) if of_segment else error)
                continue
            if planned.batch is not None:
                self._schema_changes.applying(table.schema.oid, planned.batch)
                self._jobs.start(table, partial(self._apply, table.name, applied, planned.batch))
            elif planned.attached:
                self._schema_changes.exchanging(table.schema.oid)
                self._jobs.start(table, partial(self._exchanges.work, applied, policy))
            elif planned.obstacle is not None:
                self._fail(table, planned.obstacle)

    def _apply(self, name: str, applied: Applied, batch: Batch) -> Applied:
        if not batch.segments and not batch.truncations:
            return applied.at(batch.to_lsn, batch.to_manifest)
        try:
            for _, segment in batch.segments:
                self._log.verify(segment)
            return self._lake.apply(applied, batch, self._source.table_id(applied.schema.oid), self._lease.epoch)
        except ChangeLogDamaged as error:
            raise damaged_for(name, error) from None
        except LakeInconsistent as error:
            if (exchanged := self._explain_by_source(applied)) is not None:
                return exchanged
            raise error from error.__cause__

    def _explain_by_source(self, applied: Applied) -> Applied | None:
        """Changes refer to rows that the lake table lacks. These may have come with a partition, which is then copied
        first, or differ because of a change of columns that no row has shown.

        Returns None if nothing in the source explains it. Raises the error to handle.
        """
        oid = applied.schema.oid
        for schema in self._source.describe([oid]):
            policy = self._schema_changes.policy(schema)
            if moved(applied.schema, schema) is not None:
                self._schema_changes.exchanging(oid)
                return self._exchanges.work(applied, policy)
            try:
                if (altered := texts_differ(applied.schema, schema)) is not None:
                    raise Incompatible(altered)
                follow(applied.schema, schema)
            except (Incompatible, Unclear) as error:
                raise unfollowed(applied.schema, error, policy) from None
        return None

    def _start_evolving(self) -> None:
        """Apply changes of columns that no row has shown."""
        self.deferred = False
        if self._capture.lost is not None:
            return
        if self._schema_changes.waits(self._capture.logged):
            self._capture.request_position()
        if self._exchanges.awaited > self._capture.logged:
            self._capture.request_flush(self._exchanges.awaited)
        for table, target in self._schema_changes.due(self._tables, self._capture.logged):
            if isinstance(target, Wal2LakeError):
                self._tables.wake(table)
                self._fail(table, target)
            elif isinstance(target, ExchangeNeeded):
                self._tables.wake(table)
                table.partitions_moved()
                self._start_exchange(table)
            elif table.applied is not None:
                self._tables.wake(table)
                self._jobs.start(table, partial(self._evolve, table.applied, target))

    def _evolve(self, applied: Applied, schema: TableSchema) -> Applied:
        return self._lake.evolve(applied, schema, self._source.table_id(schema.oid), self._lease.epoch)

    def _start_exchange(self, table: TableRuntime) -> None:
        """Let a worker copy partitions whose rows are in no changes, when one is free."""
        if table.applied is None or not self._copies.may_start:
            self.deferred = True
            return
        self._schema_changes.exchanging(table.schema.oid)
        policy = self._schema_changes.policy(table.schema)
        self._copies.start_part(table, partial(self._exchanges.work, table.applied, policy))

    def _renamed(self, table: TableRuntime, result: object) -> None:
        self._renaming.finish(table, result)
        if isinstance(result, BaseException) and not self._stopping.is_set():
            self._not_renamed(table, result)

    def _not_renamed(self, table: TableRuntime, error: BaseException) -> None:
        table.not_renamed()
        if table.paused:
            log.warning("%s: its lake table can't be renamed: %s", table.name, advise(error).message)
        else:
            self._fail(table, error)

    def _start_maintenance(self) -> None:
        # `run --once` leaves maintenance to runs that go on.
        if self.until is None and self._capture.lost is None and self._jobs.idle:
            table = self._maintenance_queue.next(self._tables)
            if table is not None and table.applied is not None:
                self._maintain(table, table.applied)

    def _maintain(self, table: TableRuntime, applied: Applied) -> None:
        self._maintenance_queue.begin(table)
        self._tables.wake(table)
        self._jobs.start(table, partial(self._lake.maintain, applied, self._source.table_id(table.schema.oid)))

    def _finished(self, table: TableRuntime, result: Applied) -> None:
        if table.state is TableState.SNAPSHOT:
            self._schema_changes.copied(table.schema.oid, result.lsn)
        table.set_target(result.schema.id)
        table.finish(result, self._backlog.after(table.schema.oid, result.manifest))

    def _maintained(self, table: TableRuntime, result: Applied | BaseException | None) -> None:
        if isinstance(result, BaseException):
            log.warning("%s: its maintenance did not succeed: %s", table.name, advise(result).message)
        self._maintenance_queue.finish(table, result if isinstance(result, Applied) else None)

    def _fail(self, table: TableRuntime, error: BaseException, copy_blocked: bool = False) -> None:
        advice = advise(error.about(table.name) if isinstance(error, Wal2LakeError) else error)
        if not table.failed_by(advice):
            # A re-copy that starts without a command needs no attention.
            level = logging.WARNING if isinstance(error, CopyNeeded | SparkLost) else logging.ERROR
            log.log(level, "%s", advice.message if table.name in advice.message else f"{table.name}: {advice.message}")
        log.debug("the cause", exc_info=error)
        at_once = self.until is not None and table.record.failures < ONCE_ATTEMPTS - 1
        table.fail(advice, at_once, copy_blocked)
        if isinstance(error, CopyNeeded) and table.dropped_at is None:
            self.request_copy(table)

    def request_copy(self, table: TableRuntime) -> None:
        """Request a re-copy durably: the changes before it are deleted."""
        try:
            table.request_copy(self._store.request_resync([table.record], quietly=True))
        except Wal2LakeError as error:
            log.warning("%s: the re-copy has to wait: %s", table.name, error)


def damaged_for(table: str, error: ChangeLogDamaged) -> ChangeLogDamaged:
    """A damaged segment affects only its table."""
    return ChangeLogDamaged(
        **error.fields, remedy=f"re-copy the table it belongs to with: wal2lake tables resync {shell(table)}"
    )
