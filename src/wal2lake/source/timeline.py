"""Timelines: where a server's WAL branched off from the one before, after a promotion or a recovery to a moment."""

from __future__ import annotations

from psycopg import pq

from ..config import SourceConfig
from ..errors import SourceError
from ..position import Lsn
from .connect import replication_connect


def left_at(source: SourceConfig, current: int, earlier: int) -> Lsn | None:
    """Where the history of the current timeline left an earlier one; None if it never was on it."""
    return parse(_history(source, current)).get(earlier)


def parse(history: str) -> dict[int, Lsn]:
    """Each timeline of a history file, and where it was left. Comments and empty lines mean nothing."""
    left = {}
    for line in history.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdigit():
            left[int(words[0])] = Lsn.parse(words[1])
    return left


def _history(source: SourceConfig, timeline: int) -> str:
    pgconn = replication_connect(source)
    try:
        result = pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            cause = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"no answer").decode(errors="replace")
            raise SourceError(operation=f"reading the history of timeline {timeline}", cause=cause)
        return (result.get_value(0, 1) or b"").decode(errors="replace")
    finally:
        pgconn.finish()
