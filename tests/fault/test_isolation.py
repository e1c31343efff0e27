"""A failure ends only the work in which it occurred: the group continues, or is restarted automatically."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import Mirrored, logged_errors

from oracle import table_directory
from servers import Database
from waiting import wait_until
from wal2lake.changelog.witness import Witness
from wal2lake.errors import ConnectionFailed
from wal2lake.mirror import Mirror
from wal2lake.retry import Backoff
from wal2lake.scheduling.group_loop import GroupLoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x')")
    return Mirrored(database, tmp_path / "lake", spark)


def test_a_source_that_turns_read_only_and_a_full_disk_end_nothing(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database = mirrored.database
    own = "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    with mirrored.running():
        mirrored.is_streaming("t")
        database.execute(f'ALTER DATABASE "{database.name}" SET default_transaction_read_only = on')
        database.rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity {own}")
        database.execute("SET default_transaction_read_only = off; INSERT INTO t VALUES (2, 'y')")
        wait_until(lambda: "read-only" in caplog.text, 60, "the state store can't be written")
        database.execute(f'ALTER DATABASE "{database.name}" RESET default_transaction_read_only')
        database.rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity {own}")
        mirrored.follows("t")

        with monkeypatch.context() as full:

            def no_room(self: Witness, lsn: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device", str(mirrored.changelog / "stored.json"))

            full.setattr(Witness, "has_stored", no_room)
            database.execute("INSERT INTO t VALUES (3, 'z')")
            wait_until(lambda: "No space left" in caplog.text, 60, "what was told to the store can't be noted")
        mirrored.follows("t")


@contextmanager
def unwritable(directory: Path) -> Iterator[None]:
    """A directory of the kernel's in its place, where not even root may make a file."""
    aside = directory.rename(directory.with_name("aside"))
    directory.symlink_to("/sys/kernel")
    try:
        yield
    finally:
        directory.unlink()
        aside.rename(directory)


def test_a_lake_table_that_can_not_be_written_is_named_in_the_log_and_tried_again_soon(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    """What Spark says of a full disk names no table of ours."""
    mirrored.database.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
    mirrored.catches_up("t", "u")
    with mirrored.running():
        mirrored.is_streaming("t", "u")
        with unwritable(table_directory(mirrored.lake, "t") / "data"):
            mirrored.database.execute("INSERT INTO t VALUES (2, 'y'); INSERT INTO u VALUES (2)")
            began = datetime.now(UTC)
            failed = mirrored.fails("t", "no permission or no space")
            mirrored.follows("u")
        assert failed.retry_at is not None and failed.retry_at - began < timedelta(seconds=35)
        (line,) = logged_errors(caplog)
        assert line.startswith("public.t: ") and str(failed.error) in line
        Mirror(mirrored.config).resume(["public.t"])
        mirrored.follows("t", "u")


def test_a_group_that_fails_for_no_known_reason_is_begun_again_by_itself(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("wal2lake.scheduling.supervisor.GROUP", Backoff(0.1, 0.1))
    retire = GroupLoop._retire
    failures: list[str] = []

    def once(self: Any) -> None:
        if failures:
            failures.clear()
            raise RuntimeError("a row value that nobody is to see")
        retire(self)

    monkeypatch.setattr(GroupLoop, "_retire", once)
    with mirrored.running():
        mirrored.is_streaming("t")
        mirrored.database.execute("INSERT INTO t VALUES (0, 'captured')")
        mirrored.follows("t")
        failures.append("now")
        wait_until(lambda: "it is restarted" in caplog.text, 60, "the group fails")
        mirrored.database.execute("INSERT INTO t VALUES (2, 'y')")
        mirrored.follows("t")
    assert "unexpected RuntimeError" in caplog.text and "nobody is to see" not in caplog.text


# ---- while a slot is made


CREATING = (
    "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND wait_event_type = 'Lock'"
    " AND datname = current_database()"
)


def _end_the_making_of_a_slot(database: Database) -> None:
    """While it waits for a transaction, its connection breaks."""
    ((pid,),) = wait_until(lambda: database.rows(CREATING), 60, "a slot is waited for")
    database.execute(f"SELECT pg_terminate_backend({pid})")


def _leases(database: Database) -> int:
    return int(database.value(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    ))  # fmt: skip


def test_a_connection_that_breaks_while_the_first_slot_is_made_ends_the_run_in_good_order(mirrored: Mirrored) -> None:
    """The state store can't be written at the end, either; the lease is released all the same."""
    database = mirrored.database
    with database.connect(autocommit=False) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("INSERT INTO t VALUES (2, 'open')")
        run = pool.submit(mirrored.once)
        wait_until(lambda: database.rows(CREATING), 60, "the slot is waited for")
        assert _leases(database) == 1
        database.execute(f'ALTER DATABASE "{database.name}" SET default_transaction_read_only = on')
        database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid NOT IN (pg_backend_pid(), %s)"
            " AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
            [writer.info.backend_pid],
        )
        _end_the_making_of_a_slot(database)
        with pytest.raises(ConnectionFailed):
            run.result(60)
        # The server's process ends a moment after its connection.
        wait_until(lambda: _leases(database) == 0, 10, "the lease is given back")
        database.execute(f'ALTER DATABASE "{database.name}" RESET default_transaction_read_only')
    mirrored.catches_up("t")


def test_a_connection_that_breaks_while_the_slot_of_a_copy_is_made_concerns_that_copy_alone(mirrored: Mirrored) -> None:
    database = mirrored.database
    mirrored.catches_up("t")
    with mirrored.running():
        mirrored.is_streaming("t")
        with database.connect(autocommit=False) as writer:
            writer.execute("CREATE TABLE unrelated (id int)")
            database.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
            _end_the_making_of_a_slot(database)
            failed = mirrored.fails("u")
            assert "psycopg" not in str(failed.error) and "unexpected" not in str(failed.error)
            database.execute("INSERT INTO t VALUES (2, 'meanwhile')")
            mirrored.follows("t")
            writer.rollback()
        Mirror(mirrored.config).resume(["public.u"])
        mirrored.follows("t", "u")
