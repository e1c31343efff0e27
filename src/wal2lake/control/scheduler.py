"""The loop of one group: brings its tables from PENDING to STREAMING and keeps them there.

    catalog ──► wanted tables ──► copy (one exported snapshot for all that are pending)
    capture process ──► manifests ──► apply (one job at a time for a table, several tables at once)

It only decides and keeps the books; the capture process reads the source, the lake does the work on Spark. Everything
that it keeps in memory can be read again from the lake's commits and the change log, so it may die at any moment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

from .. import errors
from ..changelog import ChangeLog
from ..changelog.manifest import Manifest
from ..config import Config, GroupConfig
from ..errors import Advice, CopyFailed, CopyNeeded, GroupHeld, SchemaChanged, SlotLost, Wal2LakeError, advise
from ..lake import Lake
from ..lake.model import Applied, Batch
from ..observe.progress import Progress
from ..position import ZERO, Lsn
from ..source.database import Source
from ..source.model import ExportedSnapshot
from .capture import CaptureProcess
from .copies import CopyRound, OpenSnapshot
from .planner import LogView, difference, plan
from .pump import CaptureReport
from .roster import Roster
from .state import BACKOFF_FIRST, GroupState, TableState
from .store import GroupLease, GroupRecord, StateStore, TableRecord
from .tables import TableRun

log = logging.getLogger(__name__)

TURN_SECONDS = 0.5
RELOOK_SECONDS = 10.0
"""how often the catalog is looked at for new, dropped and altered tables"""
SAVE_SECONDS = 1.0
IDLE_SAVE_SECONDS = 30.0
APPLY_WORKERS = 4
COPY_WORKERS = 2
ONCE_ATTEMPTS = 3
GIVE_UP_SECONDS = 20.0
"""how long a capture that never got through may fail before the run ends with its error"""
GAPS = (SlotLost, errors.SourceReplaced, errors.ChangeLogDamaged)
"""errors of the capture after which the stream can't go on where it was"""


class GroupScheduler:
    def __init__(self, config: Config, group: GroupConfig, lake: Lake, store: StateStore, progress: Progress) -> None:
        self.group = group
        self._lake, self._store, self._progress = lake, store, progress
        self._source = Source(config, group)
        self._log = ChangeLog(config.changelog_path, group.name)
        self._view = LogView(self._log.schema, self._log.path, self._log.last_commit)
        self._tables = Roster(group.name, self._source, store, lake, self._log)
        self._lease = GroupLease(store.dsn, group.name)
        self._wake, self._stopping, self._relook_now = threading.Event(), threading.Event(), threading.Event()
        self._capture = CaptureProcess(config, group, on_report=self._wake.set)
        self._capture_again = self._began = self._relooked = self._saved = 0.0
        self._applies = ThreadPoolExecutor(APPLY_WORKERS, thread_name_prefix=f"apply-{group.name}")
        self._copies = ThreadPoolExecutor(COPY_WORKERS, thread_name_prefix=f"copy-{group.name}")
        self._rounds: list[CopyRound] = []
        self._manifests: list[Manifest] = []
        self._seen = 0
        self._until: Lsn | None = None
        self._lost: Advice | None = None
        self._ousted: GroupHeld | None = None
        self._record = GroupRecord(group.name, GroupState.STARTING, "", "wal")
        self._record_dirty = False

    # ---- the life of a run

    def run(self, stop: threading.Event, once: bool = False) -> tuple[TableRecord, ...]:
        """Mirror until `stop` is set; with `once`, until all that was committed at the start is applied."""
        try:
            self._begin(once)
            while not stop.is_set():
                self._wake.clear()
                self._step()
                if self._settled():
                    break
                self._wake.wait(TURN_SECONDS)
        finally:
            self._end()
        return tuple(table.record for table in self._tables)

    def _begin(self, once: bool) -> None:
        self._lease.take()
        self._began = self._relooked = monotonic()
        self._store.create()
        self._note(slot=self._source.slot_name, holder=self._lease.holder, error=None, remedy=None)
        self._save(force=True)
        schemas = self._source.discover()
        self._source.publish(schemas)
        self._until = self._source.mark() if once else None
        if not self._log.started:
            # A first start that can't work must not leave a slot behind, which would hold WAL for nobody.
            self._lake.start()
        opened = self._open_log()
        try:
            self._capture.start()
            self._seen = self._log.oldest() - 1
            self._read_manifests()
            self._lake.start()
            self._tables.adopt(schemas, self._manifests)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        threading.Thread(target=self._watch_lease, name=f"lease-{self.group.name}", daemon=True).start()
        if opened is not None:
            self._copy_pending(opened)
        self._note(state=GroupState.RUNNING)

    def _end(self) -> None:
        self._stopping.set()
        self._capture.stop()
        if any(table.job is not None for table in self._tables):
            self._lake.cancel()
        for pool in (self._copies, self._applies):
            pool.shutdown(wait=True, cancel_futures=True)
        for copy_round in self._rounds:
            copy_round.close()
        self._finish_jobs()
        if self._lease.held:
            self._note(state=GroupState.STOPPED, holder=None)
            self._save(force=True)
        self._lease.release()
        self._source.close()

    def _open_log(self) -> OpenSnapshot | None:
        """Open the change log; at the very first start make the slot too, and keep its snapshot for the copies."""
        if self._log.started:
            self._log.must_be_from(self._source.identity())
            return None
        if not self._log.exists and self._source.slot() is not None:
            name = self._source.slot_name
            raise SlotLost(
                slot=name,
                lsn="its own last position",
                cause="exists already, and the change log of this lake knows nothing of it",
                remedy=f"if no other mirror uses it: SELECT pg_drop_replication_slot('{name}')",
            )
        return self._new_slot()

    def _new_slot(self) -> OpenSnapshot:
        # The log is made before the slot, so that a slot left by a crash in between is known as ours.
        self._log.create(self._source.identity(), self._source.slot_name)
        self._source.drop_slot()
        opened = self._source.create_slot()
        self._log.begin(opened.snapshot.lsn)
        return opened

    def _watch_lease(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._lease.wait(1.0):
                    self._relook_now.set()
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
        if self._ousted is not None:
            raise self._ousted
        self._look_at_capture()
        self._read_manifests()
        if self._relook_now.is_set() or monotonic() - self._relooked > RELOOK_SECONDS:
            self._relook()
        self._finish_jobs()
        if self._lost is not None:
            self._face_loss(self._lost)
        else:
            self._tables.retry(self._manifests)
        self._copy_pending()
        logged = self._logged()
        for table in self._tables:
            self._consider(table, logged)
        self._retire()
        self._save()

    def _settled(self) -> bool:
        """Whether a run that is to end has done all it can."""
        if self._until is None or any(table.job is not None for table in self._tables):
            return False
        if self._lost is not None:
            return all(table.state is TableState.ERRORED for table in self._tables)
        if self._logged() < self._until:
            self._capture.hurry()
            return False
        self._read_manifests()
        states = (TableState.STREAMING, TableState.ERRORED, TableState.PAUSED)
        return all(
            table.state in states and not table.resync and not (table.active and table.waiting is not None)
            for table in self._tables
        )

    def _look_at_capture(self) -> None:
        report = self._capture.report()
        error = report.error
        if error is None:
            if self._lost is None:
                self._note(state=GroupState.RUNNING, error=None, remedy=None)
            return
        self._note(error=str(error), remedy=error.remedy)
        if isinstance(error, GAPS):
            if self._lost is None:
                log.error("group %s: %s", self.group.name, error)
                log.error("group %s: %s", self.group.name, error.remedy)
            self._lost = advise(error)
            self._note(state=GroupState.ERRORED)
        elif self._hopeless(report):
            raise error
        elif report.fatal and monotonic() >= self._capture_again:
            self._capture_again = monotonic() + BACKOFF_FIRST
            self._capture.start()

    def _hopeless(self, report: CaptureReport) -> bool:
        """Whether a capture that fails is to end the run: it is to end anyway, or the capture never got through."""
        late = monotonic() - self._began > GIVE_UP_SECONDS
        return (report.fatal and self._until is not None) or (late and not report.connected_once)

    def _read_manifests(self) -> None:
        for manifest in self._log.after(self._seen):
            self._seen = manifest.number
            self._manifests.append(manifest)
            for oid in manifest.tables:
                if (table := self._tables.get(oid)) is not None:
                    table.arrive(manifest)

    def _retire(self) -> None:
        if not self._manifests:
            return
        done = min((table.done_with(self._seen) for table in self._tables), default=self._seen)
        if done >= self._manifests[0].number:
            self._log.retire(done)
            self._manifests = [manifest for manifest in self._manifests if manifest.number > done]

    def _relook(self) -> None:
        self._relook_now.clear()
        self._relooked = monotonic()
        try:
            schemas = self._source.discover()
            if {schema.oid for schema in schemas} != self._tables.oids:
                self._source.publish(schemas)
            self._tables.adopt(schemas, self._manifests)
        except Wal2LakeError as error:
            log.warning("the catalog could not be looked at: %s", error)

    # ---- copying

    def _copy_pending(self, opened: OpenSnapshot | None = None) -> None:
        pending = [table for table in self._tables if table.resync and table.job is None]
        # A slot that was made just now is there; an older one may be lost, and a copy would then be for nothing.
        followed = opened is not None or self._capture.report().connected_once
        if not pending or not followed or self._lost is not None:
            if opened is not None:
                opened.close()
            return
        opener: Callable[[], OpenSnapshot] = self._source.open_snapshot if opened is None else lambda: opened
        for table in pending:
            table.begin_copy(self._seen)
        copy_round = CopyRound(pending, opener, self._copy)
        self._rounds.append(copy_round)
        copy_round.start(self._copies, lambda _: self._wake.set())

    def _copy(self, table: TableRun, snapshot: ExportedSnapshot) -> Applied:
        source = self._source.copy_source(table.schema)
        self._progress.copy_started(table.name, source.estimated_rows)
        log.info("copying %s at %s", table.name, snapshot.lsn)
        try:
            applied = self._lake.copy(
                source,
                snapshot,
                self._source.table_id(table.schema.oid),
                table.held or 0,
                lambda rows: self._progress.copy_advanced(table.name, rows),
            )
        except BaseException as error:
            self._progress.copy_failed(table.name)
            unfit = isinstance(error, CopyFailed) and error.fields.get("unfit")
            if unfit and (refused := self._source.find_unfit(table.schema)) is not None:
                raise refused from error
            raise
        self._progress.copy_finished(table.name, applied.rows)
        log.info("copied %s: %d rows", table.name, applied.rows)
        if self._lost is None:
            self._store.resync_done(self.group.name, table.schema.oid, table.resync_wanted)
        return applied

    def _face_loss(self, lost: Advice) -> None:
        """The stream has a gap. What was captured before it is applied; what follows needs a fresh copy."""
        for table in self._tables:
            settled = table.job is None and not table.resync and not (table.active and table.waiting is not None)
            if settled and not table.failed_by(lost):
                table.fail(lost)
        drained = not any(table.job is not None or (table.active and not table.resync) for table in self._tables)
        if drained and any(table.resync for table in self._tables):
            try:
                self._start_over()
            except Wal2LakeError as error:
                log.warning("group %s can't begin anew: %s", self.group.name, error)

    def _start_over(self) -> None:
        log.warning("group %s begins anew with a new slot", self.group.name)
        self._capture.stop()
        opened = self._new_slot()
        self._lost = None
        self._capture.start()
        self._note(state=GroupState.RUNNING, error=None, remedy=None)
        self._copy_pending(opened)

    # ---- applying

    def _consider(self, table: TableRun, logged: Lsn) -> None:
        """Start an apply job for a table if something waits for it."""
        applied = table.applied
        if not table.active or table.job is not None or applied is None or table.resync:
            return
        if not table.schema.same_shape(applied.schema):
            self._fail(table, SchemaChanged(table=table.name, cause=difference(applied.schema, table.schema)))
            return
        if table.state is TableState.CATCHUP:
            _look_whether_caught_up(table, applied, logged)
        if table.waiting is not None:
            planned = plan(applied, self._manifests, self._view)
            if planned.batch is not None:
                table.job = self._applies.submit(self._apply, applied, planned.batch)
                table.job.add_done_callback(lambda _: self._wake.set())
            elif planned.obstacle is not None:
                self._fail(table, planned.obstacle)

    def _apply(self, applied: Applied, batch: Batch) -> Applied:
        if not batch.segments and not batch.truncations:
            return replace(applied, lsn=batch.to_lsn, manifest=batch.to_manifest)
        return self._lake.apply(applied, batch, self._source.table_id(applied.schema.oid))

    def _finish_jobs(self) -> None:
        for table in self._tables:
            job = table.job
            if job is None or not job.done():
                continue
            table.job = None
            error = None if job.cancelled() else job.exception()
            if error is None and not job.cancelled():
                # A copy that was made while the stream was lost has nothing to continue with.
                table.resync = table.state is TableState.SNAPSHOT and self._lost is not None
                table.finish(job.result(), self._manifests)
            elif self._stopping.is_set():
                table.abandon()
            elif error is not None:
                self._fail(table, error)
        self._rounds = [copy_round for copy_round in self._rounds if not copy_round.finished]

    def _fail(self, table: TableRun, error: BaseException) -> None:
        advice = advise(error)
        if not table.failed_by(advice):
            log.error("%s", advice.message)
        log.debug("the cause", exc_info=error)
        table.fail(advice, at_once=self._until is not None and table.record.failures < ONCE_ATTEMPTS - 1)
        if isinstance(error, CopyNeeded):
            self._want_copy(table)

    def _want_copy(self, table: TableRun) -> None:
        """Ask for a fresh copy in a way that a crash does not forget: the changes before it are let go."""
        try:
            table.resync_wanted = self._store.want_resync([table.record])
            table.resync = True
        except Wal2LakeError as error:
            log.warning("%s: the fresh copy has to wait: %s", table.name, error)

    def _logged(self) -> Lsn:
        return max(self._capture.report().logged_lsn, self._log.position())

    # ---- the books

    def _note(self, **changes: object) -> None:
        record = replace(self._record, **changes)  # type: ignore[arg-type]  # fields are checked by the dataclass
        if record != self._record:
            self._record, self._record_dirty = record, True

    def _save(self, force: bool = False) -> None:
        """Tell the state store, not more than once a second; it may be out of reach, the mirror goes on."""
        elapsed = monotonic() - self._saved
        dirty = self._record_dirty or any(table.dirty for table in self._tables)
        if not (force or (dirty and elapsed > SAVE_SECONDS) or elapsed > IDLE_SAVE_SECONDS):
            return
        self._saved = monotonic()
        if self._log.started:
            self._note(logged_lsn=self._logged())
        try:
            self._tables.save()
            if self._record_dirty:
                self._store.save_group(self._record)
                self._record_dirty = False
        except Wal2LakeError as error:
            log.warning("the state store could not be written: %s", error)


def _look_whether_caught_up(table: TableRun, applied: Applied, logged: Lsn) -> None:
    """A table streams when it has what was captured as its catching up began; a busy one is never without more."""
    if not table.catch_up:
        table.catch_up = max(logged, applied.lsn)
    if applied.lsn >= table.catch_up or (table.waiting is None and logged >= table.catch_up):
        table.catch_up = ZERO
        table.become(TableState.STREAMING)
        table.succeed()
