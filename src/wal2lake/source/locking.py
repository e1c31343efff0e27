"""Waiting for what other sessions do: locks on their tables, and transactions that they have open.

A lock is waited for so briefly at a time that PostgreSQL never has to end somebody's transaction because it and ours
wait for each other: it looks for that after deadlock_timeout, which is 1 s where nobody changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from ..errors import SourceBusy, SourceError
from ..quoting import literal
from .connect import Connection, explained, query

T = TypeVar("T")

LOCK_SECONDS = 0.4


def _never() -> bool:
    return False


def _ignore(_: SourceError) -> None: ...


@dataclass(frozen=True)
class Patience:
    """How somebody waits for other sessions: until it is to stop, and told now and then what for."""

    stopped: Callable[[], bool] = _never
    told: Callable[[SourceError], object] = _ignore


PATIENT = Patience()


def wait_briefly(conn: Connection) -> None:
    """Have this transaction wait for no lock longer than is safe. What waits for one raises SourceBusy then.

    A session that waits for still less stays so.
    """
    conn.execute(
        "SELECT set_config('lock_timeout', %(ours)s, true)"
        " FROM (SELECT current_setting('lock_timeout')::interval) AS now (wait)"
        " WHERE now.wait = '0' OR now.wait > %(ours)s::interval",
        {"ours": f"{round(LOCK_SECONDS * 1000)}ms"},
    )


def retried(attempt: Callable[[], T], seconds: float, stopped: Callable[[], bool] = _never) -> T:
    """Make an attempt, which waits briefly, again and again as long as locks are in its way. Raises SourceBusy."""
    until = monotonic() + seconds
    while True:
        try:
            return attempt()
        except SourceBusy:
            if monotonic() > until or stopped():
                raise


def blocked(conn: Connection, tables: Collection[int], error: SourceBusy) -> SourceBusy:
    """The same error with who holds locks on tables, if somebody still does."""
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
    """A transaction of somebody else that has to be waited for."""

    pid: int | None
    database: str
    application: str
    gid: str | None
    """the name of a prepared one, which has no process"""

    def __str__(self) -> str:
        if self.gid is not None:
            return f"prepared transaction {literal(self.gid)} in database {self.database}"
        return f"server process {self.pid} ({self.application or 'unnamed'} on {self.database})"

    @property
    def end(self) -> str:
        """SQL that ends it; a prepared one only in its own database, and there it may as well be committed."""
        if self.gid is not None:
            return f"ROLLBACK PREPARED {literal(self.gid)}; -- in database {self.database}; or COMMIT PREPARED"
        return f"SELECT pg_terminate_backend({self.pid});"
