"""A snapshot for copies that an ordinary session exports: it is connected with the stream by visibility.

Taken after the slot exists, the triggers are installed or the table is published, and after every transaction that ran
then has ended. Making a slot does not see to that: it takes for ended who has written a commit record, though a
transaction that waits for a synchronous standby is neither visible yet nor sent by that slot.

    position P ──► number X ──► all below X have ended ──► snapshot S ──► position U
    below P: visible in S         from P to U: to be asked of S          from U on: not visible in S
"""

from __future__ import annotations

import logging
from typing import Protocol

from ...clock import Clock
from ...errors import SourceBusy
from ...position import Lsn
from ...visibility import Visibility
from ..model import ExportedSnapshot
from ..sessions.closing import Closing
from ..sessions.locking import Patience

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
REPORT_SECONDS = 5.0


class SnapshotHolder(Protocol):
    """A transaction that has exported its snapshot, and stays open."""

    name: str
    seen: str
    """the snapshot, as PostgreSQL writes it"""

    @property
    def alive(self) -> bool: ...
    def close(self) -> None: ...


class SnapshotServer(Protocol):
    """A session that takes snapshots. Any method raises ConnectionFailed if the server can't be reached."""

    @property
    def clock(self) -> Clock: ...
    def written(self) -> Lsn:
        """The end of the WAL: everything that is visible is below it."""

    def mark(self) -> Lsn:
        """Write a message to the WAL; a position after it that the stream will reach."""

    def moment(self) -> str:
        """A number of a transaction, above those of all that run."""

    def ended(self, moment: str) -> bool:
        """Whether all transactions below a number have ended and can be seen."""

    def running(self) -> SourceBusy:
        """The error that names those that run."""

    def export(self) -> SnapshotHolder: ...
    def sleep(self, seconds: float) -> None: ...
    def close(self) -> None:
        """What it has exported stays."""


class SessionSnapshot(Closing):
    """Implements OpenSnapshot with a transaction that stays open until it is closed."""

    def __init__(self, snapshot: ExportedSnapshot, holder: SnapshotHolder) -> None:
        self.snapshot = snapshot
        self._holder = holder

    @property
    def alive(self) -> bool:
        return self._holder.alive

    def close(self) -> None:
        self._holder.close()


def take(server: SnapshotServer, patience: Patience) -> SessionSnapshot:
    """Wait for the transactions that run, then export a snapshot. Raises SourceBusy if that is to stop."""
    first = server.written()
    await_running(server, patience)
    holder = server.export()
    try:
        until = max(server.mark(), server.written())
        snapshot = ExportedSnapshot(holder.name, first, Visibility.of(holder.seen, until))
    except BaseException:
        holder.close()
        raise
    log.debug("snapshot %s taken: %s", snapshot.name, snapshot.visibility)
    return SessionSnapshot(snapshot, holder)


def await_running(server: SnapshotServer, patience: Patience) -> None:
    """Wait until every transaction that runs now, in any database, has ended and can be seen."""
    moment = server.moment()
    report_at = server.clock.monotonic() + REPORT_SECONDS
    while not server.ended(moment):
        if patience.stopped():
            raise server.running()
        if server.clock.monotonic() >= report_at:
            report_at = server.clock.monotonic() + 2 * REPORT_SECONDS
            error = server.running()
            log.warning("%s", error)
            patience.on_wait(error)
        # The server has no way to wait for this.
        server.sleep(LOOK_SECONDS)
