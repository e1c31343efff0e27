"""Leases and listeners in PostgreSQL: advisory locks and NOTIFY, each on a session of its own."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from abc import ABC, abstractmethod

import psycopg

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import GroupHeld
from ...source.sessions import bounded
from ..ports import LEASE_SECONDS
from .connection import LISTEN, PATIENCE_SECONDS, Session, open_session, translated
from .locks import COUNTING, group_key, lock_until_commit
from .queries import query

LEAVING_SECONDS = 2.0
"""limit for the server to notice that a closed session is gone and to release its lock"""


def process_name() -> str:
    return f"wal2lake on {socket.gethostname()}, process {os.getpid()}"


class Holding:
    """What a holder knows of its lease: the properties of `Lease`."""

    _clock: Clock
    _connection: Session | None
    _holder: str
    _confirmed: float
    """when it was last known to be held"""
    _epoch = 0

    @property
    def holder(self) -> str:
        return self._holder

    @property
    def held(self) -> bool:
        return self._connection is not None

    @property
    def recent(self) -> bool:
        return self._clock.monotonic() - self._confirmed < LEASE_SECONDS

    @property
    def epoch(self) -> int:
        return self._epoch


class OneSession(ABC):
    """A session that one thread opens and waits on, and that another one may release at any time."""

    _connection: Session | None

    def __init__(self, dsn: str, connect_timeout: float = 10, clock: Clock = SYSTEM_CLOCK) -> None:
        self._dsn, self._timeout, self._clock = dsn, connect_timeout, clock
        self._connection = None
        self._holder = process_name()
        self._confirmed = -math.inf
        self._released = False
        """a thread that waits must not open a session again"""
        self._lock = threading.Lock()

    def take(self) -> None:
        self._released = False
        self._take()

    def release(self) -> None:
        with self._lock:
            self._released = True
            connection, self._connection = self._connection, None
        if connection is not None:
            self._give_back(connection)

    def _take(self) -> None:
        connection = self._open()
        with self._lock:
            if not self._released:
                self._connection, self._confirmed = connection, self._clock.monotonic()
                return
        self._give_back(connection)

    def _current(self) -> Session | None:
        """The session, opened if it was lost; None if it was released."""
        connection = self._connection
        if (connection is None or connection.closed) and not self._released:
            self._take()
        return self._connection

    def _lose(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @abstractmethod
    def _open(self) -> Session:
        """A session that holds what it must. Raises ConnectionFailed."""

    def _give_back(self, connection: Session) -> None:
        """Close a session, and with it what it holds."""
        connection.close()


class PostgresListener(OneSession):
    """A session that receives NOTIFY."""

    def wait(self, seconds: float) -> bool:
        if (connection := self._current()) is None:
            return False
        try:
            with bounded(connection, seconds + PATIENCE_SECONDS):
                notified = any(True for _ in connection.notifies(timeout=seconds, stop_after=1))
                connection.execute("SELECT 1")
        except psycopg.Error:
            self._lose()
            return False
        self._confirmed = self._clock.monotonic()
        return notified

    def _open(self) -> Session:
        connection = open_session(self._dsn, self._timeout, self._holder)
        try:
            with translated():
                self._claim(connection)
                connection.execute(LISTEN)
        except BaseException:
            connection.close()
            raise
        return connection

    def _claim(self, connection: Session) -> None:
        """Take what the session must hold before it listens."""


class PostgresLease(Holding, PostgresListener):
    """An advisory lock on a session of its own."""

    def __init__(self, dsn: str, group: str, connect_timeout: float = 10, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(dsn, connect_timeout, clock)
        self._group = group

    def raise_epoch(self, above: int = -1) -> int:
        if self._epoch <= above or not self._epoch:
            holding = self._connection
            with open_session(self._dsn, self._timeout, self._holder) as connection, translated():
                if (
                    holding is None
                    or holding.closed
                    or holding.info.backend_pid not in _holders(connection, self._group)
                ):
                    raise GroupHeld(group=self._group, holder=holder(connection, self._group) or "another process")
                self._epoch = next_epoch(connection, above)
        return self._epoch

    def _claim(self, connection: Session) -> None:
        """Take the lock of the group, or raise GroupHeld with the holder's name."""
        if (other := _row_holder(connection, self._group)) is not None:
            raise GroupHeld(group=self._group, holder=other)
        until = time.monotonic() + LEAVING_SECONDS
        while not _locked(connection, self._group):
            if time.monotonic() > until:
                raise GroupHeld(group=self._group, holder=holder(connection, self._group) or "another process")
            time.sleep(0.05)
        row = connection.execute(query("has_epochs")).fetchone()
        if row and row["found"]:
            self._epoch = next_epoch(connection, self._epoch)


def _locked(connection: Session, group: str) -> bool:
    row = connection.execute(query("try_lease"), group_key(group)).fetchone()
    return bool(row and row["held"])


def holder(connection: Session, group: str) -> str | None:
    """The process that holds a group, by the application name of its session or by its row; None if there is none."""
    return session_holder(connection, group) or _row_holder(connection, group)


def session_holder(connection: Session, group: str) -> str | None:
    row = connection.execute(query("lease_holders"), group_key(group)).fetchone()
    return str(row["holder"]) if row else None


def _row_holder(connection: Session, group: str) -> str | None:
    """The process that holds a group by a row, as those behind a pooler do."""
    there = connection.execute(query("has_leases")).fetchone()
    if not there or not there["found"]:
        return None
    row = connection.execute(query("row_holder"), {"group": group}).fetchone()
    return str(row["holder"]) if row else None


def _holders(connection: Session, group: str) -> set[int]:
    return {int(row["pid"]) for row in connection.execute(query("lease_holders"), group_key(group)).fetchall()}


def next_epoch(connection: Session, above: int) -> int:
    with connection.transaction():
        # Two concurrent sessions could set the sequence back.
        lock_until_commit(connection, COUNTING)
        row = connection.execute(query("next_epoch"), {"above": above}).fetchone()
    assert row is not None
    return int(row["epoch"])
