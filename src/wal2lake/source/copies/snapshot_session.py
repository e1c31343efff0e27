"""The session that takes snapshots on PostgreSQL, and those that hold them."""

from __future__ import annotations

import select
from collections.abc import Callable

from psycopg import IsolationLevel

from ...clock import SYSTEM_CLOCK
from ...errors import ConnectionFailed, SourceBusy
from ...position import Lsn
from ..sessions.closing import Closing
from ..sessions.connect import Connection, alive, explained, query
from ..sessions.locking import OpenTransaction
from ..sessions.server import mark, wal_written


class HeldTransaction:
    """Implements SnapshotHolder."""

    def __init__(self, holder: Connection) -> None:
        with explained("taking", "a snapshot"):
            # The transaction begins with the first statement, and stays open for as long as copies read.
            holder.autocommit, holder.read_only = False, True
            holder.isolation_level = IsolationLevel.REPEATABLE_READ
            row = holder.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
        if row is None:
            raise ConnectionFailed(server="the source", cause="no answer")
        self.name, self.seen = row
        self._holder = holder

    @property
    def alive(self) -> bool:
        return alive(self._holder)

    def close(self) -> None:
        self._holder.close()


class SnapshotSession(Closing):
    """Implements SnapshotServer."""

    clock = SYSTEM_CLOCK

    def __init__(self, connected: Callable[[], Connection]) -> None:
        self._connected = connected
        self._conn = connected()

    def written(self) -> Lsn:
        return wal_written(self._conn)

    def mark(self) -> Lsn:
        return mark(self._conn)

    def moment(self) -> str:
        return self._one("SELECT pg_current_xact_id()::text")

    def ended(self, moment: str) -> bool:
        return self._one("SELECT (pg_snapshot_xmin(pg_current_snapshot()) >= %s::text::xid8)::text", moment) == "true"

    def running(self) -> SourceBusy:
        with explained("reading", "the running transactions"):
            rows = self._conn.execute(query("slot_blockers")).fetchall()
        others = [OpenTransaction(*row[:4]) for row in rows]
        described = ", ".join(map(str, others))
        remedy = {"remedy": f"wait for their end, or end them, as in: {others[0].end}"} if others else {}
        return SourceBusy(
            operation="taking", object="a snapshot", cause=f"transactions are open: {described or 'unknown'}", **remedy
        )

    def export(self) -> HeldTransaction:
        holder = self._connected()
        try:
            return HeldTransaction(holder)
        except BaseException:
            holder.close()
            raise

    def sleep(self, seconds: float) -> None:
        select.select([], [], [], seconds)

    def close(self) -> None:
        self._conn.close()

    def _one(self, statement: str, *values: str) -> str:
        with explained("reading", "the running transactions"):
            row = self._conn.execute(statement.encode(), values).fetchone()
        return str(row[0]) if row is not None else ""
