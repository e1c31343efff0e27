"""A dense flow of transactions without mirrored rows: the slot is acknowledged once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from capturing import CapturedGroup
from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake.position import Lsn
from wal2lake.source import connect, server_facts
from wal2lake.source.publishing import slot


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


MOST, MOST_ALONE = 5.0, 1.5
"""seconds between two acknowledgements: one is promised, the rest is for a machine that has other things to do, too"""
LOOK_SECONDS = 0.02


def longest_pause(group: CapturedGroup, seconds: float) -> float:
    """The longest time without a new acknowledgement."""
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'wal2lake_g_test'"
    longest, before = 0.0, ""
    with psycopg.connect(group.database.dsn, autocommit=True) as connection:
        began = changed = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            (confirmed,) = connection.execute(query).fetchone() or ("",)
            longest = max(longest, now - changed)
            if confirmed != before:
                before, changed = confirmed, now
            threading.Event().wait(LOOK_SECONDS)
    return longest


def test_a_dense_flow_of_transactions_without_a_row_of_ours_is_acknowledged_each_second(
    database: Database, tmp_path: Path
) -> None:
    assert _longest_pause_under_load(database, tmp_path, published=True, seconds=4) < MOST


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("published", [True, False], ids=["sent", "left out by the server"])
def test_each_second_holds_on_a_machine_with_nothing_else_to_do(
    database: Database, tmp_path: Path, published: bool
) -> None:
    seconds = proof_size("WAL2LAKE_TEST_SECONDS", long=60, short=10)
    assert _longest_pause_under_load(database, tmp_path, published, seconds) < MOST_ALONE


def _longest_pause_under_load(database: Database, tmp_path: Path, published: bool, seconds: float) -> float:
    """Transactions of a table that the group does not want: `published` or not, that is, sent or left out."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE foreigners (id int PRIMARY KEY, n int);"
        "INSERT INTO foreigners SELECT i, 0 FROM generate_series(1, 100) i;"
        f"CREATE PUBLICATION somebodys FOR TABLE t {', foreigners' if published else ''}"
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
            wait_until(lambda: group.confirmed() > held.snapshot.lsn, 30, group.capture.report)
            longest = longest_pause(group, seconds)
            database.execute("INSERT INTO t VALUES (1)")
            inserted = Lsn.parse(database.value("SELECT pg_current_wal_lsn()::text"))
            longest_pause(group, 2)
            assert group.confirmed() < inserted, "a row of ours that is not in a manifest is not acknowledged"
        group.catch_up()
        assert [row["id"] for row in group.changes("t")] == [1]
    finally:
        group.stop()
    return longest
