"""Snapshots for copies beside triggers: what one sees is drained by itself, so that its position is the drain's.

    copy: position P, snapshot S exported, asks ──► stream: drains what S sees as position P, makes it durable, grants

A drain that came between the two is newer than S; then the copy asks again with another snapshot.
"""

from __future__ import annotations

import logging
import secrets
import select
import time
from collections.abc import Callable

from ...errors import ConnectionFailed, SourceBusy
from ..copies.session_snapshot import SessionSnapshot
from ..model import ExportedSnapshot
from ..sessions.connect import Connection, explained
from ..sessions.locking import Patience
from ..sessions.server import wal_written

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
REPORT_SECONDS = 10.0


def take(holder: Connection) -> SessionSnapshot:
    """A snapshot that a new stream begins after: what it sees need not be drained."""
    with explained("taking", "a snapshot"):
        # Who becomes visible between the two is at a later position and in the snapshot: nothing is below it unseen.
        holder.execute("SELECT pg_logical_emit_message(true, 'wal2lake', 'copy')")
        position = wal_written(holder)
        # Not through a context manager: the transaction stays open for as long as copies read.
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = holder.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
    if row is None:
        raise ConnectionFailed(server="the source", cause="no answer")
    return SessionSnapshot(ExportedSnapshot(row[0], position, token=row[1]), holder)


def agreed(connected: Callable[[], Connection], lane: str, patience: Patience) -> SessionSnapshot:
    """A snapshot whose drain has become durable. Raises SourceBusy if that is to stop."""
    while True:
        holder = connected()
        try:
            taken = take(holder)
            with connected() as control:
                if _granted(control, lane, taken.snapshot, patience):
                    return taken
        except BaseException:
            holder.close()
            raise
        taken.close()


def _granted(control: Connection, lane: str, snapshot: ExportedSnapshot, patience: Patience) -> bool:
    number = secrets.token_hex(8)
    with explained("asking for", "a drain"):
        _wait(lambda: _asked(control, lane, number, snapshot), patience)
        answer: list[bool] = []

        def answered() -> bool:
            row = control.execute(
                "SELECT asked, answered, granted FROM wal2lake_changes.lanes WHERE lane = %s", [lane]
            ).fetchone()
            if row is None:
                raise SourceBusy(operation="asking for", object="a drain", cause="the triggers were removed")
            if row[0] != number:
                # It was answered, and another copy asked before the answer was read.
                answer[:] = [False]
            elif row[1] == number:
                answer[:] = [row[2]]
            return bool(answer)

        try:
            _wait(answered, patience)
        finally:
            control.execute(
                "UPDATE wal2lake_changes.lanes SET asked = NULL, answered = NULL WHERE lane = %s AND asked = %s",
                [lane, number],
            )
    return answer[0]


def _asked(control: Connection, lane: str, number: str, snapshot: ExportedSnapshot) -> bool:
    """Ask, as soon as nobody else does. Who asked and is gone has left an exported snapshot that is gone, too."""
    asked = control.execute(
        "UPDATE wal2lake_changes.lanes SET asked = %s, asked_snapshot = %s, asked_position = %s, answered = NULL,"
        " granted = false WHERE lane = %s AND (asked IS NULL OR answered = asked)",
        [number, snapshot.name, str(snapshot.lsn), lane],
    )
    return asked.rowcount == 1


def _wait(condition: Callable[[], bool], patience: Patience) -> None:
    report_at = time.monotonic() + REPORT_SECONDS
    error = SourceBusy(
        operation="taking", object="a snapshot", cause="the capture process has not drained what it sees yet"
    )
    while not condition():
        if patience.stopped():
            raise error
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + 2 * REPORT_SECONDS
            log.warning("%s", error)
            patience.on_wait(error)
        # Notifications would need a session that listens; copies are few.
        select.select([], [], [], LOOK_SECONDS)
