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
from functools import partial
from typing import Protocol

from ..changelog import ChangeLog
from ..changelog.backlog import Backlog
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
from ..lake import Lake
from ..observe.progress import Progress
from ..position import ZERO
from ..reconcile.desired_state import DesiredStateReader
from ..reconcile.desired_tables import Naming
from ..reconcile.handover import Handovers
from ..reconcile.lake_names import LakeNames
from ..reconcile.reconciler import Reconciler
from ..reconcile.registry import TableRegistry
from ..reconcile.renaming import Renaming
from ..reconcile.schema_changes import SchemaChanges
from ..source.database import Source
from ..source.locking import Patience
from ..state import GroupLease, StateStore, TableRecord, TableSpec
from ..state.lifecycle import GroupState, TableState
from .background import BackgroundTasks
from .capture_link import CaptureLink
from .state_writer import StateWriter
from .table_work import GroupParts, TableWork
from .worker_pool import Workers

log = logging.getLogger(__name__)

TURN_SECONDS = 0.5


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
        self._source = Source(config, group)
        self._log = ChangeLog(config.changelog_path, group.name)
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
        self._background = BackgroundTasks(group.name, self._wake.set)
        schema_changes = SchemaChanges(config, group)
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
            desired_state, self._tables, handovers, schema_changes, self._background, self._drop_lake
        )
        parts = GroupParts(
            self._source, self._log, self._backlog, lake, store, self._lease, self._tables, self._lake_names,
            self._renaming, self._capture, schema_changes, self._wake, self._stopping,
        )  # fmt: skip
        self._work = TableWork(parts, config, group, progress, workers)
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
        self._work.until = self._source.mark() if once else None
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
            self._work.copy_pending(opened)
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
            self._source.interrupt, self._work.close, self._background.close,
            partial(self._background.finish, ending=True), self._work.finish_jobs,
            capture.join, self._note_end, self._lease.release, self._source.close,
        )  # fmt: skip
        for step in steps:
            # Whatever fails here, above all the lease is released.
            try:
                step()
            except Exception as error:
                log.warning("group %s: while it ended: %s", self.group.name, advise(error).message)
                log.debug("the cause", exc_info=True)

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
        self._capture.look(ending=self._work.until is not None)
        self._note_state()
        self._take_in()
        self._reconciler.relook()
        self._work.finish_jobs()
        self._tables.apply_requests(self._capture.logged)
        self._reconciler.move(self._capture.logged)
        if self._capture.lost is not None:
            self._face_loss(self._capture.lost)
        if self._lake.ready:
            self._work.start()
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

    def _settled(self) -> bool:
        """Whether a run that is to end has done all it can."""
        busy = self._work.deferred or any(table.job is not None for table in self._tables.awake)
        if self._work.until is None or not self._lake.ready or busy:
            return False
        if self._capture.lost is not None:
            return all(table.arriving or table.state is TableState.ERRORED for table in self._tables)
        # A restored source has positions that were reached long ago: only the capture can tell.
        if self._capture.logged < self._work.until or not self._capture.connected:
            self._capture.request_flush(self._work.until)
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
        if self._backlog.has_retired():
            self._background.begin("deleting what is applied", self._backlog.delete)

    def _drop_lake(self, spec: TableSpec) -> None:
        target = spec.target or spec.id
        if self._store.drop_lake(spec.oid, lambda: self._lake_names.drop(spec.oid, target)):
            log.info("dropped lake table %s", target)

    def _face_loss(self, lost: Advice) -> None:
        """The stream has a gap. What was captured before it is applied; what follows needs a re-copy."""
        self._tables.wake_all()
        for table in self._tables:
            settled = table.job is None and not table.resync and not (table.active and table.waiting is not None)
            if settled and not table.arriving and not table.failed_by(lost):
                table.fail(lost)
                if self._resync_on_gap and not table.paused:
                    self._work.request_copy(table)
        drained = not any(table.job is not None or (table.active and not table.resync) for table in self._tables)
        if drained and any(table.resync and table.refused is None for table in self._tables):
            try:
                opened = self._capture.start_over()
                self._take_in()
                self._work.copy_pending(opened)
            except Wal2LakeError as error:
                log.warning("group %s can't start over: %s", self.group.name, error)
