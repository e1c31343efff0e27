"""A group that streams, of which single tables are captured by triggers: their buffers are in the same stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import GROUP, PATIENCE, Mirrored

from servers import Database
from waiting import wait_until
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("keyed", "keyless", "parted")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal2lake.scheduling.lanes.MAINTAIN_SECONDS", 0.3)
    monkeypatch.setattr("wal2lake.reconcile.reconciler.REFRESH_SECONDS", 1.0)


def make_tables(database: Database) -> None:
    database.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, n int, v text);"
        "CREATE TABLE keyless (a int, n int, v text);"
        "CREATE TABLE parted (k int, n int, v text) PARTITION BY RANGE (k);"
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (50);"
        "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (50) TO (100);"
        "INSERT INTO keyed SELECT i, 0, 'k' FROM generate_series(1, 50) i;"
        "INSERT INTO keyless SELECT i % 20, 0, 'l' FROM generate_series(1, 50) i;"
        "INSERT INTO parted SELECT i, 0, 'p' FROM generate_series(1, 99) i"
    )


def left(database: Database) -> dict[str, int]:
    """What a mirror has in a database, by its kind."""
    (row,) = database.rows(
        "SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'wal2lake%'),"
        " (SELECT count(*) FROM pg_namespace WHERE nspname = 'wal2lake_changes'),"
        " (SELECT count(*) FROM pg_publication),"
        " (SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary)"
    )
    return dict(zip(("triggers", "buffers", "publications", "slots"), row, strict=True))


def modes(mirrored: Mirrored) -> dict[str, str]:
    return {table.name.removeprefix("public."): table.mode for table in Mirror(mirrored.config).tables()}


def has_triggers(database: Database, table: str) -> bool:
    return bool(
        database.value(
            f"SELECT count(*) FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgname LIKE 'wal2lake%'"
        )
    )


def made(database: Database, tmp_path: Path, spark: SparkSession, **sections: object) -> Mirrored:
    groups = [{"name": GROUP, "flush_interval": 0.1, "capture": "auto"}]
    return Mirrored(database, tmp_path / "lake", spark, **{"groups": groups, **sections})


def test_a_table_without_a_replica_identity_is_captured_by_triggers_while_the_others_stream(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    make_tables(database)
    mirrored = made(database, tmp_path, spark)
    mirrored.catches_up(*TABLES)
    assert modes(mirrored) == {"keyed": "WAL", "keyless": "TRIGGER", "parted": "TRIGGER"}
    assert mirrored.group().capture == "auto"
    assert not has_triggers(database, "keyed")
    database.execute("UPDATE keyless SET n = n + 1 WHERE a < 5; DELETE FROM keyless WHERE a = 7")
    database.execute("UPDATE parted SET k = k + 50 WHERE k < 10; DELETE FROM low WHERE k = 20; UPDATE keyed SET n = 1")
    mirrored.catches_up(*TABLES)
    with mirrored.running():
        mirrored.is_streaming(*TABLES)
        database.execute("TRUNCATE keyless; INSERT INTO keyless VALUES (1, 1, NULL), (1, 1, NULL)")
        database.execute(
            "BEGIN; DELETE FROM parted WHERE k > 60; SAVEPOINT s; DELETE FROM parted; ROLLBACK TO s; COMMIT"
        )
        mirrored.becomes_equal(*TABLES)
        empty = "SELECT count(*) FROM wal2lake_changes.changes_{}"
        oid = database.value("SELECT 'keyless'::regclass::oid::int8")
        wait_until(lambda: database.value(empty.format(oid)) == 0, PATIENCE, "the buffer to be emptied")
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}


def test_a_table_that_gets_a_key_moves_to_the_wal_and_one_that_loses_it_moves_to_triggers(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    make_tables(database)
    mirrored = made(database, tmp_path, spark)
    listener = database.connect()
    listener.execute("LISTEN wal2lake_events")
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)
        database.execute("UPDATE keyless SET a = -a, n = 3")
        database.execute(
            "CREATE TABLE gains (a int NOT NULL, v text); INSERT INTO gains SELECT i, 'x' FROM generate_series(1, 9) i"
        )
        mirrored.becomes_equal("gains", "keyless")
        assert modes(mirrored)["gains"] == "TRIGGER"
        database.execute(
            "UPDATE gains SET v = 'y' WHERE a < 3; ALTER TABLE gains ADD PRIMARY KEY (a); UPDATE gains SET v = 'z' WHERE a < 5"
        )
        wait_until(lambda: modes(mirrored)["gains"] == "WAL", PATIENCE, lambda: f"the WAL: {modes(mirrored)}")
        wait_until(lambda: not has_triggers(database, "gains"), PATIENCE, "the triggers to go")
        database.execute(
            "UPDATE gains SET a = a + 100; DELETE FROM gains WHERE a = 103; INSERT INTO gains VALUES (1, 'n')"
        )
        mirrored.becomes_equal("gains")
        database.execute("INSERT INTO keyed VALUES (1000, 1, 'before'); ALTER TABLE keyed DROP CONSTRAINT keyed_pkey")
        database.execute("INSERT INTO keyed VALUES (1000, 1, 'twice')")
        wait_until(lambda: modes(mirrored)["keyed"] == "TRIGGER", PATIENCE, lambda: f"triggers: {modes(mirrored)}")
        database.execute("UPDATE keyed SET n = n + 1 WHERE id % 2 = 0; DELETE FROM keyed WHERE id = 3")
        mirrored.becomes_equal(*TABLES, "gains")
        told = [json.loads(one.payload) for one in listener.notifies(timeout=5, stop_after=2)]
    assert [(one["table"], one["old"], one["new"]) for one in told] == [
        ("public.gains", "TRIGGER", "WAL"), ("public.keyed", "WAL", "TRIGGER"),
    ]  # fmt: skip
    history = Mirror(mirrored.config).history("public.keyed")
    assert [(e.before, e.after) for e in history if e.detail == "capture mode"] == [("WAL", "TRIGGER")]
    # Its changes were in the stream without a gap.
    assert sum(e.after == "SNAPSHOT" for e in history) == 1
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}
