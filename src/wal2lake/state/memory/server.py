"""The shared parts of a state store in memory: its contents, its sessions, and the leases that they hold."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Protocol

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import ConnectionFailed, SourceError
from ..ownership import Owner
from ..records import AppendCounts, GroupRecord, GroupSpec, HistoryEntry, TableRecord, TableSpec

TICK = timedelta(microseconds=1)


@dataclass(frozen=True)
class Call:
    """A method call: `save_tables`; those of leases and listeners are `lease.take`, `listener.wait`."""

    process: str
    method: str


class Hook(Protocol):
    """Called around every call that would reach a server; it can make the call fail, or watch it."""

    def before(self, call: Call) -> None:
        """If it raises, the caller gets the error and nothing was done."""

    def after(self, call: Call) -> None:
        """If it raises, the caller gets the error and the work was done."""


class NoHook:
    def before(self, call: Call) -> None: ...

    def after(self, call: Call) -> None: ...


class Changes(Protocol):
    """A lock, and waiting for changes under it, like `threading.Condition`. It is reentrant.

    A simulation passes its own, which waits in simulated time and lets other tasks run.
    """

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


@dataclass
class Row:
    """A table, with its requests and counts."""

    record: TableRecord
    wanted: datetime | None
    together: str | None = None
    counted: AppendCounts | None = None
    seen_at: datetime | None = None


@dataclass
class Contents:
    """The contents of a store."""

    owner: Owner | None = None
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    tables: dict[tuple[str, int], Row] = field(default_factory=dict)
    table_specs: dict[int, TableSpec] = field(default_factory=dict)
    group_specs: dict[str, GroupSpec] = field(default_factory=dict)
    history: list[HistoryEntry] = field(default_factory=list)
    epoch: int = 0

    def has(self, oid: int) -> bool:
        return any(known == oid for _, known in self.tables)


@dataclass(eq=False)
class Session:
    """The session of a lease or a listener; it ends when it is released, or lost."""

    process: str
    number: int
    open: bool = True
    notified: bool = False

    def __str__(self) -> str:
        return f"{self.process} (session {self.number})"


class MemoryServer:
    """Thread-safe: one call at a time."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, hook: Hook | None = None, changes: Changes | None = None) -> None:
        self.clock = clock
        self.hook: Hook = hook or NoHook()
        self.changes: Changes = changes or threading.Condition()
        self.store: Contents | None = None
        self.leases: dict[str, Session] = {}
        self._sessions: list[Session] = []
        self._numbers = itertools.count(1)
        self.dropping: set[int] = set()
        self._last = datetime.min.replace(tzinfo=UTC)

    @property
    def contents(self) -> Contents:
        if self.store is None:
            raise SourceError(operation="using the state store", cause="it does not exist")
        return self.store

    @contextmanager
    def call(self, process: str, method: str) -> Iterator[None]:
        """The work of one call, alone, between the two calls of the hook."""
        call = Call(process, method)
        self.hook.before(call)
        with self.changes:
            yield
            self.changes.notify_all()
        self.hook.after(call)

    def await_specs(self, oids: Collection[int], seconds: float) -> None:
        """Inside a call, wait until no lake table of these specs is being dropped."""
        if not self.changes.wait_for(lambda: self.dropping.isdisjoint(oids), seconds):
            raise ConnectionFailed(server="the state store", cause="its answer took too long")

    def now(self) -> datetime:
        """The time, strictly increasing, as on a server."""
        self._last = max(self.clock.now(), self._last + TICK)
        return self._last

    # ---- sessions and leases

    def open_session(self, process: str) -> Session:
        with self.changes:
            session = Session(process, next(self._numbers))
            self._sessions.append(session)
            return session

    def end_session(self, session: Session) -> None:
        with self.changes:
            session.open = False
            self._sessions = [each for each in self._sessions if each is not session]
            self.leases = {group: holding for group, holding in self.leases.items() if holding is not session}
            self.changes.notify_all()

    def end_sessions(self, process: str | None = None) -> None:
        """Lose the sessions of the leases and listeners of a process, or of all: others can take its leases at once.

        Their owners notice it like a lost connection. A killed process leaves the same state.
        """
        with self.changes:
            for session in list(self._sessions):
                if process in (None, session.process):
                    self.end_session(session)

    def notify(self) -> None:
        for session in self._sessions:
            session.notified = True

    def next_epoch(self, above: int) -> int:
        contents = self.contents
        # Above the clock, too: a store that was created again must not begin below epochs of the one before.
        contents.epoch = max(contents.epoch + 1, above + 1, int(self.clock.now().timestamp() * 1000))
        return contents.epoch
