"""The right to run a group, and hearing that something was asked for."""

from __future__ import annotations

import os
import socket
import time
import zlib

import psycopg

from ...errors import GroupHeld
from ...source.connect import bounded
from .connection import LISTEN, PATIENCE_SECONDS, Session, open_session, translated

LEAVING_SECONDS = 2.0
"""a session that has been closed holds its lock until the server has noticed"""
LOCK_CLASS = zlib.crc32(b"wal2lake") & 0x7FFFFFFF


class Listener:
    """A session that hears NOTIFY; one that is lost is opened anew."""

    def __init__(self, dsn: str, connect_timeout: float = 10) -> None:
        self._dsn, self._timeout = dsn, connect_timeout
        self._connection: Session | None = None
        self.holder = f"wal2lake on {socket.gethostname()}, process {os.getpid()}"

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
        self._connection = connection

    def wait(self, seconds: float) -> bool:
        """Wait for a NOTIFY; True if one came. A lost session is taken anew."""
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
        return notified

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _claim(self, connection: Session) -> None:
        """What the session has to hold before it listens."""


class GroupLease(Listener):
    """The right to run a group: an advisory lock held by a session of its own, which also listens for NOTIFY.

    A lost session is taken anew, or raises GroupHeld.
    """

    def __init__(self, dsn: str, group: str, connect_timeout: float = 10) -> None:
        super().__init__(dsn, connect_timeout)
        self._group = group

    @property
    def held(self) -> bool:
        return self._connection is not None

    def _claim(self, connection: Session) -> None:
        """Hold the group, or raise GroupHeld with the holder's name."""
        until = time.monotonic() + LEAVING_SECONDS
        while not _locked(connection, self._group):
            if time.monotonic() > until:
                raise GroupHeld(group=self._group, holder=holder(connection, self._group) or "another process")
            time.sleep(0.05)


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


def _lock_key(group: str) -> list[int]:
    return [LOCK_CLASS, zlib.crc32(group.encode()) & 0x7FFFFFFF]
