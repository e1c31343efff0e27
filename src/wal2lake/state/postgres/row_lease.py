"""Leases and listeners without a session: rows and a counter, for servers behind a pooler in transaction mode.

A lease is a row with an end, which its holder moves on; a request counts a sequence on, which is looked at.
"""

from __future__ import annotations

import time
from uuid import uuid4

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import GroupHeld, SourceError, Wal2LakeError
from ..ports import LEASE_SECONDS
from .connection import Session, open_session, translated
from .lease import Holding, OneSession, holder, next_epoch, session_holder
from .locks import CREATING, lock_until_commit
from .queries import query

TERM_SECONDS = 1.5 * LEASE_SECONDS
"""how long a lease lasts after it was last confirmed; its holder begins no work after LEASE_SECONDS"""
LOOK_SECONDS = 0.25


class CountingListener(OneSession):
    """Compares the counter of requests; keeps no session open for it."""

    _counted = 0

    def wait(self, seconds: float) -> bool:
        if (connection := self._current()) is None:
            return False
        until = time.monotonic() + seconds
        try:
            with translated():
                self._confirm(connection)
                while (now := _count(connection)) == self._counted and (left := until - time.monotonic()) > 0:
                    time.sleep(min(left, LOOK_SECONDS))
        except Wal2LakeError:
            self._lose()
            return False
        notified, self._counted = now != self._counted, now
        self._confirmed = self._clock.monotonic()
        return notified

    def _open(self) -> Session:
        connection = open_session(self._dsn, self._timeout, self._holder, pooler=True)
        try:
            with translated():
                self._claim(connection)
                self._counted = _count(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _claim(self, connection: Session) -> None:
        """Take what there is to hold."""
        create(connection)

    def _confirm(self, connection: Session) -> None:
        """Go on holding it. Raises GroupHeld if it is lost."""


class RowLease(Holding, CountingListener):
    """A row of `wal2lake.leases`, with the holder's own token."""

    def __init__(self, dsn: str, group: str, connect_timeout: float = 10, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(dsn, connect_timeout, clock)
        self._group = group
        self._token = uuid4().hex
        """its row is known by it, also after the connection was lost"""

    def raise_epoch(self, above: int = -1) -> int:
        if self._epoch <= above or not self._epoch:
            with open_session(self._dsn, self._timeout, self._holder, pooler=True) as connection, translated():
                if self._connection is None or not self._mine(connection):
                    raise GroupHeld(group=self._group, holder=holder(connection, self._group) or "another process")
                self._epoch = next_epoch(connection, above)
        return self._epoch

    def _give_back(self, connection: Session) -> None:
        if not connection.closed:
            try:
                with translated():
                    connection.execute(query("release_row"), self._row)
            except (SourceError, Wal2LakeError):
                pass  # it ends by itself
        super()._give_back(connection)

    @property
    def _row(self) -> dict[str, object]:
        return {"group": self._group, "token": self._token, "holder": self._holder, "term": TERM_SECONDS}

    def _claim(self, connection: Session) -> None:
        super()._claim(connection)
        other = session_holder(connection, self._group)
        if other is not None or connection.execute(query("take_row"), self._row).fetchone() is None:
            raise GroupHeld(group=self._group, holder=other or holder(connection, self._group) or "another process")
        row = connection.execute(query("has_epochs")).fetchone()
        if row and row["found"]:
            self._epoch = next_epoch(connection, self._epoch)

    def _confirm(self, connection: Session) -> None:
        if connection.execute(query("confirm_row"), self._row).fetchone() is None:
            raise GroupHeld(group=self._group, holder="another process")

    def _mine(self, connection: Session) -> bool:
        return connection.execute(query("own_row"), self._row).fetchone() is not None


def create(connection: Session) -> None:
    """Make what leases and requests are kept in. A lease is taken before the store is made."""
    row = connection.execute(query("has_leases")).fetchone()
    if row and row["found"]:
        return
    with connection.transaction():
        lock_until_commit(connection, CREATING)
        connection.execute(query("create_leases"))


def _count(connection: Session) -> int:
    create(connection)
    row = connection.execute(query("count_requests")).fetchone()
    return int(row["requests"]) if row else 0
