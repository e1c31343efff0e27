"""The right to run a group, and hearing that something was asked for."""

from __future__ import annotations

import math
import os
import socket
import time
import zlib

import psycopg

from ..errors import GroupHeld
from ..source.connect import bounded
from .connection import LISTEN, PATIENCE_SECONDS, Session, open_session, translated

LEAVING_SECONDS = 2.0
"""a session that has been closed holds its lock until the server has noticed"""
LEASE_SECONDS = 10.0
"""a lease that was not confirmed for so long may be somebody else's by now"""
LOCK_CLASS = zlib.crc32(b"wal2lake") & 0x7FFFFFFF

# Of the clock, too: numbers must not go back when the database does.
_EPOCH = """
SELECT setval('wal2lake.epoch', greatest(
    nextval('wal2lake.epoch'), %s + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
)) AS epoch
"""


class Listener:
    """A session that hears NOTIFY; one that is lost is opened again."""

    def __init__(self, dsn: str, connect_timeout: float = 10) -> None:
        self._dsn, self._timeout = dsn, connect_timeout
        self._connection: Session | None = None
        self.holder = f"wal2lake on {socket.gethostname()}, process {os.getpid()}"
        self._confirmed = -math.inf

    def take(self) -> None:
        """Open the session, and listen."""
        connection = open_session(self._dsn, self._timeout, self.holder)
        try:
            with translated():
                self._claim(connection)
                connection.execute(LISTEN)
        except BaseException:
            connection.close()
            raise
        self._connection, self._confirmed = connection, time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait for a NOTIFY; True if one came. A lost session is taken again."""
        if self._connection is None or self._connection.closed:
            self.take()
        connection = self._connection
        assert connection is not None
        try:
            with bounded(connection, seconds + PATIENCE_SECONDS):
                notified = any(True for _ in connection.notifies(timeout=seconds, stop_after=1))
                connection.execute("SELECT 1")
        except psycopg.Error:
            self.release()
            return False
        self._confirmed = time.monotonic()
        return notified

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _claim(self, connection: Session) -> None:
        """What the session has to hold before it listens."""


class GroupLease(Listener):
    """The right to run a group: an advisory lock held by a session of its own, which also listens for NOTIFY.

    A lost session is taken again, or raises GroupHeld. Each time it has a higher epoch, which is written into every
    commit in the lake: who has an older one has been overtaken and must not commit.
    """

    epoch = 0
    """0: there is no state store yet"""

    def __init__(self, dsn: str, group: str, connect_timeout: float = 10) -> None:
        super().__init__(dsn, connect_timeout)
        self._group = group

    @property
    def held(self) -> bool:
        return self._connection is not None

    @property
    def recent(self) -> bool:
        """Whether it was held a moment ago, so that work may begin."""
        return time.monotonic() - self._confirmed < LEASE_SECONDS

    def raise_epoch(self, above: int = -1) -> int:
        """Have an epoch that is higher than one that was seen. Raises GroupHeld if the lease is lost."""
        if self.epoch <= above or not self.epoch:
            holding = self._connection
            with open_session(self._dsn, self._timeout, self.holder) as connection:
                if (
                    holding is None
                    or holding.closed
                    or holding.info.backend_pid not in _holders(connection, self._group)
                ):
                    raise GroupHeld(group=self._group, holder=holder(connection, self._group) or "another process")
                self.epoch = _next_epoch(connection, above)
        return self.epoch

    def _claim(self, connection: Session) -> None:
        """Hold the group, or raise GroupHeld with the holder's name."""
        until = time.monotonic() + LEAVING_SECONDS
        while not _locked(connection, self._group):
            if time.monotonic() > until:
                raise GroupHeld(group=self._group, holder=holder(connection, self._group) or "another process")
            time.sleep(0.05)
        row = connection.execute("SELECT to_regclass('wal2lake.epoch') IS NOT NULL AS there").fetchone()
        if row and row["there"]:
            self.epoch = _next_epoch(connection, self.epoch)


def _locked(connection: Session, group: str) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s, %s) AS held", _lock_key(group)).fetchone()
    return bool(row and row["held"])


def holder(connection: Session, group: str) -> str | None:
    """The process that holds a group, by the name that its session gives itself; None if nobody does."""
    row = connection.execute(
        """
        SELECT coalesce(a.application_name, 'another process') || ' (backend ' || l.pid || ')' AS holder
        FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.classid = %s AND l.objid = %s AND l.granted
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        """,
        _lock_key(group),
    ).fetchone()
    return str(row["holder"]) if row else None


def _holders(connection: Session, group: str) -> set[int]:
    rows = connection.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        _lock_key(group),
    ).fetchall()
    return {int(row["pid"]) for row in rows}


def _next_epoch(connection: Session, above: int) -> int:
    row = connection.execute(_EPOCH, [above]).fetchone()
    assert row is not None
    return int(row["epoch"])


def _lock_key(group: str) -> list[int]:
    return [LOCK_CLASS, zlib.crc32(group.encode()) & 0x7FFFFFFF]
