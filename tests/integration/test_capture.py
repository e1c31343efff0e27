"""From a commit to a durable manifest and the acknowledgement, through interleaving, restarts and kills."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest

from capturing import GROUP, PATIENCE, SLOT, CapturedGroup
from changelogs import directory_of
from servers import Database, fresh_database
from waiting import wait_until
from wal2lake import faults
from wal2lake.capture.report import CaptureState
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import SlotLost, SourceReplaced
from wal2lake.position import Lsn
from wal2lake.source import connect, mark
from wal2lake.source.publishing import slot


@pytest.fixture
def captured(database: Database, tmp_path: Path) -> Iterator[CapturedGroup]:
    group = CapturedGroup(database, tmp_path)
    yield group
    group.stop()


def made(captured: CapturedGroup, *statements: str) -> None:
    for statement in statements or ("CREATE TABLE t (id int PRIMARY KEY, v text)",):
        captured.database.execute(statement)
    captured.begin("public.t").close()


def test_inserts_updates_and_deletes_are_logged_in_order(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    captured.database.execute("UPDATE t SET v = 'c' WHERE id = 1; DELETE FROM t WHERE id = 2")
    captured.catch_up()
    assert [(row["_op"], row["id"], row["v"]) for row in captured.changes("public.t")] == [
        ("I", 1, "a"), ("I", 2, "b"), ("U", 1, "c"), ("D", 2, None),
    ]  # fmt: skip


def test_a_transaction_that_writes_first_and_commits_last_is_not_lost(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    early = captured.database.connect(autocommit=False)
    early.execute("INSERT INTO t VALUES (1, 'early')")
    captured.database.execute("INSERT INTO t VALUES (2, 'late')")
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == [2]
    captured.stop()
    early.execute("INSERT INTO t VALUES (3, 'early')")
    early.commit()
    captured.start()
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == [2, 1, 3]


def test_adjacent_transactions_are_each_logged_once_across_restarts(captured: CapturedGroup) -> None:
    made(captured)
    for batch in range(3):
        captured.start()
        with captured.database.connect() as conn, conn.pipeline():
            for id in range(batch * 20, batch * 20 + 20):
                conn.execute("INSERT INTO t VALUES (%s, 'x')", (id,))
        captured.capture.wait_for(lambda r: r.manifest > 0, 10)
        captured.stop()
    captured.start()
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == list(range(60))


def test_nothing_is_acknowledged_before_the_transaction_is_published(captured: CapturedGroup) -> None:
    made(captured)
    captured.database.execute("INSERT INTO t VALUES (0, 'first')")
    captured.database.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    captured.database.execute("INSERT INTO t VALUES (20001, 'last')")
    end = Lsn.parse(captured.database.value("SELECT pg_current_wal_flush_lsn()::text"))
    captured.start()
    seen: list[tuple[Lsn, Lsn]] = []

    def confirmed() -> bool:
        told = captured.confirmed()
        seen.append((told, captured.log.position()))
        return told >= end

    wait_until(confirmed, 30, lambda: f"the slot to be confirmed: {seen[-1]}")
    rows = captured.changes("public.t")
    assert [row["id"] for row in rows] == list(range(20002))
    segments = [s for m in captured.log.after(0) for cut in m.tables.values() for s in cut.segments]
    pieces = max(pq.ParquetFile(captured.log.uri(segment)).num_row_groups for segment in segments)
    assert pieces > 1, "the transaction was to come in pieces"
    for told, logged in seen:
        assert not [row["id"] for row in rows if logged <= row["_commit_lsn"] < told], f"{told} told, {logged} logged"


def test_a_requested_flush_is_answered_when_all_is_published_or_nothing_is_to_be(
    database: Database, tmp_path: Path
) -> None:
    patient = CapturedGroup(database, tmp_path, flush_interval=600)
    made(patient)
    patient.start()
    try:
        patient.capture.wait_for(lambda r: r.connected_once, PATIENCE)
        patient.capture.request_flush()
        nothing = patient.capture.wait_for(lambda r: r.answers == 1, PATIENCE)
        assert nothing.answers == 1 and nothing.manifest == 0
        database.execute("INSERT INTO t VALUES (1, 'x')")
        report = patient.catch_up()
        assert patient.capture.wait_for(lambda r: r.answers >= 2, PATIENCE).answers >= 2
        assert report.manifest == 1
    finally:
        patient.stop()


def test_what_is_open_holds_the_slot_at_the_last_commit(captured: CapturedGroup) -> None:
    made(captured)
    open_one = captured.database.connect(autocommit=False)
    open_one.execute("INSERT INTO t VALUES (1, 'x')")
    begun = Lsn.parse(captured.database.value("SELECT pg_current_wal_insert_lsn()::text"))
    captured.start()
    captured.database.execute("INSERT INTO t VALUES (2, 'y')")
    captured.catch_up()
    restart = captured.database.value(f"SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    assert Lsn.parse(restart) <= begun
    os.kill(captured.capture.pid or 0, signal.SIGKILL)
    open_one.commit()
    captured.catch_up()
    assert sorted(row["id"] for row in captured.changes("public.t")) == [1, 2]


@pytest.mark.parametrize("point", [faults.SEGMENT_WRITTEN, faults.MANIFEST_PUBLISHED])
def test_a_kill_at_a_named_point_loses_and_repeats_nothing(
    captured: CapturedGroup, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(captured)
    captured.database.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
    monkeypatch.setenv("WAL2LAKE_FAULT", point)
    captured.start()
    report = captured.capture.wait_for(lambda r: r.error is not None, 20)
    assert report.error is not None and "exit status -9" in str(report.error)
    monkeypatch.delenv("WAL2LAKE_FAULT")
    captured.stop()
    files = list((directory_of(captured.log) / "segments").glob("*/*.parquet"))
    assert files, "the point was not reached"
    captured.start()
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == list(range(1, 101))
    named = {s.file for m in captured.log.after(0) for cut in m.tables.values() for s in cut.segments}
    left = {
        path.relative_to(directory_of(captured.log)).as_posix()
        for path in directory_of(captured.log).rglob("*.parquet")
    }
    assert left == named


def test_kills_at_random_moments_under_load_lose_and_repeat_nothing(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    done = threading.Event()
    writers = [threading.Thread(target=write, args=(captured.database.dsn, place, done)) for place in range(3)]
    for writer in writers:
        writer.start()
    moments = random.Random(7)
    for _ in range(4):
        seen = captured.capture.report().manifest
        captured.capture.wait_for(lambda r, seen=seen: r.manifest > seen, 20)  # type: ignore[misc]
        done.wait(moments.uniform(0, 0.1))
        os.kill(captured.capture.pid or 0, signal.SIGKILL)
    done.set()
    for writer in writers:
        writer.join()
    captured.catch_up()
    assert captured.replayed("public.t") == {row[0] for row in captured.database.rows("SELECT id FROM t")}


def write(dsn: str, place: int, done: threading.Event) -> None:
    """Transactions of several rows, some rolled back, with ids of this writer's own."""
    with psycopg.connect(dsn) as conn:
        id = place
        chance = random.Random(place)
        # Paced, so that what is written can be read again on a small machine.
        while not done.wait(0.005):
            for _ in range(chance.randint(1, 5)):
                conn.execute("INSERT INTO t VALUES (%s, 'v')", (id,))
                id += 10
            conn.execute("UPDATE t SET v = 'w' WHERE id = %s", (id - 10,))
            conn.execute("DELETE FROM t WHERE id = %s", (id - 30,))
            if chance.random() < 0.2:
                conn.rollback()
            else:
                conn.commit()


def test_snapshot_and_stream_meet_under_concurrent_writers(captured: CapturedGroup) -> None:
    captured.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    done = threading.Event()
    writers = [threading.Thread(target=write, args=(captured.database.dsn, place, done)) for place in range(4)]
    for writer in writers:
        writer.start()
    wait_until(lambda: captured.database.value("SELECT count(*) FROM t") > 50, 20, "rows to be written")
    held = captured.begin("public.t")
    reader = captured.database.connect(autocommit=False)
    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    reader.execute(f"SET TRANSACTION SNAPSHOT '{held.snapshot.name}'".encode())
    before = [row[0] for row in reader.execute("SELECT id FROM t")]
    held.close()
    reader.rollback()
    captured.start()
    captured.catch_up()
    done.set()
    for writer in writers:
        writer.join()
    captured.catch_up()
    assert captured.replayed("public.t", before) == {row[0] for row in captured.database.rows("SELECT id FROM t")}


def test_an_idle_group_releases_wal_while_another_database_is_busy(
    captured: CapturedGroup, server: EmbeddedServer
) -> None:
    made(captured)
    captured.start()
    first = captured.catch_up()
    with fresh_database(server) as other:
        other.execute("CREATE TABLE noise (v text)")
        other.execute("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
        busy = Lsn.parse(other.value("SELECT pg_current_wal_flush_lsn()::text"))
        wait_until(lambda: captured.confirmed() >= busy, 20, lambda: f"{captured.confirmed()} to reach {busy}")
    report = captured.capture.wait_for(lambda r: r.logged_lsn >= busy, 10)
    assert report.logged_lsn >= busy > first.logged_lsn
    assert captured.log.last() is None, "an idle group writes no manifest"


def test_transactions_of_other_tables_move_the_position_and_write_no_manifest(captured: CapturedGroup) -> None:
    captured.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    made(captured)
    captured.start()
    captured.database.execute("INSERT INTO other SELECT generate_series(1, 1000)")
    captured.catch_up()
    assert captured.log.last() is None


def test_a_truncate_before_any_row_is_logged(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.database.execute("TRUNCATE t")
    captured.catch_up()
    (manifest,) = captured.log.after(0)
    cut = manifest.tables[captured.oid("public.t")]
    assert (cut.name, cut.segments, len(cut.truncations)) == ("public.t", (), 1)


def test_a_spilled_transaction_that_is_cut_off_leaves_nothing(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.catch_up()
    captured.database.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 30000) i")
    wait_until(lambda: list(directory_of(captured.log).rglob("*.parquet")), 20, "a segment to be spilled")
    os.kill(captured.capture.pid or 0, signal.SIGKILL)
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == list(range(1, 30001))
    (manifest,) = captured.log.after(0)
    named = {segment.file for segment in manifest.tables[captured.oid("public.t")].segments}
    assert len(list(directory_of(captured.log).rglob("*.parquet"))) == len(named)


def test_rolled_back_work_is_not_logged(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    with captured.database.connect(autocommit=False) as conn:
        conn.execute("INSERT INTO t VALUES (1, 'x')")
        conn.execute("SAVEPOINT s")
        conn.execute("INSERT INTO t VALUES (2, 'x')")
        conn.execute("ROLLBACK TO s")
        conn.execute("INSERT INTO t VALUES (3, 'x')")
    captured.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == [1, 3]


def test_a_column_dropped_before_the_key_does_not_shift_it(captured: CapturedGroup) -> None:
    made(
        captured,
        "CREATE TABLE t (gone int, a text, id int, v text, PRIMARY KEY (id))",
        "ALTER TABLE t DROP COLUMN gone",
    )
    captured.start()
    captured.database.execute("INSERT INTO t VALUES ('a', 7, 'v'); UPDATE t SET id = 8")
    captured.catch_up()
    rows = captured.changes("public.t")
    assert captured.log.schema(captured.oid("public.t"), 1).key == ("id",)
    assert [(row["_op"], row["id"], row["_old_id"], row["a"]) for row in rows] == [
        ("I", 7, None, "a"),
        ("U", 8, 7, "a"),
    ]


def test_leaves_with_another_column_order_and_later_leaves_go_to_the_root(captured: CapturedGroup) -> None:
    made(
        captured,
        "CREATE TABLE t (id int, v text, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 (n int, junk int, v text, id int NOT NULL)",
        "ALTER TABLE t1 DROP COLUMN junk",
        "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (10)",
    )
    captured.start()
    captured.database.execute("INSERT INTO t VALUES (1, 'one', 11)")
    captured.database.execute("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)")
    captured.database.execute("INSERT INTO t VALUES (12, 'two', 22)")
    captured.database.execute("UPDATE t SET id = 13 WHERE id = 1")
    captured.database.execute("TRUNCATE t1")
    captured.catch_up()
    rows = captured.changes("public.t")
    assert [(r["_op"], r["id"], r["v"], r["n"]) for r in rows] == [
        ("I", 1, "one", 11), ("I", 12, "two", 22), ("D", 1, None, None), ("I", 13, "one", 11),
    ]  # fmt: skip
    assert [r["_relation"] for r in rows[:2]] == [captured.oid("t1"), captured.oid("t2")]
    truncations = [t for m in captured.log.after(0) for cut in m.tables.values() for t in cut.truncations]
    assert [t.relation for t in truncations] == [captured.oid("t1")]
    assert truncations[0].predicate is not None and "id >= 0" in truncations[0].predicate
    assert truncations[0].columns == (("id", 1),)


def test_rows_written_before_an_alter_keep_the_shape_they_were_written_in(captured: CapturedGroup) -> None:
    made(captured)
    captured.database.execute("INSERT INTO t VALUES (1, 'old')")
    captured.database.execute("ALTER TABLE t ADD COLUMN n numeric(8,2)")
    captured.database.execute("INSERT INTO t VALUES (2, 'new', 1.5)")
    captured.database.execute("ALTER TABLE t DROP COLUMN v")
    captured.database.execute("INSERT INTO t VALUES (3, 2.5)")
    captured.start()
    captured.catch_up()
    oid = captured.oid("public.t")
    assert [schema.names for schema in captured.log.schemas.of(oid)] == [("id", "v"), ("id", "v", "n"), ("id", "n")]
    assert [str(column.lake) for column in captured.log.schema(oid, 2).columns] == ["int", "string", "decimal(8,2)"]
    assert [row["id"] for row in captured.changes("public.t")] == [1, 2, 3]


def test_a_dropped_slot_is_refused(captured: CapturedGroup) -> None:
    made(captured)
    with connect(captured.config.source) as conn:
        assert slot.drop(conn, SLOT)
    captured.start()
    error = captured.fails().error
    assert isinstance(error, SlotLost) and "does not exist" in str(error) and "resync" in error.remedy
    captured.capture.start()
    assert isinstance(captured.fails().error, SlotLost), "a process that has failed can be started again"


def test_a_slot_dropped_while_streaming_is_refused(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.catch_up()
    captured.database.execute(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    )
    with connect(captured.config.source) as conn:
        slot.drop(conn, SLOT)
    assert isinstance(captured.fails().error, SlotLost)


def test_a_re_created_slot_is_refused(captured: CapturedGroup) -> None:
    made(captured)
    with connect(captured.config.source) as conn:
        slot.drop(conn, SLOT)
        captured.database.execute("INSERT INTO t VALUES (1, 'missed')")
        slot.create(captured.config.source, SLOT, GROUP).close()
    captured.start()
    error = captured.fails().error
    assert isinstance(error, SlotLost) and "re-created" in str(error)


def test_a_slot_advanced_by_another_program_is_refused(captured: CapturedGroup) -> None:
    made(captured)
    captured.database.execute("INSERT INTO t VALUES (1, 'skipped')")
    with connect(captured.config.source) as conn:
        mark(conn)
    captured.database.rows(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())")
    captured.start()
    assert isinstance(captured.fails().error, SlotLost)


def test_positions_acknowledged_to_an_idle_slot_are_known_at_the_next_start(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    report = captured.catch_up()
    wait_until(lambda: captured.confirmed() >= report.logged_lsn, 10, "the slot to be confirmed")
    captured.stop()
    assert captured.log.acknowledged() >= captured.confirmed() > captured.log.position()
    captured.start()
    assert captured.catch_up().state is CaptureState.STREAMING


def test_another_cluster_is_refused(captured: CapturedGroup) -> None:
    made(captured)
    file = directory_of(captured.log) / "group.json"
    file.write_text(file.read_text().replace(captured.log.origin.system_identifier, "1234567890"))
    captured.start()
    assert isinstance(captured.fails().error, SourceReplaced)


def test_a_publication_dropped_for_a_while_is_refused(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.catch_up()
    captured.database.execute("DROP PUBLICATION wal2lake_g")
    captured.database.execute("INSERT INTO t VALUES (1, 'missed')")
    captured.database.execute("CREATE PUBLICATION wal2lake_g FOR TABLE t")
    error = captured.fails().error
    assert isinstance(error, SlotLost) and "publication" in str(error)


def test_a_server_that_ends_the_connection_is_reconnected(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.database.execute("INSERT INTO t VALUES (1, 'x')")
    captured.catch_up()
    captured.database.execute(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    )
    assert captured.capture.wait_for(lambda r: r.error is not None, 20).state is CaptureState.RECONNECTING
    captured.database.execute("INSERT INTO t VALUES (2, 'y')")
    assert captured.catch_up().error is None
    assert [row["id"] for row in captured.changes("public.t")] == [1, 2]


def test_ctrl_c_is_ignored_and_sigterm_stops_cleanly(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.catch_up()
    pid = captured.capture.pid or 0
    os.kill(pid, signal.SIGINT)
    captured.database.execute("INSERT INTO t VALUES (1, 'x')")
    captured.catch_up()
    assert captured.capture.pid == pid
    os.kill(pid, signal.SIGTERM)
    assert captured.capture.wait_for(lambda r: r.state is CaptureState.STOPPED, 10).state is CaptureState.STOPPED
    assert [row["id"] for row in captured.changes("public.t")] == [1]


def test_capture_ends_when_its_parent_is_killed(captured: CapturedGroup) -> None:
    made(captured)
    script = (
        "import pickle, sys, time; from wal2lake.capture.process import CaptureProcess;"
        "config, group = pickle.load(sys.stdin.buffer); capture = CaptureProcess(config, group); capture.start();"
        "capture.wait_for(lambda r: r.connected_once, 30); print(capture.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdin.write(pickle.dumps((captured.config, captured.group)))
        parent.stdin.close()
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes(),
               10, "the capture process to end")  # fmt: skip
    captured.start()
    assert captured.catch_up().state is CaptureState.STREAMING


def test_an_invalidated_slot_is_refused(captured: CapturedGroup) -> None:
    made(captured)
    captured.database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    try:
        captured.database.execute("SELECT pg_reload_conf()")

        def lost() -> bool:
            captured.database.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
            captured.database.execute("SELECT pg_switch_wal()")
            captured.database.execute("CHECKPOINT")
            status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
            return bool(captured.database.value(status) == "lost")

        wait_until(lost, 60, "the slot to be invalidated")
    finally:
        captured.database.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        captured.database.execute("SELECT pg_reload_conf()")
    captured.start()
    error = captured.fails().error
    assert isinstance(error, SlotLost) and "invalidated" in str(error)


def test_the_capture_process_imports_neither_spark_nor_the_lake(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.catch_up()
    maps = Path(f"/proc/{captured.capture.pid}/maps").read_text()
    assert "pyarrow" in maps and "pyspark" not in maps


def test_after_a_gap_the_log_goes_on_with_a_new_start(captured: CapturedGroup) -> None:
    made(captured)
    captured.start()
    captured.database.execute("INSERT INTO t VALUES (1, 'x')")
    captured.catch_up()
    captured.stop()
    before = captured.log.position()
    with connect(captured.config.source) as conn:
        slot.drop(conn, SLOT)
    captured.database.execute("INSERT INTO t VALUES (2, 'lost')")
    captured.begin("public.t").close()
    captured.start()
    captured.database.execute("INSERT INTO t VALUES (3, 'x')")
    captured.catch_up()
    fresh = ChangeLog(storage_for(captured.config.changelog_path), GROUP)
    assert [m.number for m in fresh.after(0)] == [1, 2, 3]
    assert fresh.stretch.lsn > before and fresh.read(2).from_lsn == fresh.stretch.lsn
