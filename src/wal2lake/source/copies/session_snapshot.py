"""A snapshot for copies that an ordinary session exports: it is connected with the stream by visibility.

Taken after the slot exists, the triggers are installed or the table is published, and after every transaction that ran
then has ended. Making a slot does not see to that: it takes for ended who has written a commit record, though a
transaction that waits for a synchronous standby is neither visible yet nor sent by that slot.

    position P ──► number X ──► all below X have ended ──► snapshot S ──► position U
    below P: visible in S         from P to U: to be asked of S          from U on: not visible in S
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable

from psycopg import IsolationLevel

from ...errors import ConnectionFailed, SourceBusy
from ...visibility import Visibility
from ..model import ExportedSnapshot
from ..sessions.closing import Closing
from ..sessions.connect import Connection, alive, explained, query
from ..sessions.locking import OpenTransaction, Patience
from ..sessions.server import mark, wal_written

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
REPORT_SECONDS = 5.0


class SessionSnapshot(Closing):
    """Implements OpenSnapshot with a transaction that stays open until it is closed."""

    def __init__(self, snapshot: ExportedSnapshot, holder: Connection) -> None:
        self.snapshot = snapshot
        self._holder = holder

    @property
    def alive(self) -> bool:
        return alive(self._holder)

    def close(self) -> None:
        self._holder.close()


def take(connected: Callable[[], Connection], patience: Patience) -> SessionSnapshot:
    """Wait for the transactions that run, then export a snapshot. Raises SourceBusy if that is to stop."""
    with connected() as control:
        first = wal_written(control)
        await_running(control, patience)
        holder = connected()
        try:
            name, seen = _exported(holder)
            until = max(mark(control), wal_written(control))
        except BaseException:
            holder.close()
            raise
    snapshot = ExportedSnapshot(name, first, Visibility.of(seen, until))
    log.debug("snapshot %s taken: %s", name, snapshot.visibility)
    return SessionSnapshot(snapshot, holder)


def _exported(holder: Connection) -> tuple[str, str]:
    with explained("taking", "a snapshot"):
        # The transaction begins with the first statement, and stays open for as long as copies read.
        holder.autocommit, holder.read_only = False, True
        holder.isolation_level = IsolationLevel.REPEATABLE_READ
        row = holder.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
    if row is None:
        raise ConnectionFailed(server="the source", cause="no answer")
    return row


def await_running(control: Connection, patience: Patience) -> None:
    """Wait until every transaction that runs now, in any database, has ended and can be seen."""
    moment = _one(control, "SELECT pg_current_xact_id()::text")
    report_at = time.monotonic() + REPORT_SECONDS
    ended = "SELECT (pg_snapshot_xmin(pg_current_snapshot()) >= %s::text::xid8)::text"
    while _one(control, ended, moment) != "true":
        if patience.stopped():
            raise _running(control)
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + 2 * REPORT_SECONDS
            error = _running(control)
            log.warning("%s", error)
            patience.on_wait(error)
        # The server has no way to wait for this.
        select.select([], [], [], LOOK_SECONDS)


def _running(control: Connection) -> SourceBusy:
    with explained("reading", "the running transactions"):
        rows = control.execute(query("slot_blockers")).fetchall()
    others = [OpenTransaction(*row[:4]) for row in rows]
    described = ", ".join(map(str, others))
    remedy = {"remedy": f"wait for their end, or end them, as in: {others[0].end}"} if others else {}
    return SourceBusy(
        operation="taking", object="a snapshot", cause=f"transactions are open: {described or 'unknown'}", **remedy
    )


def _one(control: Connection, statement: str, *values: str) -> str:
    with explained("reading", "the running transactions"):
        row = control.execute(statement.encode(), values).fetchone()
    return str(row[0]) if row is not None else ""
