"""Leases and listeners in memory."""

from __future__ import annotations

import math

from ...errors import ConnectionFailed, GroupHeld
from ..ports import LEASE_SECONDS
from .server import Call, MemoryServer, Session


class MemoryListener:
    _kind = "listener"

    def __init__(self, server: MemoryServer, process: str) -> None:
        self._server, self._process = server, process
        self._session: Session | None = None
        self._released = False
        """a thread that waits must not open a session again"""
        self._confirmed = -math.inf

    def take(self) -> None:
        self._released = False
        self._take()

    def wait(self, seconds: float) -> bool:
        if self._session is None and not self._released:
            self._take()
        if (session := self._session) is None:
            return False
        call = Call(self._process, f"{self._kind}.wait")
        try:
            self._server.hook.before(call)
            with self._server.changes:
                self._server.changes.wait_for(lambda: session.notified or not session.open, seconds)
            self._server.hook.after(call)
        except ConnectionFailed:
            self._server.end_session(session)
        if not session.open:
            self._lose()
            return False
        with self._server.changes:
            notified, session.notified = session.notified, False
        self._confirmed = self._server.clock.monotonic()
        return notified

    def release(self) -> None:
        with self._server.changes:
            self._released = True
            self._lose()

    def _take(self) -> None:
        session = self._server.open_session(self._process)
        try:
            with self._server.call(self._process, f"{self._kind}.take"):
                if not session.open:
                    # The server has ended it meanwhile; it can hold nothing.
                    raise ConnectionFailed(server="the state store", cause="the session has ended")
                self._claim(session)
        except BaseException:
            self._server.end_session(session)
            raise
        with self._server.changes:
            if self._released:
                self._server.end_session(session)
            else:
                self._session, self._confirmed = session, self._server.clock.monotonic()

    def _lose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._server.end_session(session)

    def _claim(self, session: Session) -> None:
        """Take what the session must hold before it listens."""


class MemoryLease(MemoryListener):
    _kind = "lease"

    def __init__(self, server: MemoryServer, process: str, group: str) -> None:
        super().__init__(server, process)
        self._group = group
        self._epoch = 0

    @property
    def holder(self) -> str:
        return self._process

    @property
    def held(self) -> bool:
        return self._session is not None

    @property
    def recent(self) -> bool:
        return self._server.clock.monotonic() - self._confirmed < LEASE_SECONDS

    @property
    def epoch(self) -> int:
        return self._epoch

    def raise_epoch(self, above: int = -1) -> int:
        if self._epoch <= above or not self._epoch:
            with self._server.call(self._process, "lease.raise_epoch"):
                if self._session is None or self._server.leases.get(self._group) is not self._session:
                    raise self._held()
                self._epoch = self._server.next_epoch(above)
        return self._epoch

    def _claim(self, session: Session) -> None:
        if self._group in self._server.leases:
            raise self._held()
        self._server.leases[self._group] = session
        if self._server.store is not None:
            self._epoch = self._server.next_epoch(self._epoch)

    def _held(self) -> GroupHeld:
        return GroupHeld(group=self._group, holder=str(self._server.leases.get(self._group, "another process")))
