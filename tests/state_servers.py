"""The servers that a state store can be on, each as several processes use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Protocol

import pytest

from servers import Database
from waiting import wait_until
from wal2lake.clock import SystemClock
from wal2lake.installation import Installation
from wal2lake.state import Lease, Listener, StateStore
from wal2lake.state.memory import MemoryState
from wal2lake.state.postgres import PostgresStateStore

_SESSIONS = "FROM pg_stat_activity WHERE application_name LIKE 'wal2lake on%' AND datname = current_database()"


class MovedClock(SystemClock):
    """The system's time, and what it was moved by."""

    def __init__(self) -> None:
        self._by = 0.0

    def move(self, seconds: float) -> None:
        self._by += seconds

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self._by)

    def monotonic(self) -> float:
        return super().monotonic() + self._by


KINDS = ("postgres", "rows", "memory")


class _Kind(Protocol):
    def connect(self, installation: Installation | None) -> StateStore: ...

    def end_sessions(self) -> None: ...


class _Postgres:
    def __init__(self, database: Database, clock: MovedClock) -> None:
        self._database, self._clock = database, clock

    def connect(self, installation: Installation | None) -> StateStore:
        return PostgresStateStore(self._database.dsn, installation=installation, clock=self._clock)

    def end_sessions(self) -> None:
        self._database.rows(f"SELECT pg_terminate_backend(pid) {_SESSIONS}")
        wait_until(lambda: self._database.value(f"SELECT count(*) = 0 {_SESSIONS}"), 10, "the sessions have ended")


class _Rows(_Postgres):
    """The same server, with leases that no session holds."""

    def connect(self, installation: Installation | None) -> StateStore:
        return PostgresStateStore(self._database.dsn, installation=installation, clock=self._clock, pooler=True)

    def end_sessions(self) -> None:
        """What leaves a lease unconfirmed for longer than its term."""
        if self._database.value("SELECT to_regclass('wal2lake.leases') IS NOT NULL"):
            self._database.execute("UPDATE wal2lake.leases SET until = '-infinity'")


class StateServer:
    """One server. What was opened on it is closed by `close`."""

    def __init__(self, kind: _Kind, clock: MovedClock) -> None:
        self._kind, self.clock = kind, clock
        self._close: list[Callable[[], None]] = []

    @classmethod
    def postgres(cls, database: Database, rows: bool = False) -> StateServer:
        clock = MovedClock()
        return cls((_Rows if rows else _Postgres)(database, clock), clock)

    @classmethod
    def memory(cls) -> StateServer:
        clock = MovedClock()
        return cls(MemoryState(clock), clock)

    def connect(self, installation: Installation | None = None) -> StateStore:
        """The store for a process of its own."""
        store = self._kind.connect(installation)
        self._close.append(store.close)
        return store

    def lease(self, group: str = "default") -> Lease:
        """A lease of a process of its own."""
        lease = self.connect().lease(group)
        self._close.append(lease.release)
        return lease

    def listener(self) -> Listener:
        listener = self.connect().listener()
        self._close.append(listener.release)
        return listener

    def end_sessions(self) -> None:
        """Lose the sessions of all leases and listeners."""
        self._kind.end_sessions()

    def close(self) -> None:
        for close in self._close:
            close()


@contextmanager
def state_server_of(kind: str, request: pytest.FixtureRequest) -> Iterator[StateServer]:
    if kind == "memory":
        made = StateServer.memory()
    else:
        made = StateServer.postgres(request.getfixturevalue("database"), rows=kind == "rows")
    try:
        yield made
    finally:
        made.close()
