"""Transactions that are streamed while they run, through the whole capture process: interleaved, aborted, cut off."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from capturing import CapturedGroup
from changelogs import directory_of, file_of
from servers import Database
from waiting import wait_until
from wal2lake.source import connect, mark


@pytest.fixture
def captured(database: Database, tmp_path: Path) -> Iterator[CapturedGroup]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    # So that a few rows are enough to be streamed.
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    group = CapturedGroup(database, tmp_path)
    group.begin("public.t").close()
    yield group
    group.stop()


def insert(conn: psycopg.Connection, first: int, count: int) -> None:
    conn.execute(
        f"INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series({first}, {first + count - 1}) i".encode()
    )


def spooled(captured: CapturedGroup) -> list[Path]:
    return list((directory_of(captured.log) / "spool").glob("*"))


def is_streamed(captured: CapturedGroup) -> int:
    """Transactions that the server has sent before their end."""
    return int(
        captured.database.value(
            "SELECT coalesce(sum(stream_txns), 0) FROM pg_stat_replication_slots JOIN pg_replication_slots"
            " USING (slot_name) WHERE database = current_database()"
        )
    )


def test_interleaved_transactions_are_logged_whole_in_the_order_of_their_commits(captured: CapturedGroup) -> None:
    captured.start()
    first = captured.database.connect(autocommit=False)
    second = captured.database.connect(autocommit=False)
    aborted = captured.database.connect(autocommit=False)
    for step in range(3):
        insert(first, 1000 * step, 900)
        insert(second, 10_000 + 1000 * step, 900)
        insert(aborted, 20_000 + 1000 * step, 900)
        first.execute("SAVEPOINT s")
        insert(first, 30_000, 900)
        first.execute("ROLLBACK TO s")
        captured.database.execute(f"INSERT INTO t VALUES ({40_000 + step}, 'whole')")
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == [40_000, 40_001, 40_002]
    second.commit()
    aborted.rollback()
    first.commit()
    captured.catch_up()
    expected = [1000 * step + n for step in range(3) for n in range(900)]
    found = [row["id"] for row in captured.changes("public.t")]
    assert found == [40_000, 40_001, 40_002, *(10_000 + id for id in expected), *expected]
    wait_until(lambda: is_streamed(captured) >= 3, 20, lambda: f"{is_streamed(captured)} were streamed")
    assert spooled(captured) == []


def test_a_transaction_that_is_being_streamed_when_capture_dies_comes_again_whole(captured: CapturedGroup) -> None:
    captured.start()
    running = captured.database.connect(autocommit=False)
    insert(running, 1, 5000)
    captured.database.execute("INSERT INTO t VALUES (90001, 'while it runs')")
    report = captured.catch_up()
    wait_until(lambda: captured.confirmed() >= report.logged_lsn, 20, "what committed meanwhile to be acknowledged")
    os.kill(captured.capture.pid or 0, signal.SIGKILL)
    insert(running, 5001, 5000)
    captured.database.execute("INSERT INTO t VALUES (90002, 'while it runs')")
    captured.catch_up()
    os.kill(captured.capture.pid or 0, signal.SIGKILL)
    running.commit()
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == [90001, 90002, *range(1, 10001)]
    captured.stop()
    assert spooled(captured) == []


def segments(captured: CapturedGroup) -> set[Path]:
    return set((directory_of(captured.log) / "segments").glob("*/*.parquet"))


def in_manifests(captured: CapturedGroup) -> set[Path]:
    log, oid = captured.log, captured.oid("public.t")
    return {file_of(log, segment) for manifest in log.after(0) for segment in manifest.tables[oid].segments}


def test_a_large_transaction_is_in_segments_before_it_commits(captured: CapturedGroup) -> None:
    captured.start()
    running = captured.database.connect(autocommit=False)
    insert(running, 1, 60_000)
    wait_until(lambda: bool(segments(captured)), 30, "a segment of the running transaction")
    ahead = segments(captured)
    assert in_manifests(captured) == set()
    before = captured.database.value("SELECT clock_timestamp()")
    running.commit()
    captured.catch_up()
    assert segments(captured) == in_manifests(captured) == ahead
    rows = captured.changes("public.t")
    assert [row["id"] for row in rows] == list(range(1, 60_001))
    ((_, commit_ts),) = {(row["_commit_lsn"], row["_commit_ts"]) for row in rows}
    assert before < commit_ts < captured.database.value("SELECT clock_timestamp()")


def test_what_was_written_ahead_of_a_rollback_is_deleted(captured: CapturedGroup) -> None:
    captured.start()
    whole, part = (captured.database.connect(autocommit=False) for _ in range(2))
    insert(whole, 1, 60_000)
    insert(part, 100_001, 50_000)
    part.execute("SAVEPOINT s")
    insert(part, 200_001, 20_000)
    wait_until(lambda: len(segments(captured)) >= 2, 30, "segments of both transactions")
    whole.rollback()
    part.execute("ROLLBACK TO s")
    insert(part, 300_001, 10)
    part.commit()
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == [*range(100_001, 150_001), *range(300_001, 300_011)]
    wait_until(lambda: segments(captured) == in_manifests(captured), 20, "what was written ahead to be deleted")


@pytest.mark.slow
def test_streamed_transactions_under_kills_are_logged_once(captured: CapturedGroup) -> None:
    chance = random.Random(11)
    captured.start()
    writers = [captured.database.connect(autocommit=False) for _ in range(3)]
    next_id = 1
    for _ in range(4):
        for _ in range(6):
            writer = chance.choice(writers)
            insert(writer, next_id, 700)
            next_id += 700
            match chance.randrange(4):
                case 0:
                    writer.commit()
                case 1:
                    writer.rollback()
        with connect(captured.config.source) as conn:
            until = mark(conn)
        captured.capture.wait_for(lambda r, until=until: r.received_lsn >= until, 20)  # type: ignore[misc]
        os.kill(captured.capture.pid or 0, signal.SIGKILL)
    for writer in writers:
        writer.commit()
    captured.catch_up()
    assert captured.replayed("public.t") == {row[0] for row in captured.database.rows("SELECT id FROM t")}
    assert spooled(captured) == []


def test_without_streaming_the_same_transaction_comes_at_its_commit(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    captured = CapturedGroup(database, tmp_path)
    captured.config = captured.config.model_copy(
        update={"source": captured.config.source.model_copy(update={"streaming": False})}
    )
    captured.begin("public.t").close()
    captured.start()
    try:
        running = database.connect(autocommit=False)
        insert(running, 1, 3000)
        captured.catch_up()
        running.commit()
        captured.catch_up()
        assert [row["id"] for row in captured.changes("public.t")] == list(range(1, 3001))
        assert is_streamed(captured) == 0
    finally:
        captured.stop()
