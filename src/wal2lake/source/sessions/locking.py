"""Waiting for other sessions: for locks on tables, and for open transactions.

Each wait for a lock is shorter than deadlock_timeout (1 s by default), so that PostgreSQL never aborts a transaction of
an application because of a deadlock with ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from ...errors import SourceBusy, SourceError
from ...quoting import literal
from .connect import Connection, explained, query

T = TypeVar("T")

LOCK_SECONDS = 0.4


def _never() -> bool:
    return False


def _ignore(_: SourceError) -> None: ...


@dataclass(frozen=True)
class Patience:
    """How to wait for other sessions: until `stopped`, with a report of the reason from time to time."""

    stopped: Callable[[], bool] = _never
    on_wait: Callable[[SourceError], object] = _ignore


PATIENT = Patience()


def wait_briefly(conn: Connection) -> None:
    """Limit lock waits of this transaction to a safe time. A longer wait raises SourceBusy.

    A shorter lock_timeout is kept.
    """
    conn.execute(
        "SELECT set_config('lock_timeout', %(ours)s, true)"
        " FROM (SELECT current_setting('lock_timeout')::interval) AS now (wait)"
        " WHERE now.wait = '0' OR now.wait > %(ours)s::interval",
        {"ours": f"{round(LOCK_SECONDS * 1000)}ms"},
    )


def retried(attempt: Callable[[], T], seconds: float, stopped: Callable[[], bool] = _never) -> T:
    """Repeat an attempt that waits briefly as long as locks block it. Raises SourceBusy."""
    until = monotonic() + seconds
    while True:
        try:
            return attempt()
        except SourceBusy:
            if monotonic() > until or stopped():
                raise


def blocked(conn: Connection, tables: Collection[int], error: SourceBusy) -> SourceBusy:
    """The same error with the holder of the locks on tables, if there still is one."""
    with explained("reading", "the locks of tables"):
        row = conn.execute(query("table_blockers"), {"tables": list(tables)}).fetchone()
    if row is None:
        return error
    pid, table, application, database, gid = row
    if pid is None:
        other = OpenTransaction(pid, database, application, gid)
        return SourceBusy(
            operation=error.fields["operation"], object=error.fields["object"], cause=f"{table} is locked by {other}",
            remedy=f"wait for that transaction's end, or end it: {other.end}",
        )  # fmt: skip
    return SourceBusy(
        operation=error.fields["operation"], object=error.fields["object"],
        cause=f"{table} is locked by server process {pid} ({application or 'unnamed'})",
        remedy=f"wait for that transaction's end, or end it: SELECT pg_terminate_backend({pid})",
    )  # fmt: skip


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction of another session that has to end first."""

    pid: int | None
    database: str
    application: str
    gid: str | None
    """the name of a prepared transaction, which has no process"""

    def __str__(self) -> str:
        if self.gid is not None:
            return f"prepared transaction {literal(self.gid)} in database {self.database}"
        return f"server process {self.pid} ({self.application or 'unnamed'} on {self.database})"

    @property
    def end(self) -> str:
        """SQL that ends it; a prepared one can be ended in its own database only, and might be committed instead."""
        if self.gid is not None:
            return f"ROLLBACK PREPARED {literal(self.gid)}; -- in database {self.database}; or COMMIT PREPARED"
        return f"SELECT pg_terminate_backend({self.pid});"
