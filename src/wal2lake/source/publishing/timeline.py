"""Timelines: where a server's WAL branched off, after a promotion or a point-in-time recovery."""

from __future__ import annotations

import logging

from psycopg import pq

from ...config import SourceConfig
from ...errors import SourceError, SourceRefused
from ...position import Lsn
from ..sessions.connect import Connection, explained, replication_connect

log = logging.getLogger(__name__)


def left_at(source: SourceConfig, current: int, earlier: int) -> Lsn | None:
    """The position at which the current timeline branched off an earlier one; None if it did not."""
    return parse(_history(source, current)).get(earlier)


def left_at_through_sql(conn: Connection, current: int, earlier: int) -> Lsn | None:
    """The same without a replication connection. Only a role that may read the server's files can know it."""
    try:
        with explained("reading", f"the history of timeline {current}"):
            row = conn.execute("SELECT pg_read_file('pg_wal/' || %s)", [f"{current:08X}.history"]).fetchone()
    except (SourceError, SourceRefused) as error:
        log.warning("%s", error)
        return None
    return parse(row[0] if row is not None else "").get(earlier)


def parse(history: str) -> dict[int, Lsn]:
    """Each timeline of a history file with the position at which it ended. Comments and empty lines are ignored."""
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
