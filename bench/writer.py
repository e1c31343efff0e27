"""A writer of small transactions at a steady pace, and the exact position of each of its commits.

Each transaction changes ten rows of one table: six updates, three inserts, one delete; above a thousand changed rows a
second it changes as many times ten as keep it at a hundred transactions a second. A slot of its own, read when all is
over, tells where in the WAL each commit ended; so nothing of wal2lake takes part in that.
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
MOST_TRANSACTIONS_PER_SECOND = 100
WITNESS = "bench_witness"


@dataclass(frozen=True)
class Commit:
    table: str
    xid: int
    at: float
    """when COMMIT was sent, by the clock of this machine"""
    after: Lsn
    """a position before the commit, behind all earlier ones"""
    rows: int


@dataclass(frozen=True)
class Written:
    commits: tuple[Commit, ...]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(commit.rows for commit in self.commits)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds


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

    def __init__(self, dsn: str, tables: Sequence[str], rows: int) -> None:
        self._dsn, self._tables = dsn, tables
        self._low = dict.fromkeys(tables, 1)
        self._high = dict.fromkeys(tables, rows + 1)
        self._random = random.Random(1)
        self.latest: list[Commit] = []
        """commits of the run under way, while it goes on"""

    @property
    def high(self) -> int:
        """Above every id in use."""
        return max(self._high.values())

    def run(self, seconds: float, rows_per_second: float, stop: threading.Event) -> Written:
        """Write for so long; a writer that falls behind its pace catches up, and leaves nothing out."""
        tens = max(1, round(rows_per_second / (ROWS * MOST_TRANSACTIONS_PER_SECOND)))
        interval = ROWS * tens / rows_per_second
        commits = self.latest = []
        with psycopg.connect(self._dsn) as connection:
            began = time.monotonic()
            for number in range(max(len(self._tables), round(seconds / interval))):
                wait = began + number * interval - time.monotonic()
                if stop.wait(max(0.0, wait)):
                    break
                commits.append(self.write(connection, self._tables[number % len(self._tables)], tens))
            return Written(tuple(commits), time.monotonic() - began)

    def write(self, connection: psycopg.Connection[Any], table: str, tens: int = 1) -> Commit:
        """One transaction of ten rows, or so many times ten."""
        low, high = self._low[table], self._high[table]
        gone, come = DELETED * tens, INSERTED * tens
        updated = self._random.sample(range(low + gone, high), UPDATED * tens)
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
            (updated, high, high + come - 1, low, low + gone),
        ).fetchone()
        assert row is not None and row[1] == ROWS * tens, row
        at = time.time()
        connection.commit()
        self._low[table], self._high[table] = low + gone, high + come
        # A replication slot knows the lower half of a transaction's number.
        return Commit(table, int(row[0]) & 0xFFFFFFFF, at, Lsn.parse(row[2]), ROWS * tens)
