"""The loop of one group: brings its tables from PENDING to STREAMING and keeps them there.

    catalog, commands ──► desired tables ──► copy (at an exported snapshot, several tables at once)
    capture process ──► manifests ──► apply (one job at a time for a table, several tables at once)

It only decides and updates records; the capture process reads the source, the lake works on Spark. Everything that it
keeps in memory can be restored from the lake's commits and the change log, so it may die at any moment. The cost of a
turn is proportional to what has happened since the last one: tables at rest are skipped, and work that may wait for a
disk or a server is done in the background.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..capture import MakeCapture
from ..changelog import Backlog, ChangeLog, Retention
from ..config import Config, GroupConfig
from ..errors import (
    Advice,
    ChangeLogDamaged,
    GroupHeld,
    SourceError,
    SparkLost,
    Wal2LakeError,
    advise,
)
from ..executor import Executor, Task
from ..lake import LakeTables
from ..observe import Progress
from ..position import ZERO
from ..reconcile import (
    DesiredStateReader,
    Handovers,
    LakeNames,
    Naming,
    Reconciler,
    Renaming,
    SchemaChanges,
    TableRegistry,
    groups_of,
)
from ..source import SourceDatabase
from ..source.sessions import Patience
from ..state import Lease, StateStore, TableRecord, TableSpec
from ..state.lifecycle import GroupState, TableState, mode_of
from .background import BackgroundTasks
from .capture_link import CaptureLink
from .lanes import Lanes
from .state_writer import StateWriter
from .table_work import GroupParts, TableWork
from .worker_pool import Workers

log = logging.getLogger(__name__)

TURN_SECONDS = 0.5
WATCH_SECONDS = 5.0
"""limit for a group that ends to wait for the thread that confirms its lease"""
MOVE_SECONDS = 15.0
"""limit for `run --once` to wait for a table that moves between groups; the next run continues a longer move"""


class Stop(Protocol):
    """Set when the run must stop."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True)
class GroupPorts:
    """Everything that the loop of a group uses and does not create. It closes the source and the lease."""

    executor: Executor
    source: SourceDatabase
    log: ChangeLog
    lake: LakeTables
    store: StateStore
    lease: Lease
    make_capture: MakeCapture
    workers: Workers
    progress: Progress


class GroupLoop:
    def __init__(
        self, config: Config, group: GroupConfig, ports: GroupPorts, resync_on_gap: bool = False, auto: bool = False
    ) -> None:  # fmt: skip
        """`auto`: the capture mode of `group` was chosen, and may change."""
        self.group, self._config = group, config
        self._executor, self._source, self._log, self._lease = ports.executor, ports.source, ports.log, ports.lease
        self._lake, self._store = lake, store = ports.lake, ports.store
        executor, clock = self._executor, self._executor.clock
        keep = config.changelog
        self._backlog = Backlog(self._log, clock, Retention(keep.keep_seconds, keep.max_bytes // 2, clock))
        naming = Naming.of(config, group)
        self._lake_names = LakeNames(self._source, lake, naming, lambda oid: self._tables.target_of(oid))  # noqa: PLW0108
        self._tables = TableRegistry(
            group.name, self._source, store, lake, self._log, self._backlog, self._lake_names,
            f"run ({self._lease.holder})", self._lease.raise_epoch, executor,
        )  # fmt: skip
        self._renaming = Renaming(self._lake_names, self._tables)
        self._wake, self._stopping = executor.event(), executor.event()
        self._stop: Stop = self._stopping
        self._patience = Patience(self._is_stopping, self._waits)
        self._background = BackgroundTasks(group.name, self._wake.set, executor)
        self._lanes = Lanes(
            config, group, auto, self._log, self._source, store, self._tables, self._background, self._is_stopping,
            f"run ({self._lease.holder})", executor,
        )  # fmt: skip
        self._resync_on_gap = resync_on_gap = resync_on_gap or self._lanes.fell_back
        schema_changes = SchemaChanges(config, group)
        witness = self._log.witness if config.state.dsn is None else None
        self._state_writer = StateWriter(group.name, self._tables, store, self._background, clock, witness)
        self._capture = CaptureLink(
            group, self._source, self._log, self._backlog, self._state_writer, ports.make_capture, self._wake.set,
            self._patience, clock, resync_on_gap,
        )  # fmt: skip
        handovers = Handovers(
            group.name, self._source, store, lake, self._log, self._backlog, self._tables, self._lease.raise_epoch
        )
        desired_state = DesiredStateReader(
            group.name, self._source, store, naming, self._log, executor, lambda: self._lanes.mode
        )
        self._reconciler = Reconciler(
            desired_state, self._tables, handovers, schema_changes, self._background, self._drop_lake, executor
        )
        parts = GroupParts(
            executor, self._source, self._log, self._backlog, lake, store, self._lease, self._tables,
            self._lake_names, self._renaming, self._capture, schema_changes, self._wake, self._stopping,
        )  # fmt: skip
        self._work = TableWork(parts, config, group, ports.progress, ports.workers)
        self._lease_lost: GroupHeld | None = None
        self._watch: Task | None = None
        """waits on the lease"""
        self._failed: Advice | None = None
        self._caught_up_at: float | None = None
        """when `run --once` had done everything else"""

    # ---- start and end of a run

    def run(self, stop: Stop, once: bool = False) -> tuple[TableRecord, ...]:
        """Mirror until `stop` is set; with `once`, until everything that was committed at the start is applied."""
        try:
            self._stop = stop
            self._lease.take()
            self._store.create()
            if self._is_dropped():
                # Nothing of it may be made again; whoever drops a group has its lease.
                self._lease.release()
                return ()
            self._begin(once)
            while not stop.is_set():
                self._wake.clear()
                self._step()
                if self._lanes.changed or (self._caught_up() and not self._awaits_change()):
                    break
                self._wake.wait(self._capture.freshness.awaited or TURN_SECONDS)
        except Exception as error:
            self._failed = advise(error)
            if not stop.is_set():
                raise
            # A stop cancels running work, which then fails.
            log.debug("group %s was stopped", self.group.name, exc_info=True)
        finally:
            self._end()
        return tuple(table.record for table in self._tables if not table.moving_in)

    def _is_dropped(self) -> bool:
        """Whether a command has dropped the group since it was decided to run it."""
        specs = self._store.group_specs()
        spec = specs.get(self.group.name)
        there = any(group.name == self.group.name for group in groups_of(self._config, specs))
        return not there or (spec is not None and spec.dropping)

    def _begin(self, once: bool) -> None:
        self._lease.raise_epoch()
        self._state_writer.note(
            slot=self._source.slot_name, capture=mode_of(self.group).value.lower(), holder=self._lease.holder,
            error=None, remedy=None,
        )  # fmt: skip
        self._state_writer.save_now(ZERO)
        # Before any object of the group in the source is changed.
        self._capture.require_own_slot()
        desired = self._reconciler.read_initial(self._patience)
        if once:
            self._lanes.run_once()
            self._work.end_at(self._source.mark())
            self._tables.forget_retry_times()
        if not self._log.started:
            # A first start that can't work must not leave a slot, which would hold WAL forever.
            self._lake.start()
        opened = self._capture.open()
        self._state_writer.note(error=None, remedy=None)
        try:
            if self._sound():
                self._tables.note_masks(desired.schemas)
                self._tables.note_partitions(desired.schemas, desired.after)
            self._capture.start()
            self._read_manifests(begin=True)
            self._lake.begin()
            self._reconciler.reconcile(desired)
            self._watch = self._executor.start(f"lease-{self.group.name}", self._watch_lease, daemon=True)
            if opened is not None:
                self._work.copy_pending(opened)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        self._state_writer.note(state=GroupState.RUNNING)

    def _is_stopping(self) -> bool:
        return self._stop.is_set()

    def _waits(self, error: SourceError) -> None:
        """The group can't begin until other sessions have ended."""
        self._state_writer.note(error=str(error), remedy=error.remedy)
        self._state_writer.save_now(ZERO)

    @property
    def has_streamed(self) -> bool:
        """Whether it has connected to the source and streamed."""
        return self._capture.connected

    def _end(self) -> None:
        self._stopping.set()
        capture = self._executor.start(f"end-capture-{self.group.name}", self._capture.stop)
        steps = (
            self._source.interrupt, self._work.close, self._background.close,
            partial(self._background.finish, ending=True), self._lanes.close, self._work.finish_jobs,
            capture.join, self._note_end, self._lease.release, self._end_watch, self._source.close,
        )  # fmt: skip
        for step in steps:
            # Whatever fails here, the lease must be released.
            try:
                step()
            except Exception as error:
                log.warning("group %s: error while it ended: %s", self.group.name, advise(error).message)
                log.debug("the cause", exc_info=True)

    def _note_end(self) -> None:
        if not self._lease.held:
            return
        if self._failed is None or self._stop.is_set():
            self._state_writer.note(state=GroupState.STOPPED, holder=None)
        else:
            failed = self._failed
            self._state_writer.note(state=GroupState.ERRORED, holder=None, error=failed.message, remedy=failed.remedy)
        self._state_writer.save_now(self._capture.logged_to_store)

    def _end_watch(self) -> None:
        """It may be taking the lost lease again, and then releases it; the group could not begin again before that."""
        if self._watch is not None:
            self._watch.join(WATCH_SECONDS)

    def _watch_lease(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._lease.wait(1.0):
                    self._reconciler.request_refresh()
                    self._wake.set()
            except GroupHeld as error:
                self._lease_lost = error
                self._wake.set()
                return
            except Wal2LakeError as error:
                log.debug("the lease of group %s can't be renewed: %s", self.group.name, error)
                self._stopping.wait(1.0)

    @property
    def begins_again(self) -> bool:
        """Whether it ended because its capture mode has changed."""
        return self._lanes.changed

    # ---- one turn of the loop

    def _step(self) -> None:
        if (ends := self._lease_lost or self._lake.failure) is not None:
            raise ends
        self._background.finish()
        self._capture.check(ending=self._work.until is not None)
        self._note_state()
        self._read_manifests()
        self._reconciler.refresh()
        self._work.finish_jobs()
        self._tables.apply_requests(self._capture.logged)
        self._reconciler.move(self._capture.logged)
        if self._capture.lost is not None:
            if self._lanes.falls_back():
                return
            self._handle_slot_loss(self._capture.lost)
        elif self._capture.connected and self._lanes.step(self._capture.stop, self._capture.start):
            return
        if self._lake.ready:
            self._work.start()
        self._tables.suspend_idle()
        self._retire()
        self._state_writer.save(self._capture.logged_to_store)

    def _note_state(self) -> None:
        """A group is RUNNING while it captures and the lake is available; otherwise it is ERRORED with the reason."""
        trouble = self._capture.trouble
        if trouble is None and self._lake.starts and not self._lake.ready:
            trouble = advise(SparkLost(cause="it is being restarted"))
        if trouble is None:
            self._state_writer.note(state=GroupState.RUNNING, error=None, remedy=None)
        else:
            self._state_writer.note(state=GroupState.ERRORED, error=trouble.message, remedy=trouble.remedy)

    def _awaits_change(self) -> bool:
        if self._caught_up_at is None:
            self._caught_up_at = self._executor.clock.monotonic()
        waited = self._executor.clock.monotonic() - self._caught_up_at
        return (self._reconciler.moving and waited < MOVE_SECONDS) or self._lanes.awaits()

    def _caught_up(self) -> bool:
        """Whether `run --once` has done everything that it can do."""
        busy = self._work.deferred or any(table.job is not None for table in self._tables.awake)
        if self._work.until is None or not self._lake.ready or busy:
            return False
        if self._capture.lost is not None:
            return all(table.moving_in or table.state is TableState.ERRORED for table in self._tables)
        # After a restore, positions of the source may seem to be reached: only capture can detect that.
        if self._capture.logged < self._work.until or not self._capture.connected:
            self._capture.request_flush(self._work.until)
            return False
        if leaving := [table.dropped_at for table in self._tables.awake if table.dropped_at is not None]:
            self._capture.request_flush(max(leaving))
            return False
        self._read_manifests()
        states = (TableState.STREAMING, TableState.ERRORED, TableState.PAUSED)
        return all(
            table.moving_in
            or table.paused
            or (table.refusal is not None and table.state is TableState.ERRORED)
            or (table.state in states and not table.resync and not (table.active and table.waiting is not None))
            for table in self._tables.awake
        ) and not any(self._renaming.step(table) for table in self._tables.awake)

    def _sound(self) -> bool:
        """Whether the schemas in the change log can be read; if not, the log is lost."""
        try:
            self._log.schemas.require_sound()
        except ChangeLogDamaged as error:
            self._capture.lose(error)
        return self._capture.lost is None

    def _read_manifests(self, begin: bool = False) -> None:
        try:
            if begin:
                self._backlog.begin()
            for oid, manifest in self._backlog.read():
                self._tables.note_manifest(oid, manifest)
            for oid, number in self._backlog.partitions_read().items():
                self._tables.note_partition(oid, number)
            if not self._backlog.complete:
                self._wake.set()
        except ChangeLogDamaged as error:
            self._capture.lose(error)

    def _retire(self) -> None:
        seen = self._backlog.seen
        done = min((table.done_with(seen) for table in self._tables.awake), default=seen)
        self._backlog.retire(done)
        if self._backlog.has_retired():
            self._background.begin("deleting applied changes", self._backlog.delete)

    def _drop_lake(self, spec: TableSpec) -> None:
        target = spec.target or spec.id
        if self._store.drop_lake(spec.oid, lambda: self._lake_names.drop(spec.oid, target)):
            log.info("dropped lake table %s", target)

    def _handle_slot_loss(self, lost: Advice) -> None:
        """The stream has a gap. What was captured before it is applied; then tables need a re-copy."""
        self._tables.wake_all()
        for table in self._tables:
            settled = table.job is None and not table.resync and not (table.active and table.waiting is not None)
            refused = table.refusal is not None and table.state is TableState.ERRORED
            if settled and not table.moving_in and not refused:
                if not table.failed_by(lost):
                    table.fail(lost)
                if self._resync_on_gap and not table.paused:
                    self._work.request_copy(table)
        drained = not any(table.job is not None or (table.active and not table.resync) for table in self._tables)
        if drained and any(table.resync and table.refusal is None for table in self._tables):
            try:
                opened = self._capture.start_over()
                self._lanes.fallen_back()
                try:
                    self._read_manifests()
                    self._work.copy_pending(opened)
                except BaseException:
                    opened.close()
                    raise
            except Wal2LakeError as error:
                log.warning("group %s can't start over: %s", self.group.name, error)
