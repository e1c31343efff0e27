"""A dense flow of transactions that have nothing for a group: the slot is told once a second all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from capturing import CapturedGroup
from servers import Database
from waiting import wait_until
from wal2lake.position import Lsn
from wal2lake.source import connect, server_facts, slot


@contextmanager
def written_all_the_time(database: Database, statement: str, writers: int = 3) -> Iterator[None]:
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute(statement.encode())

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def acknowledges(group: CapturedGroup, position: Lsn) -> None:
    wait_until(
        lambda: group.confirmed() >= position, 8, lambda: f"{group.confirmed()} {position} {group.capture.report()}"
    )


def test_a_dense_flow_of_transactions_without_a_row_of_ours_is_acknowledged_each_second(
    database: Database, tmp_path: Path
) -> None:
    """The publication has a table that the group does not want, so that each transaction is sent."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE foreigners (id int PRIMARY KEY, n int);"
        "INSERT INTO foreigners SELECT i, 0 FROM generate_series(1, 100) i;"
        "CREATE PUBLICATION somebodys FOR TABLE t, foreigners"
    )
    # What has rows of ours waits for the interval; what has none does not.
    rarely = {"flush_interval": 3600, "flush_bytes": 2**30}
    group = CapturedGroup(database, tmp_path, publication="somebodys", tables=["public.t"], **rarely)
    with connect(group.config.source) as conn:
        group.log.create(server_facts(conn), "wal2lake_g_test")
    with slot.create(group.config.source, "wal2lake_g_test", "g") as held:
        group.log.begin(held.snapshot.lsn)
    group.start()
    try:
        with written_all_the_time(database, "UPDATE foreigners SET n = n + 1 WHERE id = 1 + (random() * 99)::int"):
            wait_until(lambda: group.capture.report().connected_once, 30, group.capture.report)
            for _ in range(3):
                acknowledges(group, Lsn.parse(database.value("SELECT pg_current_wal_lsn()::text")))
            database.execute("INSERT INTO t VALUES (1)")
            inserted = Lsn.parse(database.value("SELECT pg_current_wal_lsn()::text"))
            seconds = "SELECT clock_timestamp()"
            began = database.value(seconds)
            wait_until(lambda: (database.value(seconds) - began).total_seconds() > 3, 10, "some time passes")
            assert group.confirmed() < inserted, "a row of ours that is not in a manifest is not acknowledged"
        group.catch_up()
        assert [row["id"] for row in group.changes("t")] == [1]
    finally:
        group.stop()
