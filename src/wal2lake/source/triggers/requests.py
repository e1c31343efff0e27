"""What copies ask the drains of a lane for, in the row of the lane."""

from __future__ import annotations

from ..model import ExportedSnapshot
from ..sessions.connect import Connection, explained
from .contract import Request


class SqlRequests:
    """Implements DrainRequests."""

    def __init__(self, conn: Connection, lane: str) -> None:
        self._conn, self._lane = conn, lane

    def ask(self, number: str, snapshot: ExportedSnapshot) -> bool:
        with explained("asking for", "a drain"):
            asked = self._conn.execute(
                "UPDATE wal2lake_changes.lanes SET asked = %s, asked_snapshot = %s, asked_position = %s,"
                " answered = NULL, granted = false WHERE lane = %s AND (asked IS NULL OR answered = asked)",
                [number, snapshot.name, str(snapshot.lsn), self._lane],
            )
        return asked.rowcount == 1

    def answer(self) -> Request | None:
        with explained("asking for", "a drain"):
            row = self._conn.execute(
                "SELECT asked, answered, granted FROM wal2lake_changes.lanes WHERE lane = %s", [self._lane]
            ).fetchone()
        return None if row is None else Request(*row)

    def withdraw(self, number: str) -> None:
        with explained("asking for", "a drain"):
            self._conn.execute(
                "UPDATE wal2lake_changes.lanes SET asked = NULL, answered = NULL WHERE lane = %s AND asked = %s",
                [self._lane, number],
            )
