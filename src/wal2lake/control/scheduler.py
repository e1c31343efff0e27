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
from ..schema import TableSchema
from ..source import selection
from ..source.database import Source
from ..source.locking import Patience
from .applies import Applies, outcome
from .backlog import Backlog
from .books import Books
from .catalogue import Catalogue
from .chores import Chores
from .copies import Copies, OpenSnapshot, rounds
from .evolving import Evolving, ExchangeNeeded
from .exchanges import Exchanges
from .fulfilment import Fulfilment
from .moves import Moves
from .pace import Pace
from .places import Places
from .planner import LogView, plan, unfollowed
from .renaming import Renaming
from .roster import Roster
from .state import GroupState, TableState
from .store import GroupLease, StateStore, TableRecord, TableWish
from .tables import TableRun
from .tending import Tending
from .turns import Workforce
from .upstream import Upstream
from .wanting import Naming

log = logging.getLogger(__name__)

TURN_SECONDS = 0.5
ONCE_ATTEMPTS = 3


class Stop(Protocol):
    """Says when to stop."""

    def is_set(self) -> bool: ...


class GroupScheduler:
    def __init__(
        self, config: Config, group: GroupConfig, lake: Lake, store: StateStore, progress: Progress,
        workforce: Workforce, resync_on_gap: bool = False,
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
        self._places = Places(self._source, lake, naming)
        self._tables = Roster(
            group.name, self._source, store, lake, self._log, self._backlog, self._places,
            f"run ({self._lease.holder})", self._lease.raise_epoch,
        )  # fmt: skip
        self._renaming = Renaming(self._places, self._tables)
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._stop: Stop = self._stopping
        self._patience = Patience(self._told_to_stop, self._waits)
        self._applies = Applies(workforce.applies, self._wake.set)
        self._copies = Copies(
            workforce.copies, self._source, lake, progress, self._may_copy, self._copied, self._wake.set,
            Patience(self._stopping.is_set), self._places,
            lambda schema: self._evolving.policy(schema).keep_partitions, lambda: self._lease.epoch,
        )  # fmt: skip
        self._exchanges = Exchanges(
            self._source, lake, self._view, Patience(self._stopping.is_set), self._may_copy,
            lambda: self._upstream.logged, self._backlog.waiting, self._wake.set, lambda: self._lease.epoch,
        )  # fmt: skip
        self._chores = Chores(group.name, self._wake.set)
        self._tending = Tending(lake)
        self._evolving = Evolving(config, group)
        self._pace = Pace(group, config.tables)
        witness = self._log.witness if config.state.dsn is None else None
        self._books = Books(group.name, self._tables, store, self._chores, witness)
        self._upstream = Upstream(
            config, group, self._source, self._log, self._backlog, self._books, self._wake.set, self._patience,
            resync_on_gap,
        )  # fmt: skip
        moves = Moves(
            group.name, self._source, store, lake, self._log, self._backlog, self._tables, self._lease.raise_epoch
        )
        catalogue = Catalogue(group.name, self._source, store, naming, self._log)
        self._wishes = Fulfilment(catalogue, self._tables, moves, self._evolving, self._chores, self._drop_lake)
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
                self._wake.wait(self._upstream.freshness.awaited or TURN_SECONDS)
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
        self._books.note(slot=self._source.slot_name, holder=self._lease.holder, error=None, remedy=None)
        self._books.save_now(ZERO)
        # Before anything of the group's name is changed in the source.
        self._upstream.require_own_slot()
        wanted = self._wishes.first_look(self._patience)
        self._until = self._source.mark() if once else None
        self._tables.patient = not once
        if not self._log.started:
            # A first start that can't work must not leave a slot behind, which would hold WAL for nobody.
            self._lake.start()
        opened = self._upstream.open()
        self._books.note(error=None, remedy=None)
        try:
            if self._sound():
                self._tables.note_masks(wanted.schemas)
                self._tables.note_partitions(wanted.schemas)
            self._upstream.start()
            self._take_in(begin=True)
            self._lake.begin()
            self._wishes.adopt(wanted)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        threading.Thread(target=self._watch_lease, name=f"lease-{self.group.name}", daemon=True).start()
        if opened is not None:
            self._copy_pending(opened)
        self._books.note(state=GroupState.RUNNING)

    def _told_to_stop(self) -> bool:
        return self._stop.is_set()

    def _waits(self, error: SourceError) -> None:
        """The group can't begin before other sessions are done."""
        self._books.note(error=str(error), remedy=error.remedy)
        self._books.save_now(ZERO)

    @property
    def proven(self) -> bool:
        """Whether it has streamed: what ends it from then on is no mistake in the configuration."""
        return self._upstream.connected

    def _end(self) -> None:
        self._stopping.set()
        capture = threading.Thread(target=self._upstream.stop, name=f"end-capture-{self.group.name}")
        capture.start()
        steps = (
            self._source.interrupt, self._end_work, self._chores.close, partial(self._chores.finish, ending=True),
            self._finish_jobs,
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
        self._applies.close(cancel)

    def _note_end(self) -> None:
        if not self._lease.held:
            return
        if self._failed is None or self._stop.is_set():
            self._books.note(state=GroupState.STOPPED, holder=None)
        else:
            failed = self._failed
            self._books.note(state=GroupState.ERRORED, holder=None, error=failed.message, remedy=failed.remedy)
        self._books.save_now(self._upstream.told)

    def _watch_lease(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._lease.wait(1.0):
                    self._wishes.look_now()
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
        self._chores.finish()
        self._upstream.look(ending=self._until is not None)
        self._note_state()
        self._take_in()
        self._wishes.relook()
        self._finish_jobs()
        self._tables.heed(self._upstream.logged)
        self._wishes.move(self._upstream.logged)
        if self._upstream.lost is not None:
            self._face_loss(self._upstream.lost)
        if self._lake.ready:
            self._start_work()
        self._tables.rest()
        self._retire()
        self._books.save(self._upstream.told)

    def _note_state(self) -> None:
        """A group runs while it captures and the lake can be worked on; otherwise it says what is the matter."""
        trouble = self._upstream.trouble
        if trouble is None and self._lake.starts and not self._lake.ready:
            trouble = advise(SparkLost(cause="it is being started again"))
        if trouble is None:
            self._books.note(state=GroupState.RUNNING, error=None, remedy=None)
        else:
            self._books.note(state=GroupState.ERRORED, error=trouble.message, remedy=trouble.remedy)

    def _start_work(self) -> None:
        """Begin what the lake is to do; while Spark is started again, all of it waits."""
        if self._upstream.lost is None:
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
        self._start_tending()

    def _settled(self) -> bool:
        """Whether a run that is to end has done all it can."""
        busy = self._deferred or any(table.job is not None for table in self._tables.awake)
        if self._until is None or not self._lake.ready or busy:
            return False
        if self._upstream.lost is not None:
            return all(table.arriving or table.state is TableState.ERRORED for table in self._tables)
        # A source that was set back has positions that were reached long ago: only the capture can tell.
        if self._upstream.logged < self._until or not self._upstream.connected:
            self._upstream.hurry(self._until)
            return False
        if leaving := [table.leaving for table in self._tables.awake if table.leaving is not None]:
            self._upstream.hurry(max(leaving))
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
            self._upstream.lose(error)
        return self._upstream.lost is None

    def _take_in(self, begin: bool = False) -> None:
        try:
            if begin:
                self._backlog.begin()
            for oid, manifest in self._backlog.read():
                self._tables.arrive(oid, manifest)
            if not self._backlog.complete:
                self._wake.set()
        except ChangeLogDamaged as error:
            self._upstream.lose(error)

    def _retire(self) -> None:
        seen = self._backlog.seen
        done = min((table.done_with(seen) for table in self._tables.awake), default=seen)
        self._backlog.retire(done)
        if self._backlog.has_rubbish():
            self._chores.begin("deleting what is applied", self._backlog.delete)

    def _drop_lake(self, wish: TableWish) -> None:
        target = wish.target or wish.id
        if self._store.drop_lake(wish.oid, lambda: self._places.drop(wish.oid, target)):
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
        followed = opened is not None or self._upstream.connected
        if not pending or not followed or self._upstream.lost is not None:
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

    def _is_streamed(self, table: TableRun) -> bool:
        """Whether the stream has the publication that holds a table."""
        return self._upstream.appends or not self._source.append_only(table.schema)

    def _begin_copies(self, tables: Sequence[TableRun], opened: OpenSnapshot | None = None) -> None:
        for table in tables:
            # What a copy may still hold is only let go from here on: those that wait for a worker hold nothing.
            table.begin_copy(self._backlog.seen)
        self._copies.start(tables, opened)

    def _may_copy(self, schema: TableSchema) -> None:
        selection.require_masks(self._settings, self._log.schemas.last(schema.oid), schema)

    def _copied(self, table: TableRun) -> None:
        if self._upstream.lost is None:
            self._store.resync_done(self.group.name, table.schema.oid, table.resync_wanted)

    def _face_loss(self, lost: Advice) -> None:
        """The stream has a gap. What was captured before it is applied; what follows needs a fresh copy."""
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
                opened = self._upstream.begin_anew()
                self._take_in()
                self._copy_pending(opened)
            except Wal2LakeError as error:
                log.warning("group %s can't begin anew: %s", self.group.name, error)

    # ---- applying

    def _consider(self, table: TableRun) -> None:
        """Put a table in line for a worker if something waits for it."""
        renamed = self._renaming.step(table)
        if isinstance(renamed, Wal2LakeError):
            self._not_renamed(table, renamed)
        elif renamed is not None:
            self._applies.stand_in_line(table)
            return
        applied = table.applied
        if not table.active or table.job is not None or applied is None or table.resync:
            return
        if table.state is TableState.CATCHUP:
            _look_whether_caught_up(table, applied, self._upstream.logged)
            if table.catch_up and table.waiting is None:
                self._upstream.ask()
        if self._commit_due(table, applied):
            self._applies.stand_in_line(table)

    def _commit_due(self, table: TableRun, applied: Applied) -> bool:
        if table.waiting is None:
            return False
        if self._until is not None or table.state is TableState.CATCHUP or table.on_the_way:
            return True
        if self._upstream.freshness.too_soon(table.began):
            return False
        waiting = self._backlog.after(table.schema.oid, applied.manifest)
        committed = table.record.last_commit_at
        return self._pace.due(table.schema, committed, waiting, datetime.now(UTC))

    def _start_applies(self) -> None:
        if not self._applies.called or (self._until is None and not self._upstream.fresh()):
            return
        while (table := self._applies.next()) is not None:
            applied = table.applied
            if self._tables.get(table.schema.oid) is not table:
                # It stood in line when it was let go of, and is somebody else's by now.
                continue
            if (rename := self._renaming.begin(table)) is not None:
                self._applies.start(table, rename)
                continue
            if not table.active or table.job is not None or applied is None or table.resync:
                continue
            if self._tending.urgent(applied):
                self._tend(table, applied)
                continue
            waiting = self._backlog.after(table.schema.oid, applied.manifest)
            policy = self._evolving.policy(table.schema)
            try:
                planned = plan(applied, waiting, self._view, newest=self._backlog.newest, policy=policy)
            except ChangeLogDamaged as error:
                of_segment = str(error.fields.get("path")).endswith(".parquet")
                if not of_segment:
                    self._upstream.lose(error)
                self._fail(table, damaged_for(table.name, error) if of_segment else error)
                continue
            if planned.batch is not None:
                self._evolving.applying(table.schema.oid, planned.batch)
                self._applies.start(table, partial(self._apply, table.name, applied, planned.batch))
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
            policy = self._evolving.policy(schema)
            if moved(applied.schema, schema) is not None:
                self._evolving.exchanging(oid)
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
        if self._upstream.lost is not None:
            return
        if self._evolving.waits(self._upstream.logged):
            self._upstream.hurry()
        if self._exchanges.awaited > self._upstream.logged:
            self._upstream.hurry(self._exchanges.awaited)
        for table, target in self._evolving.due(self._tables, self._upstream.logged):
            if isinstance(target, Wal2LakeError):
                self._tables.wake(table)
                self._fail(table, target)
            elif isinstance(target, ExchangeNeeded):
                self._tables.wake(table)
                self._start_exchange(table)
            elif table.applied is not None:
                self._tables.wake(table)
                self._applies.start(table, partial(self._evolve, table.applied, target))

    def _evolve(self, applied: Applied, schema: TableSchema) -> Applied:
        return self._lake.evolve(applied, schema, self._source.table_id(schema.oid), self._lease.epoch)

    def _start_exchange(self, table: TableRun) -> None:
        """Have a worker copy the partitions whose rows no change tells of, when one is free."""
        if table.applied is None or not self._copies.may_start:
            self._deferred = True
            return
        self._evolving.exchanging(table.schema.oid)
        policy = self._evolving.policy(table.schema)
        self._copies.start_part(table, partial(self._exchanges.work, table.applied, policy))

    def _renamed(self, table: TableRun, result: object) -> None:
        self._renaming.finish(table, result)
        if isinstance(result, BaseException) and not self._stopping.is_set():
            self._not_renamed(table, result)

    def _not_renamed(self, table: TableRun, error: BaseException) -> None:
        table.rename_failed = True
        if table.paused:
            log.warning("%s: its lake table can't be renamed: %s", table.name, advise(error).message)
        else:
            self._fail(table, error)

    def _start_tending(self) -> None:
        # A run that is to end soon leaves it to one that goes on.
        if self._until is None and self._upstream.lost is None and self._applies.idle:
            table = self._tending.next(self._tables)
            if table is not None and table.applied is not None:
                self._tend(table, table.applied)

    def _tend(self, table: TableRun, applied: Applied) -> None:
        self._tending.begin(table)
        self._tables.wake(table)
        self._applies.start(table, partial(self._lake.maintain, applied, self._source.table_id(table.schema.oid)))

    def _finish_jobs(self) -> None:
        for table in (*self._copies.ended(), *self._applies.ended()):
            job, table.job = table.job, None
            assert job is not None
            result = outcome(job)
            self._evolving.ended(table.schema.oid, result.lsn if isinstance(result, Applied) else None)
            if table is self._tending.under_way:
                self._tended(table, result)
            elif table in self._renaming:
                self._renamed(table, result)
            elif isinstance(result, Applied):
                # A copy that was made while the stream was lost has nothing to continue with.
                table.resync = table.state is TableState.SNAPSHOT and self._upstream.lost is not None
                self._finish(table, result)
                self._tending.committed(table)
            elif self._stopping.is_set():
                table.abandon()
            elif result is not None:
                self._fail(table, result)

    def _finish(self, table: TableRun, result: Applied) -> None:
        if table.state is TableState.SNAPSHOT:
            self._evolving.copied(table.schema.oid, result.lsn)
        table.update(target=result.schema.id)
        table.finish(result, self._backlog.after(table.schema.oid, result.manifest))

    def _tended(self, table: TableRun, result: Applied | BaseException | None) -> None:
        if isinstance(result, BaseException):
            log.warning("%s: its upkeep did not succeed: %s", table.name, advise(result).message)
        self._tending.finish(table, result if isinstance(result, Applied) else None)

    def _fail(self, table: TableRun, error: BaseException) -> None:
        advice = advise(error.about(table.name) if isinstance(error, Wal2LakeError) else error)
        if not table.failed_by(advice):
            # A table that is re-copied by itself needs nobody.
            level = logging.WARNING if isinstance(error, CopyNeeded | SparkLost) else logging.ERROR
            log.log(level, "%s", advice.message if table.name in advice.message else f"{table.name}: {advice.message}")
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


def damaged_for(table: str, error: ChangeLogDamaged) -> ChangeLogDamaged:
    """A damaged segment concerns its table alone."""
    return ChangeLogDamaged(
        **error.fields, remedy=f"re-copy the table it belongs to with: wal2lake tables resync {shell(table)}"
    )


def _look_whether_caught_up(table: TableRun, applied: Applied, logged: Lsn) -> None:
    """A table streams when it has what was captured as its catching up began; a busy one is never without more."""
    if not table.catch_up:
        table.catch_up = max(logged, applied.lsn)
    if applied.lsn >= table.catch_up or (table.waiting is None and logged >= table.catch_up):
        table.catch_up = ZERO
        table.become(TableState.STREAMING)
        table.succeed()
