"""How the changes of a group with `capture = "auto"` are captured: by the WAL where that is possible, else by triggers.

    first start       no obstacle ─► WAL          an obstacle ─► triggers
    triggers          no obstacle any more ─► the group crosses over to the WAL, without a copy
    WAL               the slot is lost, and an obstacle ─► triggers, with a copy

What counts is in the change log: until it says that the group has crossed, triggers do.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from .. import faults
from ..changelog import ChangeLog
from ..config import Config, GroupConfig
from ..errors import SourceBusy, Wal2LakeError, advise
from ..executor import Executor
from ..reconcile import TableRegistry, TableRuntime, choose
from ..source import Crossing, SourceDatabase
from ..source.sessions import Patience
from ..state import HistoryEntry, StateStore, identity_entries
from ..state.lifecycle import Mode, TableState, mode_of
from .background import BackgroundTasks

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""between two looks whether the WAL can be used"""
AGAIN_SECONDS = 60.0
"""after an attempt that was abandoned"""
READY_SECONDS = 0.25
ATTEMPTS = 3
"""after so many failures of a table, its copy is not waited for"""
CLEAR_SECONDS = 2.0
MAINTAIN_SECONDS = 1.0
"""between two looks at tables that are captured by triggers beside a slot"""


class Lanes:
    """The capture mode of a running group, and its change to another one."""

    def __init__(
        self, config: Config, group: GroupConfig, auto: bool, changelog: ChangeLog, source: SourceDatabase,
        store: StateStore, tables: TableRegistry, background: BackgroundTasks, stopping: Callable[[], bool], who: str,
        executor: Executor,
    ) -> None:  # fmt: skip
        """`auto`: the mode was chosen; otherwise it never changes."""
        self._group, self._auto, self._log, self._source = group, auto, changelog, source
        self._configured = group.model_copy(update={"capture": "auto"})
        self._store, self._tables, self._background, self._who = store, tables, background, who
        self._stopping, self._clock = stopping, executor.clock
        self._timeout = config.source.transition_timeout
        self._crossing: Crossing | None = None
        self._clear = False
        """whether nothing is left of the other mode"""
        self._maintains, self._maintain_at = True, 0.0
        """whether there may be tables that are captured by triggers beside a slot"""
        self._deadline: float | None = None
        """while a change is under way: when it is abandoned"""
        self._ready = False
        self._look_at = 0.0
        self._once = self._done = False
        """whether the run ends when it has caught up; whether there is nothing that it should wait for"""
        self._awaited_since: float | None = None
        self.changed = False
        """whether the group has to begin again, with another mode"""
        self.fell_back = auto and group.triggers and changelog.started and not changelog.by_triggers
        """whether the WAL can't be used any more, so that tables have to be re-copied"""

    @property
    def mode(self) -> Mode:
        return Mode.TRANSITIONING if self._deadline is not None else mode_of(self._group)

    def run_once(self) -> None:
        """The run ends when it has caught up and `awaits` says no."""
        self._once = True

    def awaits(self) -> bool:
        """Whether a run that has caught up is to wait: for a change to the WAL that nothing blocks, or its cleanup."""
        now = self._clock.monotonic()
        if self._awaited_since is None:
            self._awaited_since = now
        if not self._auto or self._done or now - self._awaited_since > self._timeout:
            return False
        return not self._group.triggers or self._deadline is not None or bool(self._settled_tables())

    def step(self, stop_capture: Callable[[], object], start_capture: Callable[[], object]) -> bool:
        """One step of what is to be done; whether the mode has changed."""
        now = self._clock.monotonic()
        if self._log.by_triggers is not self._group.triggers:
            return False
        self._announce_tables()
        if not self._group.triggers and now >= self._maintain_at:
            self._maintain_at = now + MAINTAIN_SECONDS
            if self._maintains or any(table.record.mode is Mode.TRIGGER for table in self._tables):
                self._background.begin("maintaining the triggers", self._maintain, self._maintained)
        if now < self._look_at:
            return False
        if not self._clear:
            self._look_at = now + CLEAR_SECONDS
            self._background.begin("removing the other capture mode", self._clear_other, self._cleared)
        elif self._auto and self._group.triggers:
            self._cross(now, stop_capture, start_capture)
        return self.changed

    def _maintain(self) -> bool:
        try:
            return self._source.maintain_triggers()
        except SourceBusy as error:
            log.info("group %s: the triggers of a table are looked at again later: %s", self._group.name, error)
            return True

    def _maintained(self, left: bool) -> None:
        self._maintains = left

    def _clear_other(self) -> bool:
        try:
            self._source.clear_other_lane()
        except SourceBusy as error:
            log.info("group %s: what another capture mode has left is removed later: %s", self._group.name, error)
            return False
        except Wal2LakeError:
            self._done = True
            raise
        return True

    def _cleared(self, clear: bool) -> None:
        self._clear = clear
        if clear:
            self._look_at = 0.0
        # A table that is locked is not waited for.
        self._done |= not (clear and self._group.triggers)

    # ---- from triggers to the WAL

    def _cross(self, now: float, stop_capture: Callable[[], object], start_capture: Callable[[], object]) -> None:
        oids = self._settled_tables()
        if self._deadline is None:
            self._look_at = now + (READY_SECONDS if self._once else LOOK_SECONDS)
            if oids:
                self._background.begin("changing to the WAL", partial(self._begin, oids), self._begun)
        elif oids is None:
            self._give_up("a table has to be copied")
        elif now > self._deadline:
            self._give_up("transactions have been open for too long")
        elif self._ready:
            self._look_at, self._ready = now + READY_SECONDS, False
            stop_capture()
            if not self._finish(oids):
                start_capture()
        else:
            self._look_at = now + READY_SECONDS
            self._background.begin("looking at the change to the WAL", partial(self._look, oids))

    def _settled_tables(self) -> frozenset[int] | None:
        """The tables to cross over; None while one of them is copied or moves."""
        mine = [table for table in self._tables if table.refusal is None and table.state is not TableState.DROPPED]
        unsettled = (TableState.PENDING, TableState.SNAPSHOT)
        if any(
            table.moving_in or table.resync or table.state in unsettled
            or (table.applied is None and not table.paused and table.record.failures <= ATTEMPTS)
            for table in mine
        ):  # fmt: skip
            return None
        return frozenset(table.schema.oid for table in mine)

    def _begin(self, oids: frozenset[int]) -> float | None:
        try:
            crossing = self._possible(oids)
        except Wal2LakeError:
            self._done = True
            raise
        if crossing is None:
            return None
        deadline = self._clock.monotonic() + self._timeout
        log.info("group %s begins to change from triggers to the WAL", self._group.name)
        try:
            crossing.begin(oids, Patience(lambda: self._stopping() or self._clock.monotonic() > deadline))
        except Exception as error:
            self._undo(advise(error).message)
            return None
        return deadline

    def _possible(self, oids: frozenset[int]) -> Crossing | None:
        """The steps to the WAL, unless something blocks them."""
        crossing = self._crossing = self._crossing or self._source.crossing()
        if crossing is not None and (done := crossing.identify(oids)):
            names = {table.schema.oid: table.schema.id for table in self._tables}
            self._store.add_history(identity_entries(self._group.name, done, names, self._clock.now()))
        if crossing is None or (obstacles := crossing.obstacles(oids)):
            if crossing is not None:
                log.debug("group %s stays with triggers: %s", self._group.name, "; ".join(obstacles))
            return None
        return crossing

    def _begun(self, deadline: float | None) -> None:
        if deadline is None:
            self._done = True
        else:
            self._deadline = deadline
            self._look_at = 0.0

    def _look(self, oids: frozenset[int]) -> None:
        """Whether the change can be finished; it is abandoned where it never could."""
        try:
            self._ready = self._crossing is not None and self._crossing.ready(oids, self._log.reopened().token() or "")
        except Wal2LakeError as error:
            self._deadline, self._done = None, True
            self._undo(str(error))

    def _finish(self, oids: frozenset[int]) -> bool:
        """Nothing is being captured: let the stream of the slot take over."""
        assert self._crossing is not None
        try:
            crossed = self._crossing.finish(oids, self._log.token() or "")
        except Wal2LakeError as error:
            self._give_up(str(error))
            return False
        if crossed is None:
            return False
        faults.reached(faults.CROSSING_STOPPED)
        # The slot may begin beyond the last drain.
        self._log.record_acknowledged(crossed.seen.until)
        if crossed.appends is not None:
            self._log.append_from(crossed.appends)
        self._log.cross(crossed.seen)
        faults.reached(faults.CROSSED)
        self.changed = True
        self.announce(Mode.TRIGGER, Mode.WAL, [table for table in self._tables if table.schema.oid not in crossed.stay])
        return True

    def _give_up(self, cause: str) -> None:
        self._deadline, self._ready, self._done = None, False, True
        self._look_at = self._clock.monotonic() + AGAIN_SECONDS
        self._background.begin("undoing the change to the WAL", partial(self._undo, cause))

    def _undo(self, cause: str) -> None:
        self._look_at = self._clock.monotonic() + AGAIN_SECONDS
        log.warning("group %s stays with triggers, and tries the WAL again later: %s", self._group.name, cause)
        assert self._crossing is not None
        # Should this fail, too, it is done before the next attempt, or at the next start.
        self._clear = False
        self._crossing.undo()

    # ---- from the WAL to triggers

    def falls_back(self) -> bool:
        """The slot is lost: whether triggers have to take its place, because there can't be another one."""
        now = self._clock.monotonic()
        if not self._auto or self._group.triggers:
            self._done = True
            return False
        if now < self._look_at:
            return False
        self._look_at = now + CLEAR_SECONDS
        self.changed = choose(self._configured, self._log, self._source).group.triggers
        # What is left is removed when the group captures again.
        self._done |= not self.changed
        return self.changed

    def fallen_back(self) -> None:
        """Triggers capture; the tables are being re-copied."""
        if self.fell_back:
            self.fell_back = False
            self.announce(
                Mode.WAL, Mode.TRIGGER, [table for table in self._tables if table.mode_before is not Mode.TRIGGER]
            )

    def announce(self, before: Mode, after: Mode, tables: Sequence[TableRuntime]) -> None:
        """Tell of another mode of the group: log, history, notification."""
        log.warning("group %s: captured by %s from here on, not by %s", self._group.name, after, before)
        self._announce(before, after, tables)

    def _announce_tables(self) -> None:
        """The same of single tables."""
        for table, before, after in self._tables.take_mode_changes():
            if Mode.TRANSITIONING not in (before, after):
                log.warning("%s: captured by %s from here on, not by %s", table.name, after, before)
                work = partial(self._announce, before, after, [table])
                self._background.begin(f"announcing the capture mode of {table.name}", work)

    def _announce(self, before: Mode, after: Mode, tables: Sequence[TableRuntime]) -> None:
        try:
            self._store.add_history(list(self._entries(before, after, tables)))
            for table in tables:
                self._source.announce(self._event(table, before, after))
        except Wal2LakeError as error:
            log.warning("group %s: its new capture mode could not be announced: %s", self._group.name, error)

    def _entries(self, before: Mode, after: Mode, tables: Sequence[TableRuntime]) -> Iterator[HistoryEntry]:
        for table in tables:
            yield HistoryEntry(
                self._group.name, table.schema.oid, table.schema.id, self._clock.now(), self._who, before, after,
                "capture mode",
            )  # fmt: skip

    def _event(self, table: TableRuntime, before: Mode, after: Mode) -> str:
        slot = self._source.slot_name if Mode.WAL in (before, after) else None
        return json.dumps({"table": table.name, "group": self._group.name, "old": before, "new": after, "slot": slot})

    def close(self) -> None:
        """The run ends. An unfinished change is undone, now or at the next start."""
        if self._crossing is not None:
            if not self.changed and self._deadline is not None:
                self._crossing.undo()
            self._crossing.close()
