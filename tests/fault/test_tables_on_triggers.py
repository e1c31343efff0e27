"""A group that streams, of which single tables are captured by triggers: their buffers are in the same stream."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import GROUP, PATIENCE, Mirrored, missed

from command import Project
from servers import Database
from waiting import wait_until
from wal2lake import faults
from wal2lake.faults import VARIABLE
from wal2lake.mirror import Mirror
from wal2lake.preflight import check

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


def test_the_first_table_of_a_group_that_loses_its_key_is_copied_once_the_stream_has_its_buffer(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """The stream was opened without the second publication, so it may lack what was written meanwhile."""
    database.execute("CREATE TABLE t (id int, v int, CONSTRAINT t_key PRIMARY KEY (id)); INSERT INTO t VALUES (1, 1)")
    mirrored = made(database, tmp_path, spark)
    with mirrored.running():
        mirrored.becomes_equal("t")
        database.execute("ALTER TABLE t DROP CONSTRAINT t_key; INSERT INTO t VALUES (1, 1)")
        wait_until(lambda: modes(mirrored)["t"] == "TRIGGER", PATIENCE, lambda: f"triggers: {modes(mirrored)}")
        database.execute("UPDATE t SET v = v + 1; INSERT INTO t VALUES (2, 2)")
        mirrored.becomes_equal("t")
        database.execute("DELETE FROM t WHERE id = 1")
        mirrored.becomes_equal("t")


def test_ddl_partitions_and_triggers_that_others_disable(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    make_tables(database)
    mirrored = made(database, tmp_path, spark)
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)
        database.execute(
            "ALTER TABLE keyless ADD COLUMN more text DEFAULT 'd'; INSERT INTO keyless VALUES (1, 2, 'x', 'y')"
        )
        mirrored.becomes_equal("keyless")
        database.execute("ALTER TABLE keyless RENAME COLUMN v TO w; ALTER TABLE keyless DROP COLUMN n")
        database.execute("UPDATE keyless SET w = 'renamed' WHERE a < 5")
        mirrored.becomes_equal("keyless")
        database.execute("ALTER TABLE keyless ALTER a TYPE bigint; UPDATE keyless SET a = a + 5000000000 WHERE a = 3")
        database.execute("ALTER TABLE keyless RENAME TO renamed; DELETE FROM renamed WHERE a = 4")
        mirrored.becomes_equal("renamed")
        database.execute(
            "CREATE TABLE top PARTITION OF parted FOR VALUES FROM (100) TO (200); INSERT INTO top VALUES (150, 1, 'leaf');"
            "INSERT INTO parted VALUES (151, 1, 'root')"
        )
        mirrored.becomes_equal("parted")
        wait_until(lambda: has_triggers(database, "top"), PATIENCE, "triggers on the new partition")
        database.execute("DELETE FROM top WHERE k = 150; ALTER TABLE parted DETACH PARTITION low")
        database.execute("INSERT INTO low VALUES (1, 9, 'of its own'); UPDATE parted SET n = 7 WHERE k > 90")
        mirrored.becomes_equal("parted", "low")
        database.execute("ALTER TABLE renamed DISABLE TRIGGER ALL; INSERT INTO renamed (a) VALUES (77)")
        mirrored.becomes_equal("renamed")
        database.execute("DELETE FROM renamed WHERE a = 77; DROP TABLE parted; UPDATE keyed SET n = 5 WHERE id < 9")
        mirrored.becomes_equal("renamed", "keyed", "low")
        generations = "SELECT count(*) FROM wal2lake_changes.buffers"
        wait_until(
            lambda: database.value(generations) == 2,
            PATIENCE,
            lambda: f"{database.rows('TABLE wal2lake_changes.buffers')}",
        )
        mirrored.command("tables", "remove", "public.renamed", "public.low")
        nothing = {"triggers": 0, "buffers": 0, "publications": 2, "slots": 1}
        wait_until(lambda: left(database) == nothing, PATIENCE, lambda: f"nothing of triggers: {left(database)}")
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}


def test_the_settings_of_a_table_decide_and_check_says_so_beforehand(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    make_tables(database)
    tables = {"public.keyed": {"capture": "trigger"}, "public.parted": {"capture": "wal"}}
    mirrored = made(database, tmp_path, spark, tables=tables)
    found = {finding.object: finding for finding in check(mirrored.config)}
    assert "gets statement-level triggers" in found["public.keyed"].consequence
    assert "it has no primary key, so it gets statement-level triggers" in found["public.keyless"].consequence
    assert found["public.parted"].blocks
    assert (
        "captures from the WAL: public.parted; by triggers: public.keyed, public.keyless"
        in found["group default"].consequence
    )
    refused = missed(mirrored.once())
    assert set(refused) == {"parted"} and "no primary key" in str(refused["parted"].error)
    mirrored.equal("keyed", "keyless")
    assert {name: modes(mirrored)[name] for name in ("keyed", "keyless")} == {"keyed": "TRIGGER", "keyless": "TRIGGER"}
    mirrored.configure(groups=[{"name": GROUP, "flush_interval": 0.1, "capture": "wal"}], tables={})
    found = {finding.object: finding for finding in check(mirrored.config)}
    assert found["public.keyless"].blocks and found["public.parted"].blocks
    database.execute("UPDATE keyed SET n = n + 1; UPDATE keyless SET n = 1")
    assert set(missed(mirrored.once())) == {"keyless", "parted"}
    mirrored.equal("keyed")
    mirrored.apply_requests(found["public.keyless"].fix)
    mirrored.apply_requests(found["public.parted"].fix)
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)
        wait_until(lambda: left(database)["buffers"] == 0, PATIENCE, lambda: f"no triggers: {left(database)}")
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}


def test_a_table_on_triggers_moves_between_groups_without_a_copy(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    make_tables(database)
    groups = [
        {"name": GROUP, "flush_interval": 0.1, "capture": "auto", "exclude": ["public.parted"]},
        {"name": "other", "flush_interval": 0.1, "capture": "auto", "tables": ["public.parted"]},
    ]
    mirrored = made(database, tmp_path, spark, groups=groups)
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)
        database.execute("UPDATE keyless SET n = n + 1")
        mirrored.command("tables", "move", "public.keyless", "--group", "other")
        database.execute("DELETE FROM keyless WHERE a = 4; INSERT INTO keyless VALUES (5, 5, 'm'), (5, 5, 'm')")

        def moved() -> bool:
            table = mirrored.table("keyless")
            return table is not None and table.group == "other" and table.state == "STREAMING"

        wait_until(moved, PATIENCE, lambda: f"the move: {mirrored.table('keyless')}")
        database.execute("UPDATE keyless SET a = a + 1 WHERE a < 9")
        mirrored.becomes_equal(*TABLES)
        assert modes(mirrored)["keyless"] == "TRIGGER"
    assert sum(e.after == "SNAPSHOT" for e in Mirror(mirrored.config).history("public.keyless")) == 1
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}


@pytest.mark.parametrize("point", [faults.BUFFER_PUBLISHED, faults.BUFFER_RETIRED])
def test_a_run_that_is_killed_while_a_table_changes_its_way_goes_on_at_the_next_start(
    project: Project, database: Database, spark: SparkSession, point: str
) -> None:
    database.execute(
        "CREATE TABLE gains (id int NOT NULL, v int); CREATE TABLE loses (id int, v int, CONSTRAINT l PRIMARY KEY (id));"
        "INSERT INTO gains SELECT i, 0 FROM generate_series(1, 50) i; INSERT INTO loses SELECT id, v FROM gains"
    )
    mirrored = Mirrored(database, project.lake, spark, groups=[{"name": GROUP, "capture": "auto"}])
    mirrored.catches_up("gains", "loses")
    database.execute("ALTER TABLE gains ADD PRIMARY KEY (id); ALTER TABLE loses DROP CONSTRAINT l")
    database.execute("UPDATE gains SET v = 1 WHERE id < 20; INSERT INTO loses VALUES (1, 0)")
    project.configure(database.dsn, f'[[groups]]\nname = "{GROUP}"\ncapture = "auto"\n')
    run = project.start("run", env={VARIABLE: point})
    assert run.wait().code == -signal.SIGKILL
    database.execute("UPDATE gains SET id = id + 1000 WHERE v = 1; DELETE FROM gains WHERE id = 30")
    with mirrored.running():
        wait_until(
            lambda: modes(mirrored) == {"gains": "WAL", "loses": "TRIGGER"}, PATIENCE, lambda: f"{modes(mirrored)}"
        )
        database.execute("UPDATE loses SET v = v + 1 WHERE id < 9")
        mirrored.becomes_equal("gains", "loses")
        wait_until(lambda: not has_triggers(database, "gains"), PATIENCE, "the triggers to go")
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}


def test_a_table_that_others_begin_to_inherit_from_is_stopped_and_copied_when_that_has_ended(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    make_tables(database)
    mirrored = made(database, tmp_path, spark)
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)
        database.execute("CREATE TABLE child () INHERITS (keyless); UPDATE keyless SET n = 3")
        mirrored.fails("keyless", "no primary key")
        database.execute("UPDATE keyed SET n = 4; DROP TABLE child; UPDATE keyless SET n = 5")
        mirrored.becomes_equal(*TABLES)
        assert modes(mirrored)["keyless"] == "TRIGGER"
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}


def test_a_lost_slot_and_a_group_that_is_dropped(database: Database, tmp_path: Path, spark: SparkSession) -> None:
    make_tables(database)
    mirrored = made(database, tmp_path, spark)
    mirrored.catches_up(*TABLES)
    database.execute("UPDATE keyless SET n = 8; DELETE FROM parted WHERE k < 30")
    database.rows(f"SELECT pg_drop_replication_slot('{mirrored.slot}')")
    database.execute("DELETE FROM keyless WHERE a = 2; UPDATE parted SET n = 9 WHERE k = 60")
    mirrored.once()
    mirrored.resync()
    mirrored.catches_up(*TABLES)
    database.execute("UPDATE keyless SET a = a + 1; UPDATE parted SET k = k - 30 WHERE k BETWEEN 40 AND 60")
    mirrored.catches_up(*TABLES)
    assert modes(mirrored) == {"keyed": "WAL", "keyless": "TRIGGER", "parted": "TRIGGER"}
    mirrored.command("groups", "create", "second", "--tables", "elsewhere.*")
    database.execute(
        "CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.bag (v int); INSERT INTO elsewhere.bag VALUES (1)"
    )
    mirrored.once()
    assert {table.name: table.mode for table in Mirror(mirrored.config).tables()}["elsewhere.bag"] == "TRIGGER"
    before = left(database)
    mirrored.command("groups", "drop", "second")
    after = left(database)
    assert (before["triggers"] - after["triggers"], before["publications"] - after["publications"]) == (4, 2)
    assert after["slots"] == 1
    database.execute("UPDATE keyless SET n = 10")
    mirrored.catches_up(*TABLES)
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}
