"""A run starts, adds tables, or is stopped, while it waits for open transactions of other sessions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import Mirrored

from servers import Database
from waiting import wait_until
from wal2lake.lake import Lake
from wal2lake.lake.model import Applied
from wal2lake.mirror import Mirror
from wal2lake.source.model import CopySource
from wal2lake.source.publishing import slot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("a", "b")


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    for name in TABLES:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1), (2)")
    return Mirrored(database, tmp_path / "lake", spark)


def _waits_for_a_lock(mirrored: Mirrored) -> None:
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        "AND application_name LIKE 'wal2lake%'"
    )
    wait_until(lambda: mirrored.database.value(waiting), 30, "a session of ours waits for a lock")


def _slots(mirrored: Mirrored) -> int:
    return int(mirrored.database.value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"))


def test_a_first_start_that_crosses_a_migration_goes_on_after_it_and_does_not_abort_it(mirrored: Mirrored) -> None:
    """Each has one of the tables and wants the other: PostgreSQL would end one of the two transactions."""
    with mirrored.database.connect(autocommit=False) as migration:
        migration.execute("ALTER TABLE b ADD COLUMN v text")
        with mirrored.running():
            _waits_for_a_lock(mirrored)
            migration.execute("ALTER TABLE a ADD COLUMN v text")
            migration.commit()
            mirrored.is_streaming(*TABLES)
            mirrored.database.execute("INSERT INTO a VALUES (3, 'x'); INSERT INTO b VALUES (3, 'x')")
            mirrored.follows(*TABLES)


def test_a_first_start_names_who_keeps_it_waiting_and_follows_a_table_that_was_renamed_meanwhile(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal2lake.source.published_tables.LOCKED_SECONDS", 0.5)
    with mirrored.database.connect(autocommit=False) as migration:
        migration.execute("ALTER TABLE b RENAME TO c")
        holder = migration.info.backend_pid
        with mirrored.running():
            wait_until(lambda: mirrored.group().error, 30, "the wait is reported")
            group = mirrored.group()
            assert f"public.b is locked by server process {holder}" in str(group.error)
            assert f"pg_terminate_backend({holder})" in str(group.remedy)
            migration.commit()
            mirrored.is_streaming("a", "c")
            assert mirrored.group().error is None
            mirrored.follows("a")
    assert "a table was dropped or renamed meanwhile" in caplog.text


def test_a_run_that_waits_for_a_table_names_the_session_and_can_be_stopped(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal2lake.source.published_tables.LOCKED_SECONDS", 0.5)
    with mirrored.database.connect(autocommit=False) as migration:
        migration.execute("ALTER TABLE b ADD COLUMN v text")
        with mirrored.running():
            wait_until(lambda: "locked by server process" in str(mirrored.group().error), 30, "the wait is reported")
    assert _slots(mirrored) == 0
    mirrored.catches_up(*TABLES)


def test_a_table_under_a_migration_comes_in_after_it_and_the_others_go_on(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal2lake.source.published_tables.LOCKED_SECONDS", 0.5)
    with mirrored.running(), mirrored.database.connect(autocommit=False) as migration:
        mirrored.is_streaming(*TABLES)
        mirrored.database.execute("CREATE TABLE c (id int PRIMARY KEY); INSERT INTO c VALUES (1)")
        migration.execute("ALTER TABLE c ADD COLUMN v text")
        wait_until(lambda: "is waiting: public.c is locked" in caplog.text, 30, lambda: caplog.text)
        mirrored.database.execute("INSERT INTO a VALUES (3)")
        mirrored.follows("a")
        migration.commit()
        mirrored.is_streaming("c")
        mirrored.follows(*TABLES, "c")


def test_who_waits_to_alter_a_table_during_its_copy_comes_first_and_the_copy_is_repeated(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readers of the copy would wait for the ALTER, the ALTER for the copy, and the application for both."""
    copy, altering = Lake.copy, mirrored.database.connect()
    altered = threading.Event()

    def alter() -> None:
        altering.execute("ALTER TABLE a ADD COLUMN v text DEFAULT 'x'")
        altered.set()

    def copy_after(lake: Lake, source: CopySource, *rest: Any) -> Applied:
        if source.schema.id.name == "a" and not altered.is_set():
            threading.Thread(target=alter).start()
            waiting = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: mirrored.database.value(waiting, [altering.info.backend_pid]), 30, "the ALTER waits")
        return copy(lake, source, *rest)

    monkeypatch.setattr(Lake, "copy", copy_after)
    with mirrored.running():
        assert altered.wait(60), "the ALTER goes on"
        mirrored.is_streaming("b")
        Mirror(mirrored.config).resync(["public.a"])
        mirrored.becomes_equal(*TABLES)


def test_a_first_start_that_waits_for_an_open_transaction_names_it_and_can_be_stopped(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "WAIT_REPORT_SECONDS", 0.2)
    with mirrored.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO a VALUES (3)")
        with mirrored.running():
            wait_until(lambda: mirrored.group().error, 30, "the wait is reported")
            group = mirrored.group()
            assert f"transactions are open: server process {writer.info.backend_pid} " in str(group.error)
            assert "pg_terminate_backend" in str(group.remedy)
        assert _slots(mirrored) == 0
    mirrored.catches_up(*TABLES)
    assert mirrored.group().error is None


def test_a_run_whose_copy_waits_for_an_open_transaction_can_be_stopped(mirrored: Mirrored) -> None:
    with mirrored.database.connect(autocommit=False) as writer:
        with mirrored.running():
            mirrored.is_streaming(*TABLES)
            writer.execute("INSERT INTO a VALUES (3)")
            mirrored.resync("b")
            wait_until(lambda: _slots(mirrored) == 2, 30, "the copy's own slot is being made")
        assert _slots(mirrored) == 1
        table = mirrored.table("b")
        assert table is not None and table.error is None
    mirrored.catches_up(*TABLES)
