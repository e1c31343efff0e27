"""A writer of small transactions at a steady pace, and the exact position of each of its commits.

Each transaction changes ten rows of one table: six updates, three inserts, one delete. A slot of its own, read when
all is over, tells where in the WAL each commit ended; so nothing of wal2lake takes part in that.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from wal2lake.position import Lsn

UPDATED, INSERTED, DELETED = 6, 3, 1
ROWS = UPDATED + INSERTED + DELETED
WITNESS = "bench_witness"


@dataclass(frozen=True)
class Commit:
    table: str
    xid: int
    at: float
    """when COMMIT was sent, by the clock of this machine"""
    after: Lsn
    """a position before the commit, behind all earlier ones"""


@dataclass(frozen=True)
class Written:
    commits: tuple[Commit, ...]
    seconds: float

    @property
    def rows_per_second(self) -> float:
        return len(self.commits) * ROWS / self.seconds


def watch_commits(connection: psycopg.Connection[Any]) -> None:
    """Begin to keep the WAL that `commit_ends` reads."""
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (WITNESS,))


def commit_ends(connection: psycopg.Connection[Any]) -> dict[int, Lsn]:
    """For every transaction since `watch_commits` the position at which its commit ends."""
    rows = connection.execute(
        "SELECT xid::text, lsn::text FROM pg_logical_slot_get_changes(%s, NULL, NULL, 'skip-empty-xacts', '1')"
        " WHERE data LIKE 'COMMIT%%'",
        (WITNESS,),
    ).fetchall()
    connection.execute("SELECT pg_drop_replication_slot(%s)", (WITNESS,))
    return {int(xid): Lsn.parse(lsn) for xid, lsn in rows}


class Writer:
    """Changes tables of the shape of `orders`, each filled with ids from 1 to `rows`."""

    def __init__(self, dsn: str, tables: Sequence[str], rows: int, rows_per_second: float) -> None:
        self._dsn, self._tables = dsn, tables
        self._interval = ROWS / rows_per_second
        self._low = dict.fromkeys(tables, 1)
        self._high = dict.fromkeys(tables, rows + 1)
        self._random = random.Random(1)

    def run(self, seconds: float, stop: threading.Event) -> Written:
        """Write for so long; a writer that falls behind its pace catches up, and leaves nothing out."""
        commits: list[Commit] = []
        with psycopg.connect(self._dsn) as connection:
            began = time.monotonic()
            for number in range(round(seconds / self._interval)):
                wait = began + number * self._interval - time.monotonic()
                if stop.wait(max(0.0, wait)):
                    break
                commits.append(self._write(connection, self._tables[number % len(self._tables)]))
            return Written(tuple(commits), time.monotonic() - began)

    def _write(self, connection: psycopg.Connection[Any], table: str) -> Commit:
        low, high = self._low[table], self._high[table]
        updated = self._random.sample(range(low + DELETED, high), UPDATED)
        row = connection.execute(
            f"""
            WITH updated AS (
                UPDATE {table} SET quantity = quantity + 1, status = 'paid' WHERE id = ANY (%s) RETURNING 1
            ), inserted AS (
                INSERT INTO {table} SELECT n, 1, 'new', 1, 9.99, now() FROM generate_series(%s::bigint, %s) AS n
                RETURNING 1
            ), deleted AS (
                DELETE FROM {table} WHERE id >= %s AND id < %s RETURNING 1
            )
            SELECT pg_current_xact_id()::text,
                   (SELECT count(*) FROM updated) + (SELECT count(*) FROM inserted) + (SELECT count(*) FROM deleted),
                   pg_current_wal_insert_lsn()::text
            """,
            (updated, high, high + INSERTED - 1, low, low + DELETED),
        ).fetchone()
        assert row is not None and row[1] == ROWS, row
        at = time.time()
        connection.commit()
        self._low[table], self._high[table] = low + DELETED, high + INSERTED
        # A replication slot knows the lower half of a transaction's number.
        return Commit(table, int(row[0]) & 0xFFFFFFFF, at, Lsn.parse(row[2]))
