"""The loop of one group: brings its tables from PENDING to STREAMING and keeps them there.

    catalog, commands ──► wanted tables ──► copy (at an exported snapshot, some tables at the same time)
    capture process ──► manifests ──► apply (one job at a time for a table, several tables at once)

It only decides and keeps the books; the capture process reads the source, the lake does the work on Spark. Everything
that it keeps in memory can be read again from the lake's commits and the change log, so it may die at any moment.
A turn costs what has happened since the last: tables at rest are not looked at, and what may wait for a disk or a
server is done beside the loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from ..changelog import ChangeLog, verify
from ..changelog.backlog import Backlog
from ..config import Config, GroupConfig
from ..errors import (
    Advice,
    ChangeLogDamaged,
    CopyNeeded,
    GroupHeld,
    LakeInconsistent,
    SourceError,
    SparkLost,
    Wal2LakeError,
    advise,
)
from ..evolution import Incompatible, Unclear, follow, moved, texts_differ
from ..lake import Lake
from ..lake.model import Applied, Batch
from ..observe.progress import Progress
from ..position import ZERO, Lsn
from ..quoting import shell
from ..reconcile.change_policy import unfollowed
from ..reconcile.desired_state import DesiredStateReader
from ..reconcile.desired_tables import Naming
from ..reconcile.handover import Handovers
from ..reconcile.lake_names import LakeNames
from ..reconcile.reconciler import Reconciler
from ..reconcile.registry import TableRegistry
from ..reconcile.renaming import Renaming
from ..reconcile.schema_changes import ExchangeNeeded, SchemaChanges
from ..reconcile.table_runtime import TableRuntime
from ..schema import TableSchema
from ..source import selection
from ..source.database import Source
from ..source.locking import Patience
from ..state import GroupLease, StateStore, TableRecord, TableSpec
from ..state.lifecycle import GroupState, TableState
from .background import BackgroundTasks
from .batch_plan import LogView, plan
from .cadence import Cadence
from .capture_link import CaptureLink
from .initial_copies import Copies, OpenSnapshot, rounds
from .maintenance_queue import MaintenanceQueue
from .partition_exchange import PartitionExchanges
from .state_writer import StateWriter
from .worker_pool import TableJobs, Workers, outcome

log = logging.getLogger(__name__)

TURN_SECONDS = 0.5
ONCE_ATTEMPTS = 3


class Stop(Protocol):
    """Says when to stop."""

    def is_set(self) -> bool: ...


class GroupLoop:
    def __init__(
        self, config: Config, group: GroupConfig, lake: Lake, store: StateStore, progress: Progress,
        workers: Workers, resync_on_gap: bool = False,
    ) -> None:  # fmt: skip
        self.group = group
        self._lake, self._store, self._resync_on_gap = lake, store, resync_on_gap
        self._settings = config.tables
        self._source = Source(config, group)
        self._log = ChangeLog(config.changelog_path, group.name)
        self._view = LogView(self._log.schema, self._log.path, self._log.commits, self._log.begins)
        self._backlog = Backlog(self._log)
        self._lease = GroupLease(store.dsn, group.name)
        naming = Naming.of(config, group)
        self._lake_names = LakeNames(self._source, lake, naming)
        self._tables = TableRegistry(
            group.name, self._source, store, lake, self._log, self._backlog, self._lake_names,
            f"run ({self._lease.holder})", self._lease.raise_epoch,
        )  # fmt: skip
        self._renaming = Renaming(self._lake_names, self._tables)
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._stop: Stop = self._stopping
        self._patience = Patience(self._told_to_stop, self._waits)
        self._jobs = TableJobs(workers.applies, self._wake.set)
        self._copies = Copies(
            workers.copies, self._source, lake, progress, self._may_copy, self._copied, self._wake.set,
            Patience(self._stopping.is_set), self._lake_names,
            lambda schema: self._schema_changes.policy(schema).keep_partitions, lambda: self._lease.epoch,
        )  # fmt: skip
        self._exchanges = PartitionExchanges(
            self._source, lake, self._view, Patience(self._stopping.is_set), self._may_copy,
            lambda: self._capture.logged, self._backlog.waiting, self._wake.set, lambda: self._lease.epoch,
        )  # fmt: skip
        self._background = BackgroundTasks(group.name, self._wake.set)
        self._maintenance_queue = MaintenanceQueue(lake)
        self._schema_changes = SchemaChanges(config, group)
        self._cadence = Cadence(group, config.tables)
        witness = self._log.witness if config.state.dsn is None else None
        self._state_writer = StateWriter(group.name, self._tables, store, self._background, witness)
        self._capture = CaptureLink(
            config, group, self._source, self._log, self._backlog, self._state_writer, self._wake.set, self._patience,
            resync_on_gap,
        )  # fmt: skip
        handovers = Handovers(
            group.name, self._source, store, lake, self._log, self._backlog, self._tables, self._lease.raise_epoch
        )
        desired_state = DesiredStateReader(group.name, self._source, store, naming, self._log)
        self._reconciler = Reconciler(
            desired_state, self._tables, handovers, self._schema_changes, self._background, self._drop_lake
        )
        self._until: Lsn | None = None
        self._deferred = False
        """partitions of a table are to be exchanged, and no worker was free"""
        self._ousted: GroupHeld | None = None
        self._failed: Advice | None = None

    # ---- the life of a run

    def run(self, stop: Stop, once: bool = False) -> tuple[TableRecord, ...]:
        """Mirror until `stop` is set; with `once`, until all that was committed at the start is applied."""
        try:
            self._stop = stop
            self._begin(once)
            while not stop.is_set():
                self._wake.clear()
                self._step()
                if self._settled():
                    break
                self._wake.wait(self._capture.freshness.awaited or TURN_SECONDS)
        except Exception as error:
            self._failed = advise(error)
            if not stop.is_set():
                raise
            # A stop cuts off whatever is under way, and what is cut off fails.
            log.debug("group %s was stopped", self.group.name, exc_info=True)
        finally:
            self._end()
        return tuple(table.record for table in self._tables if not table.arriving)

    def _begin(self, once: bool) -> None:
        self._lease.take()
        self._store.create()
        self._lease.raise_epoch()
        self._state_writer.note(slot=self._source.slot_name, holder=self._lease.holder, error=None, remedy=None)
        self._state_writer.save_now(ZERO)
        # Before anything of the group's name is changed in the source.
        self._capture.require_own_slot()
        wanted = self._reconciler.first_look(self._patience)
        self._until = self._source.mark() if once else None
        self._tables.patient = not once
        if not self._log.started:
            # A first start that can't work must not leave a slot behind, which would hold WAL for nobody.
            self._lake.start()
        opened = self._capture.open()
        self._state_writer.note(error=None, remedy=None)
        try:
            if self._sound():
                self._tables.note_masks(wanted.schemas)
                self._tables.note_partitions(wanted.schemas)
            self._capture.start()
            self._take_in(begin=True)
            self._lake.begin()
            self._reconciler.reconcile(wanted)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        threading.Thread(target=self._watch_lease, name=f"lease-{self.group.name}", daemon=True).start()
        if opened is not None:
            self._copy_pending(opened)
        self._state_writer.note(state=GroupState.RUNNING)

    def _told_to_stop(self) -> bool:
        return self._stop.is_set()

    def _waits(self, error: SourceError) -> None:
        """The group can't begin before other sessions are done."""
        self._state_writer.note(error=str(error), remedy=error.remedy)
        self._state_writer.save_now(ZERO)

    @property
    def proven(self) -> bool:
        """Whether it has streamed: what ends it from then on is no mistake in the configuration."""
        return self._capture.connected

    def _end(self) -> None:
        self._stopping.set()
        capture = threading.Thread(target=self._capture.stop, name=f"end-capture-{self.group.name}")
        capture.start()
        steps = (
            self._source.interrupt, self._end_work, self._background.close,
            partial(self._background.finish, ending=True), self._finish_jobs,
            capture.join, self._note_end, self._lease.release, self._source.close,
        )  # fmt: skip
        for step in steps:
            # Whatever fails here, above all the lease is released.
            try:
                step()
            except Exception as error:
                log.warning("group %s: while it ended: %s", self.group.name, advise(error).message)
                log.debug("the cause", exc_info=True)

    def _end_work(self) -> None:
        def cancel() -> None:
            self._lake.cancel([table.target for table in self._tables.awake if table.job is not None])

        cancel()
        self._copies.close(cancel)
        self._jobs.close(cancel)

    def _note_end(self) -> None:
        if not self._lease.held:
            return
        if self._failed is None or self._stop.is_set():
            self._state_writer.note(state=GroupState.STOPPED, holder=None)
        else:
            failed = self._failed
            self._state_writer.note(state=GroupState.ERRORED, holder=None, error=failed.message, remedy=failed.remedy)
        self._state_writer.save_now(self._capture.told)

    def _watch_lease(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._lease.wait(1.0):
                    self._reconciler.look_now()
                    self._wake.set()
            except GroupHeld as error:
                self._ousted = error
                self._wake.set()
                return
            except Wal2LakeError as error:
                log.debug("the lease of group %s can't be renewed: %s", self.group.name, error)
                self._stopping.wait(1.0)

    # ---- one turn of the loop

    def _step(self) -> None:
        if (ends := self._ousted or self._lake.failure) is not None:
            raise ends
        self._background.finish()
        self._capture.look(ending=self._until is not None)
        self._note_state()
        self._take_in()
        self._reconciler.relook()
        self._finish_jobs()
        self._tables.apply_requests(self._capture.logged)
        self._reconciler.move(self._capture.logged)
        if self._capture.lost is not None:
            self._face_loss(self._capture.lost)
        if self._lake.ready:
            self._start_work()
        self._tables.rest()
        self._retire()
        self._state_writer.save(self._capture.told)

    def _note_state(self) -> None:
        """A group runs while it captures and the lake can be worked on; otherwise it says what is the matter."""
        trouble = self._capture.trouble
        if trouble is None and self._lake.starts and not self._lake.ready:
            trouble = advise(SparkLost(cause="it is being started again"))
        if trouble is None:
            self._state_writer.note(state=GroupState.RUNNING, error=None, remedy=None)
        else:
            self._state_writer.note(state=GroupState.ERRORED, error=trouble.message, remedy=trouble.remedy)

    def _start_work(self) -> None:
        """Begin what the lake is to do; while Spark is started again, all of it waits."""
        if self._capture.lost is None:
            self._tables.retry_interrupted()
            self._tables.retry()
        if not self._lease.recent:
            # Somebody else may be writing these tables by now.
            return
        self._copy_pending()
        for table in self._tables.awake:
            self._consider(table)
        self._start_applies()
        self._start_evolving()
        self._start_maintenance()

    def _settled(self) -> bool:
        """Whether a run that is to end has done all it can."""
        busy = self._deferred or any(table.job is not None for table in self._tables.awake)
        if self._until is None or not self._lake.ready or busy:
            return False
        if self._capture.lost is not None:
            return all(table.arriving or table.state is TableState.ERRORED for table in self._tables)
        # A source that was set back has positions that were reached long ago: only the capture can tell.
        if self._capture.logged < self._until or not self._capture.connected:
            self._capture.request_flush(self._until)
            return False
        if leaving := [table.leaving for table in self._tables.awake if table.leaving is not None]:
            self._capture.request_flush(max(leaving))
            return False
        self._take_in()
        states = (TableState.STREAMING, TableState.ERRORED, TableState.PAUSED)
        return all(
            table.arriving
            or table.paused
            or (table.refused is not None and table.state is TableState.ERRORED)
            or (table.state in states and not table.resync and not (table.active and table.waiting is not None))
            for table in self._tables.awake
        ) and not any(self._renaming.step(table) for table in self._tables.awake)

    def _sound(self) -> bool:
        """Whether the schemas in the change log can be read; where not, it is lost."""
        try:
            self._log.schemas.require_sound()
        except ChangeLogDamaged as error:
            self._capture.lose(error)
        return self._capture.lost is None

    def _take_in(self, begin: bool = False) -> None:
        try:
            if begin:
                self._backlog.begin()
            for oid, manifest in self._backlog.read():
                self._tables.arrive(oid, manifest)
            if not self._backlog.complete:
                self._wake.set()
        except ChangeLogDamaged as error:
            self._capture.lose(error)

    def _retire(self) -> None:
        seen = self._backlog.seen
        done = min((table.done_with(seen) for table in self._tables.awake), default=seen)
        self._backlog.retire(done)
        if self._backlog.has_rubbish():
            self._background.begin("deleting what is applied", self._backlog.delete)

    def _drop_lake(self, spec: TableSpec) -> None:
        target = spec.target or spec.id
        if self._store.drop_lake(spec.oid, lambda: self._lake_names.drop(spec.oid, target)):
            log.info("dropped lake table %s", target)

    # ---- copying

    def _copy_pending(self, opened: OpenSnapshot | None = None) -> None:
        pending = [
            table for table in self._tables.awake
            if table.resync and table.job is None and not table.paused and table.leaving is None
            and table.refused is None and (opened is not None or self._is_streamed(table))
        ]  # fmt: skip
        # Another table may have to give up the name first; one that was dropped gets what was captured of it.
        pending, hindered = self._renaming.ready(pending)
        for table, error in hindered:
            table.resync, table.copy_failed = False, True
            self._fail(table, error)
        # A slot that was made just now is there; an older one may be lost, and a copy would then be for nothing.
        followed = opened is not None or self._capture.connected
        if not pending or not followed or self._capture.lost is not None:
            if opened is not None:
                opened.close()
            self._copies.nothing_waits()
            return
        if opened is not None:
            self._begin_copies(pending, opened)
            return
        for tables in rounds(pending):
            if not self._copies.may_start:
                return
            self._begin_copies(tables)
        self._copies.nothing_waits()

    def _is_streamed(self, table: TableRuntime) -> bool:
        """Whether the stream has the publication that holds a table."""
        return self._capture.appends or not self._source.append_only(table.schema)

    def _begin_copies(self, tables: Sequence[TableRuntime], opened: OpenSnapshot | None = None) -> None:
        for table in tables:
            # What a copy may still hold is only let go from here on: those that wait for a worker hold nothing.
            table.begin_copy(self._backlog.seen)
        self._copies.start(tables, opened)

    def _may_copy(self, schema: TableSchema) -> None:
        selection.require_masks(self._settings, self._log.schemas.last(schema.oid), schema)

    def _copied(self, table: TableRuntime) -> None:
        if self._capture.lost is None:
            self._store.resync_done(self.group.name, table.schema.oid, table.resync_wanted)

    def _face_loss(self, lost: Advice) -> None:
        """The stream has a gap. What was captured before it is applied; what follows needs a re-copy."""
        self._tables.wake_all()
        for table in self._tables:
            settled = table.job is None and not table.resync and not (table.active and table.waiting is not None)
            if settled and not table.arriving and not table.failed_by(lost):
                table.fail(lost)
                if self._resync_on_gap and not table.paused:
                    self._want_copy(table)
        drained = not any(table.job is not None or (table.active and not table.resync) for table in self._tables)
        if drained and any(table.resync and table.refused is None for table in self._tables):
            try:
                opened = self._capture.start_over()
                self._take_in()
                self._copy_pending(opened)
            except Wal2LakeError as error:
                log.warning("group %s can't start over: %s", self.group.name, error)

    # ---- applying

    def _consider(self, table: TableRuntime) -> None:
        """Put a table in line for a worker if something waits for it."""
        renamed = self._renaming.step(table)
        if isinstance(renamed, Wal2LakeError):
            self._not_renamed(table, renamed)
        elif renamed is not None:
            self._jobs.stand_in_line(table)
            return
        applied = table.applied
        if not table.active or table.job is not None or applied is None or table.resync:
            return
        if table.state is TableState.CATCHUP:
            _look_whether_caught_up(table, applied, self._capture.logged)
            if table.catch_up and table.waiting is None:
                self._capture.ask()
        if self._commit_due(table, applied):
            self._jobs.stand_in_line(table)

    def _commit_due(self, table: TableRuntime, applied: Applied) -> bool:
        if table.waiting is None:
            return False
        if self._until is not None or table.state is TableState.CATCHUP or table.on_the_way:
            return True
        if self._capture.freshness.too_soon(table.began):
            return False
        waiting = self._backlog.after(table.schema.oid, applied.manifest)
        committed = table.record.last_commit_at
        return self._cadence.due(table.schema, committed, waiting, datetime.now(UTC))

    def _start_applies(self) -> None:
        if not self._jobs.called or (self._until is None and not self._capture.fresh()):
            return
        while (table := self._jobs.next()) is not None:
            applied = table.applied
            if self._tables.get(table.schema.oid) is not table:
                # It stood in line when it was let go of, and is somebody else's by now.
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
                planned = plan(applied, waiting, self._view, newest=self._backlog.newest, policy=policy)
            except ChangeLogDamaged as error:
                of_segment = str(error.fields.get("path")).endswith(".parquet")
                if not of_segment:
                    self._capture.lose(error)
                self._fail(table, damaged_for(table.name, error) if of_segment else error)
                continue
            if planned.batch is not None:
                self._schema_changes.applying(table.schema.oid, planned.batch)
                self._jobs.start(table, partial(self._apply, table.name, applied, planned.batch))
            elif planned.obstacle is not None:
                self._fail(table, planned.obstacle)

    def _apply(self, name: str, applied: Applied, batch: Batch) -> Applied:
        if not batch.segments and not batch.truncations:
            return replace(applied, lsn=batch.to_lsn, manifest=batch.to_manifest)
        try:
            for path, segment in batch.segments:
                verify(path, segment.sha256)
            return self._lake.apply(applied, batch, self._source.table_id(applied.schema.oid), self._lease.epoch)
        except ChangeLogDamaged as error:
            raise damaged_for(name, error) from None
        except LakeInconsistent as error:
            if (exchanged := self._look_at_source(applied)) is not None:
                return exchanged
            raise error from error.__cause__

    def _look_at_source(self, applied: Applied) -> Applied | None:
        """Changes refer to rows that the lake table lacks: they may have come with a partition, which then is copied
        first, or look different since a change of the table's columns that no row has told of.

        None if the source has nothing that explains it. Raises what is to be done.
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
        """Let tables follow changes of their columns that no row has told of."""
        self._deferred = False
        if self._capture.lost is not None:
            return
        if self._schema_changes.waits(self._capture.logged):
            self._capture.request_flush()
        if self._exchanges.awaited > self._capture.logged:
            self._capture.request_flush(self._exchanges.awaited)
        for table, target in self._schema_changes.due(self._tables, self._capture.logged):
            if isinstance(target, Wal2LakeError):
                self._tables.wake(table)
                self._fail(table, target)
            elif isinstance(target, ExchangeNeeded):
                self._tables.wake(table)
                self._start_exchange(table)
            elif table.applied is not None:
                self._tables.wake(table)
                self._jobs.start(table, partial(self._evolve, table.applied, target))

    def _evolve(self, applied: Applied, schema: TableSchema) -> Applied:
        return self._lake.evolve(applied, schema, self._source.table_id(schema.oid), self._lease.epoch)

    def _start_exchange(self, table: TableRuntime) -> None:
        """Have a worker copy the partitions whose rows no change tells of, when one is free."""
        if table.applied is None or not self._copies.may_start:
            self._deferred = True
            return
        self._schema_changes.exchanging(table.schema.oid)
        policy = self._schema_changes.policy(table.schema)
        self._copies.start_part(table, partial(self._exchanges.work, table.applied, policy))

    def _renamed(self, table: TableRuntime, result: object) -> None:
        self._renaming.finish(table, result)
        if isinstance(result, BaseException) and not self._stopping.is_set():
            self._not_renamed(table, result)

    def _not_renamed(self, table: TableRuntime, error: BaseException) -> None:
        table.rename_failed = True
        if table.paused:
            log.warning("%s: its lake table can't be renamed: %s", table.name, advise(error).message)
        else:
            self._fail(table, error)

    def _start_maintenance(self) -> None:
        # A run that is to end soon leaves it to one that goes on.
        if self._until is None and self._capture.lost is None and self._jobs.idle:
            table = self._maintenance_queue.next(self._tables)
            if table is not None and table.applied is not None:
                self._maintain(table, table.applied)

    def _maintain(self, table: TableRuntime, applied: Applied) -> None:
        self._maintenance_queue.begin(table)
        self._tables.wake(table)
        self._jobs.start(table, partial(self._lake.maintain, applied, self._source.table_id(table.schema.oid)))

    def _finish_jobs(self) -> None:
        for table in (*self._copies.ended(), *self._jobs.ended()):
            job, table.job = table.job, None
            assert job is not None
            result = outcome(job)
            self._schema_changes.ended(table.schema.oid, result.lsn if isinstance(result, Applied) else None)
            if table is self._maintenance_queue.under_way:
                self._maintained(table, result)
            elif table in self._renaming:
                self._renamed(table, result)
            elif isinstance(result, Applied):
                # A copy that was made while the stream was lost has nothing to continue with.
                table.resync = table.state is TableState.SNAPSHOT and self._capture.lost is not None
                self._finish(table, result)
                self._maintenance_queue.committed(table)
            elif self._stopping.is_set():
                table.abandon()
            elif result is not None:
                self._fail(table, result)

    def _finish(self, table: TableRuntime, result: Applied) -> None:
        if table.state is TableState.SNAPSHOT:
            self._schema_changes.copied(table.schema.oid, result.lsn)
        table.update(target=result.schema.id)
        table.finish(result, self._backlog.after(table.schema.oid, result.manifest))

    def _maintained(self, table: TableRuntime, result: Applied | BaseException | None) -> None:
        if isinstance(result, BaseException):
            log.warning("%s: its maintenance did not succeed: %s", table.name, advise(result).message)
        self._maintenance_queue.finish(table, result if isinstance(result, Applied) else None)

    def _fail(self, table: TableRuntime, error: BaseException) -> None:
        advice = advise(error.about(table.name) if isinstance(error, Wal2LakeError) else error)
        if not table.failed_by(advice):
            # A table that is re-copied by itself needs nobody.
            level = logging.WARNING if isinstance(error, CopyNeeded | SparkLost) else logging.ERROR
            log.log(level, "%s", advice.message if table.name in advice.message else f"{table.name}: {advice.message}")
        log.debug("the cause", exc_info=error)
        table.fail(advice, at_once=self._until is not None and table.record.failures < ONCE_ATTEMPTS - 1)
        if isinstance(error, CopyNeeded):
            self._want_copy(table)

    def _want_copy(self, table: TableRuntime) -> None:
        """Ask for a re-copy in a way that a crash does not forget: the changes before it are let go."""
        try:
            table.resync_wanted = self._store.want_resync([table.record])
            table.resync = True
        except Wal2LakeError as error:
            log.warning("%s: the re-copy has to wait: %s", table.name, error)


def damaged_for(table: str, error: ChangeLogDamaged) -> ChangeLogDamaged:
    """A damaged segment concerns its table alone."""
    return ChangeLogDamaged(
        **error.fields, remedy=f"re-copy the table it belongs to with: wal2lake tables resync {shell(table)}"
    )


def _look_whether_caught_up(table: TableRuntime, applied: Applied, logged: Lsn) -> None:
    """A table streams when it has what was captured as its catching up began; a busy one is never without more."""
    if not table.catch_up:
        table.catch_up = max(logged, applied.lsn)
    if applied.lsn >= table.catch_up or (table.waiting is None and logged >= table.catch_up):
        table.catch_up = ZERO
        table.become(TableState.STREAMING)
        table.succeed()
