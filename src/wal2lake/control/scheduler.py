"""The loop of one group: brings its tables from PENDING to STREAMING and keeps them there.

    catalog ──► wanted tables ──► copy (one exported snapshot for all that are pending)
    capture process ──► manifests ──► apply (one job at a time for a table, several tables at once)

It only decides and keeps the books; the capture process reads the source, the lake does the work on Spark. Everything
that it keeps in memory can be read again from the lake's commits and the change log, so it may die at any moment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic

from ..changelog import ChangeLog
from ..changelog.manifest import Manifest
from ..config import Config, GroupConfig
from ..errors import (
    Advice,
    ChangeLogDamaged,
    CopyFailed,
    CopyNeeded,
    SchemaChanged,
    SlotLost,
    SourceReplaced,
    Wal2LakeError,
    advise,
)  # fmt: skip
from ..lake import Lake
from ..lake.model import Applied, Batch
from ..observe.progress import Progress
from ..position import Lsn
from ..schema import TableSchema
from ..source.database import Source
from ..source.model import ExportedSnapshot
from .capture import CaptureProcess
from .copies import CopyRound, OpenSnapshot
from .planner import LogView, difference, plan
from .state import BACKOFF_FIRST, GroupState, TableState
from .store import GroupLease, GroupRecord, StateStore, TableRecord
from .tables import TableRun, continues

log = logging.getLogger(__name__)

RELOOK_SECONDS = 10.0
"""how often the catalog is looked at for new, dropped and altered tables"""
SAVE_SECONDS = 1.0
IDLE_SAVE_SECONDS = 30.0
APPLY_WORKERS = 4
COPY_WORKERS = 2
TURN_SECONDS = 0.5
GAPS = (SlotLost, SourceReplaced, ChangeLogDamaged)
"""errors of the capture after which the stream can't go on where it was"""
GIVE_UP_SECONDS = 20.0
"""how long a capture that never got through may fail before the run ends with its error"""


class GroupScheduler:
    def __init__(self, config: Config, group: GroupConfig, lake: Lake, store: StateStore, progress: Progress) -> None:
        self.group = group
        self._config, self._lake, self._store, self._progress = config, lake, store, progress
        self._source = Source(config, group)
        self._log = ChangeLog(config.changelog_path, group.name)
        self._view = LogView(self._log.schema, self._log.path, self._log.last_commit)
        self._lease = GroupLease(store.dsn, group.name)
        self._wake, self._stopping, self._relook_now = threading.Event(), threading.Event(), threading.Event()
        self._tables: dict[int, TableRun] = {}
        self._manifests: list[Manifest] = []
        self._seen = 0
        self._capture = CaptureProcess(config, group, on_report=self._wake.set)
        self._capture_again = 0.0
        self._lost: Advice | None = None
        self._applies = ThreadPoolExecutor(APPLY_WORKERS, thread_name_prefix=f"apply-{group.name}")
        self._copies = ThreadPoolExecutor(COPY_WORKERS, thread_name_prefix=f"copy-{group.name}")
        self._rounds: list[CopyRound] = []
        self._record = GroupRecord(group.name, GroupState.STARTING, self._source.slot_name, "wal")
        self._began = self._relooked = self._saved = self._idle_saved = 0.0

    # ---- the life of a run

    def run(self, stop: threading.Event, once: bool = False) -> tuple[TableRecord, ...]:
        """Mirror until `stop` is set; with `once`, until all that was committed at the start is applied."""
        watcher = threading.Thread(target=self._watch_lease, name=f"lease-{self.group.name}", daemon=True)
        try:
            until = self._begin(once)
            watcher.start()
            while not stop.is_set():
                self._wake.clear()
                self._step()
                if until is not None and self._settled(until):
                    break
                self._wake.wait(TURN_SECONDS)
        finally:
            self._end()
        return tuple(table.record for table in self._tables.values())

    def _begin(self, once: bool) -> Lsn | None:
        self._lease.take()
        self._began = monotonic()
        self._store.create()
        self._save_group(state=GroupState.STARTING, holder=self._lease.holder, error=None, remedy=None)
        schemas = self._source.discover()
        self._source.publish(schemas)
        until = self._source.mark() if once else None
        snapshot = self._open_log()
        try:
            self._lake.start()
            self._seen = self._log.oldest() - 1
            self._read_manifests()
            self._adopt(schemas)
            self._capture.start()
        except BaseException:
            if snapshot is not None:
                snapshot.close()
            raise
        if snapshot is not None:
            self._copy_pending(snapshot)
        self._save_group(state=GroupState.RUNNING)
        return until

    def _end(self) -> None:
        self._stopping.set()
        self._capture.stop()
        if any(table.job is not None for table in self._tables.values()):
            self._lake.cancel()
        for pool in (self._copies, self._applies):
            pool.shutdown(wait=True, cancel_futures=True)
        for copy_round in self._rounds:
            copy_round.close()
        try:
            if self._record.state is not GroupState.STARTING:
                self._finish_jobs()
                self._save(force=True)
            if self._lease.held:
                self._save_group(state=GroupState.STOPPED, holder=None)
        except Wal2LakeError as error:
            log.warning("the state store could not be told of the stop: %s", error)
        self._lease.release()
        self._source.close()

    def _open_log(self) -> OpenSnapshot | None:
        """Open the change log; at the very first start make the slot too, and keep its snapshot for the copies."""
        if self._log.started:
            self._log.must_be_from(self._source.identity())
            return None
        if not self._log.exists and self._source.slot() is not None:
            raise SlotLost(
                slot=self._source.slot_name,
                lsn="its own last position",
                cause="exists already, and the change log of this lake knows nothing of it",
                remedy=f"if no other mirror uses it: SELECT pg_drop_replication_slot('{self._source.slot_name}')",
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
            except Wal2LakeError as error:
                log.warning("the lease of group %s is in danger: %s", self.group.name, error)
                self._stopping.wait(1.0)

    # ---- one turn of the loop

    def _step(self) -> None:
        self._look_at_capture()
        self._read_manifests()
        if self._relook_now.is_set() or monotonic() - self._relooked > RELOOK_SECONDS:
            self._relook()
        self._finish_jobs()
        self._retry_due()
        if self._lost is not None:
            self._face_loss(self._lost)
        self._copy_pending()
        for table in self._tables.values():
            self._consider(table)
        self._retire()
        self._save()

    def _settled(self, until: Lsn) -> bool:
        for table in self._tables.values():
            if table.job is not None or (table.resync and self._lost is None):
                return False
        if self._lost is not None:
            return all(table.state is TableState.ERRORED for table in self._tables.values())
        if self._logged() < until:
            return False
        self._read_manifests()
        return all(not table.active or table.waiting is None for table in self._tables.values())

    def _look_at_capture(self) -> None:
        report = self._capture.report()
        error = report.error
        if error is None:
            if self._record.error is not None and self._lost is None:
                self._save_group(state=GroupState.RUNNING, error=None, remedy=None)
            return
        self._save_group(error=str(error), remedy=error.remedy)
        if isinstance(error, GAPS):
            if self._lost is None:
                log.error("group %s: %s", self.group.name, error)
                self._save_group(state=GroupState.ERRORED)
            self._lost = advise(error)
        elif not report.connected_once and monotonic() - self._began > GIVE_UP_SECONDS:
            raise error
        elif report.fatal and monotonic() >= self._capture_again:
            self._capture_again = monotonic() + BACKOFF_FIRST
            self._capture.start()

    def _read_manifests(self) -> None:
        for manifest in self._log.after(self._seen):
            self._seen = manifest.number
            self._manifests.append(manifest)
            for oid in manifest.tables:
                if (table := self._tables.get(oid)) is not None:
                    table.arrive(manifest)

    def _retire(self) -> None:
        if not self._manifests or not self._tables:
            return
        done = min(table.needs(self._seen) for table in self._tables.values())
        if done >= self._manifests[0].number:
            self._log.retire(done)
            self._manifests = [manifest for manifest in self._manifests if manifest.number > done]

    # ---- which tables

    def _relook(self) -> None:
        self._relook_now.clear()
        self._relooked = monotonic()
        try:
            schemas = self._source.discover()
            if {schema.oid for schema in schemas} != set(self._tables):
                self._source.publish(schemas)
            self._adopt(schemas)
        except Wal2LakeError as error:
            log.warning("the catalog could not be looked at: %s", error)

    def _adopt(self, schemas: Sequence[TableSchema]) -> None:
        """Take in the wanted tables: new ones, altered ones, those to be copied anew, those that are gone."""
        records = {record.oid: record for record in self._store.tables(self.group.name)}
        gone = [oid for oid in (set(records) | set(self._tables)) - {s.oid for s in schemas} if self._drop_run(oid)]
        if gone:
            self._store.forget_tables(self.group.name, gone)
        new = [
            TableRecord(self.group.name, schema.oid, schema.id, TableState.PENDING)
            for schema in schemas
            if schema.oid not in records
        ]
        self._store.save_tables(new)
        records.update({record.oid: record for record in new})
        resync = self._store.wanted_resyncs(self.group.name)
        for schema in schemas:
            table = self._tables.get(schema.oid)
            wanted = resync.get(schema.oid)
            if table is None:
                table = self._tables[schema.oid] = TableRun(schema, records[schema.oid], resync_wanted=wanted)
                self._place(table, wanted is not None)
            elif wanted is not None and (table.resync_wanted is None or wanted > table.resync_wanted):
                table.resync, table.resync_wanted = True, wanted
            table.schema = schema
            table.update(id=schema.id)

    def _drop_run(self, oid: int) -> bool:
        table = self._tables.get(oid)
        if table is not None and table.job is not None:
            return False
        self._tables.pop(oid, None)
        return True

    def _place(self, table: TableRun, resync: bool) -> None:
        """Find out from the lake where a table stands, at the start of a run."""
        table.update(error=None, remedy=None, retry_at=None)
        try:
            applied = self._lake.applied(table.schema.id, self._source.table_id(table.schema.oid))
            if resync or applied is None:
                table.update(state=TableState.PENDING, applied_lsn=None)
                table.resync = True
            elif continues(applied, self._log.start):
                table.update(state=TableState.CATCHUP)
                table.advance(applied, self._manifests)
            else:
                table.applied = applied
                raise SlotLost(slot=self._source.slot_name, lsn=applied.lsn, cause="was made anew")
        except Wal2LakeError as error:
            table.fail(advise(error))

    # ---- copying

    def _copy_pending(self, opened: OpenSnapshot | None = None) -> None:
        pending = [table for table in self._tables.values() if table.resync and table.job is None]
        if not pending or self._lost is not None:
            if opened is not None:
                opened.close()
            return
        opener: Callable[[], OpenSnapshot] = self._source.open_snapshot if opened is None else lambda: opened
        for table in pending:
            table.held, table.resync = self._seen, False
            table.become(TableState.PENDING)
            table.become(TableState.SNAPSHOT)
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
        self._store.resync_done(self.group.name, table.schema.oid, table.resync_wanted)
        self._progress.copy_finished(table.name, applied.rows)
        log.info("copied %s: %d rows", table.name, applied.rows)
        return applied

    def _face_loss(self, lost: Advice) -> None:
        """The stream has a gap. What was captured before it is applied; what follows needs a fresh copy."""
        for table in self._tables.values():
            settled = table.job is None and not table.resync and not (table.active and table.waiting is not None)
            if settled and not table.failed_by(lost):
                table.fail(lost)
        drained = not any(table.job is not None or table.active for table in self._tables.values())
        if drained and any(table.resync for table in self._tables.values()):
            self._start_over()

    def _start_over(self) -> None:
        log.warning("group %s begins anew with a new slot", self.group.name)
        opened = self._new_slot()
        self._lost = None
        self._capture.start()
        self._save_group(state=GroupState.RUNNING, error=None, remedy=None)
        self._copy_pending(opened)

    # ---- applying

    def _consider(self, table: TableRun) -> None:
        """Start an apply job for a table if something waits for it."""
        if not table.active or table.job is not None or table.applied is None:
            return
        applied = table.applied
        if not table.schema.same_shape(applied.schema):
            table.fail(advise(SchemaChanged(table=table.name, cause=difference(applied.schema, table.schema))))
            return
        if table.waiting is None:
            if table.state is TableState.CATCHUP and self._logged() >= applied.lsn:
                table.become(TableState.STREAMING)
                table.succeed()
            return
        planned = plan(applied, self._manifests, self._view)
        if planned.batch is not None:
            table.job = self._applies.submit(self._apply, applied, planned.batch)
            table.job.add_done_callback(lambda _: self._wake.set())
        elif planned.obstacle is not None:
            table.fail(advise(planned.obstacle))

    def _apply(self, applied: Applied, batch: Batch) -> Applied:
        if not batch.segments and not batch.truncations:
            return replace(applied, lsn=batch.to_lsn, manifest=batch.to_manifest)
        return self._lake.apply(applied, batch, self._source.table_id(applied.schema.oid))

    def _finish_jobs(self) -> None:
        for table in self._tables.values():
            job = table.job
            if job is None or not job.done():
                continue
            copying = table.state is TableState.SNAPSHOT
            table.job = table.held = None
            error = None if job.cancelled() else job.exception()
            if job.cancelled() or (error is not None and self._stopping.is_set()):
                if copying:
                    table.become(TableState.PENDING)
                    table.resync = True
            elif error is not None:
                self._failed(table, error, copying)
            else:
                if copying:
                    table.become(TableState.CATCHUP)
                table.advance(job.result(), self._manifests)
                if not copying:
                    table.succeed()
        self._rounds = [copy_round for copy_round in self._rounds if not copy_round.finished]

    def _failed(self, table: TableRun, error: BaseException, copying: bool) -> None:
        log.error("%s: %s", table.name, error if isinstance(error, Wal2LakeError) else type(error).__name__)
        log.debug("the cause", exc_info=error)
        table.fail(advise(error))
        if copying:
            table.applied = None
        elif isinstance(error, CopyNeeded):
            table.resync = True

    def _retry_due(self) -> None:
        now = datetime.now(UTC)
        for table in self._tables.values():
            if table.retry_due(now) and self._lost is None:
                self._place(table, table.applied is None)

    def _logged(self) -> Lsn:
        return max(self._capture.report().logged_lsn, self._log.position())

    # ---- the books

    def _save(self, force: bool = False) -> None:
        now = monotonic()
        dirty = [table for table in self._tables.values() if table.dirty]
        due = dirty and now - self._saved > SAVE_SECONDS
        idle = now - self._idle_saved > IDLE_SAVE_SECONDS
        if not (due or idle or force):
            return
        self._store.save_tables(table.record for table in dirty)
        for table in dirty:
            table.dirty = False
        self._save_group(logged_lsn=self._logged())
        self._saved = self._idle_saved = now

    def _save_group(self, **changes: object) -> None:
        record = replace(self._record, **changes)  # type: ignore[arg-type]  # fields are checked by the dataclass
        if record != self._record or not self._saved:
            self._record = record
            self._store.save_group(record)
