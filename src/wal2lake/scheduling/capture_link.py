"""The stream of a group: its slot, change log and capture process, and errors of them.

open    the log and the slot belong together, or are created together at the first start
look    state of the capture process; one that ended is restarted
lost    the stream has a gap: nothing after it can be captured until a new slot is created
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from .. import errors
from ..capture import CaptureReport, CaptureState, MakeCapture
from ..changelog import Backlog, ChangeLog
from ..clock import Clock
from ..config import GroupConfig
from ..errors import Advice, ChangeLogDamaged, SlotLost, Wal2LakeError, advise
from ..position import ZERO, Lsn
from ..quoting import literal
from ..retry import GROUP
from ..source import SourceDatabase
from ..source.sessions import Patience
from ..state.lifecycle import GroupState
from .cadence import Freshness
from .initial_copies import OpenSnapshot
from .state_writer import StateWriter

log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 20.0
"""limit for a capture that never connected to keep failing, after which the run ends with its error"""
ASK_SECONDS = 1.0
GAPS = (SlotLost, errors.SourceReplaced, errors.SourceRestored, ChangeLogDamaged)
"""errors of capture after which the stream can't continue"""


class CaptureLink:
    def __init__(
        self, group: GroupConfig, source: SourceDatabase, changelog: ChangeLog, backlog: Backlog,
        state_writer: StateWriter, make_capture: MakeCapture, wake: Callable[[], object], patience: Patience,
        clock: Clock, resync_on_gap: bool = False,
    ) -> None:  # fmt: skip
        """`resync_on_gap`: tables are re-copied after a gap without a command."""
        self._make_capture, self._wake, self._clock = make_capture, wake, clock
        self._patience, self._resync_on_gap = patience, resync_on_gap
        self._group, self._source, self._log, self._backlog, self._state_writer = (
            group,
            source,
            changelog,
            backlog,
            state_writer,
        )
        self._capture = make_capture(wake)
        self._report = CaptureReport()
        self._began = self._clock.monotonic()
        self._again = self._flush_requested = 0.0
        self.freshness = Freshness(group.flush_interval, self.request_flush, clock)
        self._stalled_since: datetime | None = None
        self._damaged = False
        """part of the change log can't be read"""
        self.lost: Advice | None = None
        """the remedy for a gap in the stream; None if there is none"""

    @property
    def connected(self) -> bool:
        """Whether the stream has been open, by the last report."""
        return self._report.connected_once

    @property
    def appends(self) -> bool:
        """Whether the stream has the publication of append-only tables."""
        return self._report.appends

    @property
    def logged(self) -> Lsn:
        """Everything that committed below this is in the backlog, if it is about a mirrored table."""
        if not self._backlog.complete:
            return self._backlog.position
        # The report was read before the manifests, so it also covers tables that none of them names.
        return max(self._report.logged_lsn, self._backlog.position)

    @property
    def logged_to_store(self) -> Lsn:
        """The position that may be written to the source; none before capture has verified the source."""
        return self.logged if self._report.state is CaptureState.STREAMING else ZERO

    def open(self) -> OpenSnapshot | None:
        """Open the change log; at the first start create the slot, too, and keep its snapshot for the copies."""
        self._began = self._clock.monotonic()
        if self._log.started:
            self._log.must_be_from(self._source.identity())
            return None
        self.require_own_slot()
        return self._new_slot()

    def require_own_slot(self) -> None:
        """Raises SlotLost if a slot with the group's name exists that this lake's change log was not read from."""
        if not self._log.exists and self._source.slot() is not None:
            name = self._source.slot_name
            raise SlotLost(
                slot=name,
                lsn="its own last position",
                cause="exists already, and is not the slot of this lake's change log",
                remedy=f"if another mirror uses it, give the group {self._group.name} another name in [[groups]]; "
                f"if none does: SELECT pg_drop_replication_slot({literal(name)})",
            )

    def start(self) -> None:
        self._capture.start()

    def stop(self) -> None:
        self._capture.stop()

    def request_flush(self, until: Lsn = ZERO) -> None:
        """Request everything that was committed so far, or up to a position, to be logged without delay."""
        self._capture.request_flush(until)

    def request_position(self) -> None:
        """Ask for the position of the stream, not too often: a table without changes has caught up, too."""
        if self._clock.monotonic() - self._flush_requested > ASK_SECONDS:
            self._flush_requested = self._clock.monotonic()
            self._capture.request_flush()

    def fresh(self) -> bool:
        """Whether the backlog has what was complete a moment ago; if not, a flush is requested."""
        heard = self._report
        if heard.state is not CaptureState.STREAMING or heard.budget.paused:
            return True
        return self.freshness.may_begin(self._backlog.seen, self._backlog.read_at, heard.answers)

    def check(self, ending: bool) -> None:
        """Take in the report of capture. Raises its error if that ends the run; `ending`: it ends anyway."""
        report = self._capture.report()
        error = report.error
        if report is self._report and error is None and self.lost is None:
            return
        self._report = report
        self._state_writer.note(warning=report.budget.warning, changelog_bytes=report.budget.bytes)
        self._note_stall(error is not None or report.budget.paused)
        if error is None:
            return
        if isinstance(error, GAPS):
            self.lose(error)
            return
        now = self._clock.monotonic()
        if (report.fatal and ending) or (not report.connected_once and now - self._began > GIVE_UP_SECONDS):
            raise error
        if report.fatal and now >= self._again:
            self._again = now + GROUP.first
            self._capture.start()

    def lose(self, error: Wal2LakeError) -> None:
        """The stream has a gap, or part of the captured changes can't be read."""
        if self.lost is None:
            healed = self._resync_on_gap
            remedy = "No action needed: the tables are re-copied" if healed else error.remedy
            for text in (str(error), remedy):
                log.log(logging.WARNING if healed else logging.ERROR, "group %s: %s", self._group.name, text)
        self.lost = advise(error)
        self._damaged |= isinstance(error, ChangeLogDamaged)
        self._state_writer.note(state=GroupState.ERRORED, error=str(error), remedy=error.remedy)

    @property
    def trouble(self) -> Advice | None:
        """Why nothing can be captured, by the last report; None: nothing is wrong."""
        if self.lost is not None:
            return self.lost
        return advise(self._report.error) if self._report.error is not None else None

    def _note_stall(self, stalled: bool) -> None:
        if not stalled:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = self._clock.now()
        self._state_writer.note(still_since=self._stalled_since)

    def start_over(self) -> OpenSnapshot:
        """Replace a lost slot by a new one, and capture from there."""
        log.warning("group %s starts over with a new slot", self._group.name)
        self._capture.stop()
        opened = self._new_slot()
        try:
            self._backlog.begin(self._damaged)
            self._damaged = False
            # Positions of a restored database are lower, so those of the last capture are dropped.
            self._capture, self._report, self.lost = self._make_capture(self._wake), CaptureReport(), None
            self._capture.start()
        except BaseException:
            opened.close()
            raise
        self._state_writer.note(state=GroupState.RUNNING, error=None, remedy=None)
        return opened

    def _new_slot(self) -> OpenSnapshot:
        # The log is created first, so that after a crash in between the slot is known to be ours.
        self._log.create(self._source.identity(), self._source.slot_name)
        self._source.drop_slot()
        opened = self._source.create_slot(self._patience)
        try:
            self._log.begin(opened.snapshot.lsn, self._source.appends(), self._damaged, opened.snapshot.token)
        except BaseException:
            opened.close()
            raise
        return opened
