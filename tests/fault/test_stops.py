"""A run that is stopped ends within ten seconds in any phase, and the next one continues from there."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import Mirrored, lines_of_error
from processes import descendants

from command import Project, Running
from oracle import assert_equal_tables, table_directory
from proxy import Proxy
from servers import Database
from waiting import wait_until
from wal2lake.mirror import Mirror
from wal2lake.source.database import Source
from wal2lake.source.ports import OpenSnapshot
from wal2lake.source.sessions.locking import PATIENT, Patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 10.0


@contextmanager
def run_to_be_stopped(mirrored: Mirrored) -> Iterator[None]:
    """A run on the shared Spark. At the end of the block it is stopped, and must have ended in time."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def body() -> None:
        try:
            Mirror(mirrored.config, mirrored.spark).run(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body, name="run")
    thread.start()
    try:
        yield
    finally:
        began = time.monotonic()
        stop.set()
        thread.join(60)
        took = time.monotonic() - began
    assert not failed, failed
    assert took < SECONDS


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x')")
    return Mirrored(database, tmp_path / "lake", spark)


def waits_for_a_lock(database: Database) -> bool:
    return bool(database.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"))


def test_while_a_locked_table_is_waited_for_at_the_start(mirrored: Mirrored) -> None:
    locker = mirrored.database.connect(autocommit=False)
    locker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
    with run_to_be_stopped(mirrored):
        wait_until(lambda: waits_for_a_lock(mirrored.database), 30, "the run waits for the lock")
    locker.rollback()


def test_while_a_new_slot_waits_for_a_transaction(mirrored: Mirrored) -> None:
    writer = mirrored.database.connect(autocommit=False)
    writer.execute("INSERT INTO t VALUES (2, 'open')")
    creating = (
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND wait_event_type = 'Lock'"
    )
    with run_to_be_stopped(mirrored):
        wait_until(lambda: mirrored.database.value(creating), 60, "the slot is waited for")
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert mirrored.database.rows(slots) == []
    writer.commit()
    mirrored.catches_up("t")


@pytest.mark.slow
def test_while_a_copy_reads_its_rows(mirrored: Mirrored) -> None:
    database = mirrored.database
    mirrored.catches_up("t")
    database.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text);"
        "INSERT INTO large SELECT i, repeat(md5(i::text), 4) FROM generate_series(1, 200000) i"
    )
    readers = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
        # Not the question for its columns, which comes before there is a Spark job.
        " AND query LIKE '%ctid AS pos%' AND query NOT LIKE '%1=0%' AND pid <> pg_backend_pid() LIMIT 1"
    )
    held: list[int] = []

    def held_up() -> bool:
        # A server process that is stopped sends nothing more: the copy is in the middle of its rows.
        for (pid,) in database.rows(readers):
            os.kill(pid, signal.SIGSTOP)
            held.append(pid)
        return bool(held)

    try:
        with run_to_be_stopped(mirrored):
            # It is read within a moment, so it is looked for all the time.
            until = time.monotonic() + 60
            while not held_up():
                assert time.monotonic() < until, "a range is being read"
    finally:
        for pid in held:
            os.kill(pid, signal.SIGCONT)
    mirrored.catches_up("t", "large")


def test_while_a_copy_waits_for_the_lock_of_its_table(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    database, open_snapshot = mirrored.database, Source.open_snapshot
    mirrored.catches_up("t")
    locker = database.connect(autocommit=False)

    def then_locked(self: Source, patience: Patience = PATIENT) -> OpenSnapshot:
        # A transaction that holds this lock before would be waited for by the slot of the copy.
        opened = open_snapshot(self, patience)
        locker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        return opened

    monkeypatch.setattr(Source, "open_snapshot", then_locked)
    monkeypatch.setattr("wal2lake.source.copies.copying.LOCKED_SECONDS", 60.0)
    mirrored.resync("t")
    with run_to_be_stopped(mirrored):
        wait_until(lambda: waits_for_a_lock(database), 60, "the copy waits for the lock")
    monkeypatch.undo()
    locker.rollback()
    mirrored.catches_up("t")


@contextmanager
def unreadable(file: Path) -> Iterator[Callable[[], bool]]:
    """A pipe in the place of a file: who reads it waits until the end of the block. Asked, it says if somebody does."""
    aside = file.rename(file.with_suffix(".aside"))
    os.mkfifo(file)
    writers: list[int] = []

    def somebody_reads() -> bool:
        with suppress(OSError):
            writers.append(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    try:
        yield somebody_reads
    finally:
        file.unlink()
        aside.rename(file)
        for writer in writers:
            os.close(writer)


def compacts(spark: SparkSession) -> bool:
    """Whether a job of Spark's that runs now is one of our maintenance."""
    context: Any = spark.sparkContext._jsc
    running = spark.sparkContext.statusTracker().getActiveJobsIds()
    return any("wal2lake-maintenance" in str(context.sc().statusStore().job(job).jobTags()) for job in running)


def test_while_small_files_are_compacted(mirrored: Mirrored) -> None:
    mirrored.configure(maintenance={"small_files": 2})
    mirrored.catches_up("t")
    (copied,) = (table_directory(mirrored.lake, "t") / "data").glob("*.parquet")
    with unreadable(copied) as is_read, run_to_be_stopped(mirrored):
        mirrored.is_streaming("t")
        numbers = itertools.count(2)

        def compacted() -> bool:
            # Rows that are new to the table are appended without a look at its files.
            mirrored.database.execute(f"INSERT INTO t VALUES ({next(numbers)}, 'x')")
            return is_read() and compacts(mirrored.spark)

        wait_until(compacted, 60, "the files are read")
    mirrored.catches_up("t")


# ---- the real command, with a JVM of its own


def stops(running: Running) -> None:
    began = time.monotonic()
    running.signal(signal.SIGTERM)
    finished = running.wait(60)
    took = time.monotonic() - began
    assert finished.code == 0, finished.err
    assert took < SECONDS, finished.err
    assert lines_of_error(finished.err) == []


def streams(project: Project, running: Running) -> None:
    def all_stream() -> bool:
        assert running.running, running.err
        tables = project.watch()["tables"]
        return bool(tables) and all(table["state"] == "STREAMING" for table in tables)

    wait_until(all_stream, 90, lambda: f"{project.watch()}\n{running.err}")


@pytest.mark.slow
def test_while_spark_starts_and_while_a_commit_waits_for_the_catalog(project: Project, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x')")
    project.configure(database.dsn, '[spark]\nmaster = "local[1]"\n')
    running = project.start("run")
    wait_until(lambda: any(each.is_java for each in descendants(running.process.pid)), 60, "the JVM is starting")
    stops(running)

    running = project.start("run")
    streams(project, running)
    with sqlite3.connect(project.lake / "catalog.db") as catalog:
        catalog.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE t SET v = 'waits'")
        (waiting,) = (project.lake / "public").glob("t-*/metadata")
        before = len(list(waiting.iterdir()))
        # New metadata is written before the catalog refers to it.
        wait_until(lambda: len(list(waiting.iterdir())) > before, 60, "a commit is under way")
        stops(running)
        catalog.rollback()
    assert project.run("run", "--once").code == 0


@pytest.mark.slow
def test_while_a_copy_asks_for_the_columns_of_its_table(project: Project, database: Database) -> None:
    """Spark asks by itself before there is a job that could be cancelled."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x')")
    port = database.server.port
    with Proxy("127.0.0.1", port) as proxy:
        project.configure(database.dsn.replace(f":{port}/", f":{proxy.port}/"), '[spark]\nmaster = "local[1]"\n')
        asked = proxy.go_deaf_at(b"WHERE 1=0")
        running = project.start("run")
        wait_until(asked.is_set, 90, lambda: f"the columns are asked for: {running.err}")
        stops(running)
    project.configure(database.dsn, '[spark]\nmaster = "local[1]"\n')
    ended = project.run("run", "--once")
    assert ended.code == 0, ended.all
    assert_equal_tables(database, project.lake, ["t"])


@pytest.mark.slow
def test_while_the_state_store_does_not_answer(project: Project, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x')")
    port = database.server.port
    with Proxy("127.0.0.1", port) as proxy:
        state = database.dsn.replace(f":{port}/", f":{proxy.port}/")
        project.configure(database.dsn, f'[spark]\nmaster = "local[1]"\n[state]\ndsn = "{state}"\n')
        running = project.start("run")
        streams(project, running)
        proxy.go_deaf()
        database.execute("UPDATE t SET v = 'y'")
        stops(running)
