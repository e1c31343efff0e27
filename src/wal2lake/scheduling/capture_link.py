"""Where the stream of a group comes from: its slot, its change log, its capture process, and what stands in their way.

open    the log and the slot belong together, or are made together at the very first start
look    how the capture fares; one that ended is started again
lost    the stream has a gap: nothing after it can be captured until all starts over with a new slot
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from time import monotonic

from .. import errors
from ..capture.process import CaptureProcess
from ..capture.report import CaptureReport, CaptureState
from ..changelog import ChangeLog
from ..changelog.backlog import Backlog
from ..config import Config, GroupConfig
from ..errors import Advice, ChangeLogDamaged, SlotLost, Wal2LakeError, advise
from ..position import ZERO, Lsn
from ..quoting import literal
from ..retry import GROUP
from ..source.database import Source
from ..source.locking import Patience
from ..state.lifecycle import GroupState
from .cadence import Freshness
from .initial_copies import OpenSnapshot
from .state_writer import StateWriter

log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 20.0
"""how long a capture that never got through may fail before the run ends with its error"""
ASK_SECONDS = 1.0
GAPS = (SlotLost, errors.SourceReplaced, errors.SourceRestored, ChangeLogDamaged)
"""errors of the capture after which the stream can't go on where it was"""


class CaptureLink:
    def __init__(
        self, config: Config, group: GroupConfig, source: Source, changelog: ChangeLog, backlog: Backlog,
        state_writer: StateWriter, wake: Callable[[], object], patience: Patience, resync_on_gap: bool = False,
    ) -> None:  # fmt: skip
        """`resync_on_gap`: tables are re-copied after a gap by themselves."""
        self._patience, self._resync_on_gap = patience, resync_on_gap
        self._group, self._source, self._log, self._backlog, self._state_writer = (
            group,
            source,
            changelog,
            backlog,
            state_writer,
        )
        self._new_capture = partial(CaptureProcess, config, group, wake)
        self._capture = self._new_capture()
        self._heard = CaptureReport()
        self._began = monotonic()
        self._again = self._flush_requested = 0.0
        self.freshness = Freshness(group.flush_interval, self.request_flush)
        self._still_since: datetime | None = None
        self._damaged = False
        """part of the change log can't be read"""
        self.lost: Advice | None = None
        """what to do about a gap in the stream; None if it has none"""

    @property
    def connected(self) -> bool:
        """Whether the stream has ever been open, as far as it was looked at."""
        return self._heard.connected_once

    @property
    def appends(self) -> bool:
        """Whether the stream has the publication of append-only tables."""
        return self._heard.appends

    @property
    def logged(self) -> Lsn:
        """Everything that committed below this is in the backlog, if it concerns a table of ours."""
        if not self._backlog.complete:
            return self._backlog.position
        # What was heard before the manifests were read: a table that none of them names is there, too.
        return max(self._heard.logged_lsn, self._backlog.position)

    @property
    def told(self) -> Lsn:
        """What the source may be told of the position: nothing before the capture has found it to be the same still."""
        return self.logged if self._heard.state is CaptureState.STREAMING else ZERO

    def open(self) -> OpenSnapshot | None:
        """Open the change log; at the very first start make the slot too, and keep its snapshot for the copies."""
        self._began = monotonic()
        if self._log.started:
            self._log.must_be_from(self._source.identity())
            return None
        self.require_own_slot()
        return self._new_slot()

    def require_own_slot(self) -> None:
        """Raises SlotLost if there is a slot of the group's name that the change log of this lake is not from."""
        if not self._log.exists and self._source.slot() is not None:
            name = self._source.slot_name
            raise SlotLost(
                slot=name,
                lsn="its own last position",
                cause="exists already, and the change log of this lake knows nothing of it",
                remedy=f"if another mirror uses it, give the group {self._group.name} another name in [[groups]]; "
                f"if none does: SELECT pg_drop_replication_slot({literal(name)})",
            )

    def start(self) -> None:
        self._capture.start()

    def stop(self) -> None:
        self._capture.stop()

    def request_flush(self, until: Lsn = ZERO) -> None:
        """Have all that was committed so far, or up to a position, in the log without waiting for the interval."""
        self._capture.request_flush(until)

    def ask(self) -> None:
        """Ask where the stream is, not too often: a table that nobody writes to has caught up all the same."""
        if monotonic() - self._flush_requested > ASK_SECONDS:
            self._flush_requested = monotonic()
            self._capture.request_flush()

    def fresh(self) -> bool:
        """Whether the backlog has what was complete a moment ago; if not, that is asked for, and there very soon."""
        heard = self._heard
        if heard.state is not CaptureState.STREAMING or heard.budget.paused:
            return True
        return self.freshness.given(self._backlog.seen, self._backlog.read_at, heard.answers)

    def look(self, ending: bool) -> None:
        """Take in what the capture reports. Raises its error if that is to end the run, which is `ending` anyway."""
        report = self._capture.report()
        error = report.error
        if report is self._heard and error is None and self.lost is None:
            return
        self._heard = report
        self._state_writer.note(warning=report.budget.warning, changelog_bytes=report.budget.bytes)
        self._note_standing(error is not None or report.budget.paused)
        if error is None:
            return
        if isinstance(error, GAPS):
            self.lose(error)
        elif (report.fatal and ending) or (not report.connected_once and monotonic() - self._began > GIVE_UP_SECONDS):
            raise error
        elif report.fatal and monotonic() >= self._again:
            self._again = monotonic() + GROUP.first
            self._capture.start()

    def lose(self, error: Wal2LakeError) -> None:
        """The stream has a gap, or what was captured of it can't be read."""
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
        """Why nothing can be captured, as far as it was looked at; None when all is well."""
        if self.lost is not None:
            return self.lost
        return advise(self._heard.error) if self._heard.error is not None else None

    def _note_standing(self, stands_still: bool) -> None:
        if not stands_still:
            self._still_since = None
        elif self._still_since is None:
            self._still_since = datetime.now(UTC)
        self._state_writer.note(still_since=self._still_since)

    def start_over(self) -> OpenSnapshot:
        """Make another slot in the place of one that is lost, and capture from there."""
        log.warning("group %s starts over with a new slot", self._group.name)
        self._capture.stop()
        opened = self._new_slot()
        self._backlog.begin(self._damaged)
        self._damaged = False
        # Positions of a restored database are lower: what the last capture told means nothing now.
        self._capture, self._heard, self.lost = self._new_capture(), CaptureReport(), None
        self._capture.start()
        self._state_writer.note(state=GroupState.RUNNING, error=None, remedy=None)
        return opened

    def _new_slot(self) -> OpenSnapshot:
        # The log is made before the slot, so that a slot left by a crash in between is known as ours.
        self._log.create(self._source.identity(), self._source.slot_name)
        self._source.drop_slot()
        opened = self._source.create_slot(self._patience)
        self._log.begin(opened.snapshot.lsn, self._source.appends(), self._damaged)
        return opened
