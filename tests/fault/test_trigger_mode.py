"""A mirror of tables that are captured by triggers: without a slot, and as exact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import GROUP, PATIENCE, Mirrored

from servers import Database
from waiting import wait_until
from wal2lake.preflight import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE 'wal2lake %'"
)
TRIGGERS = [{"name": GROUP, "flush_interval": 0.1, "capture": "trigger"}]


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, amount numeric(10, 2));"
        "CREATE TABLE keyless (a int, b text);"
        "INSERT INTO orders SELECT i, 'new', i FROM generate_series(1, 100) AS i;"
        "INSERT INTO keyless SELECT i % 3, 'x' FROM generate_series(1, 30) AS i"
    )
    return Mirrored(database, tmp_path / "lake", spark, groups=TRIGGERS)


def left_behind(database: Database) -> int:
    """Triggers, functions, tables and schemas of ours in a database."""
    found: int = database.value(
        "SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'wal2lake%')"
        " + (SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'wal2lake%')"
        " + (SELECT count(*) FROM pg_proc WHERE prosrc LIKE '%wal2lake%' AND pronamespace <> 'pg_catalog'::regnamespace)"
        " + (SELECT count(*) FROM pg_publication)"
        " + (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())"
    )
    return found


def test_a_mirror_without_a_slot_follows_and_leaves_nothing(mirrored: Mirrored) -> None:
    database = mirrored.database
    mirrored.catches_up("orders", "keyless")
    database.execute("INSERT INTO orders SELECT i, 'more', i FROM generate_series(101, 150) AS i")
    database.execute("UPDATE orders SET id = id + 1000, status = 'moved' WHERE id % 5 = 0")
    database.execute("DELETE FROM orders WHERE id % 7 = 0")
    database.execute("UPDATE keyless SET b = 'y' WHERE a = 1; DELETE FROM keyless WHERE a = 2")
    mirrored.catches_up("orders", "keyless")
    database.execute("TRUNCATE orders; INSERT INTO orders VALUES (1, 'again', 1)")
    mirrored.catches_up("orders", "keyless")
    assert database.value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == 0
    mirrored.command("teardown", "--yes")
    assert left_behind(database) == 0


def test_ddl_partitions_and_tables_that_come_and_go_reach_the_lake(mirrored: Mirrored) -> None:
    database = mirrored.database
    database.execute(
        "CREATE TABLE parted (k int, v text) PARTITION BY RANGE (k);"
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10); INSERT INTO parted VALUES (1, 'a')"
    )
    with mirrored.running():
        mirrored.is_streaming("orders", "keyless", "parted")
        status = mirrored.table("orders")
        assert status is not None and status.mode == "TRIGGER"
        assert mirrored.group().capture == "trigger"
        database.execute("ALTER TABLE orders ADD COLUMN note text; INSERT INTO orders VALUES (500, 'n', 1, 'x')")
        database.execute("UPDATE parted SET v = 'b'; INSERT INTO low VALUES (2, 'straight')")
        mirrored.becomes_equal("orders", "parted")
        database.execute("ALTER TABLE orders RENAME COLUMN status TO condition; ALTER TABLE orders DROP COLUMN amount")
        database.execute("UPDATE orders SET condition = 'renamed' WHERE id < 10")
        mirrored.becomes_equal("orders")
        database.execute(
            "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20); INSERT INTO high VALUES (11, 'c')"
        )
        database.execute("INSERT INTO parted VALUES (12, 'd')")
        database.execute("CREATE TABLE later (id int PRIMARY KEY, v text); INSERT INTO later VALUES (1, 'a')")
        mirrored.becomes_equal("parted", "later")
        database.execute("INSERT INTO later VALUES (2, 'b'); INSERT INTO keyless VALUES (9, 'last')")
        mirrored.becomes_equal("later", "keyless")
        mirrored.command("tables", "remove", "public.later")
        oid = database.value("SELECT 'later'::regclass::oid::int8")
        gone = f"SELECT count(*) FROM pg_trigger WHERE tgrelid = {oid}"
        wait_until(lambda: database.value(gone) == 0, PATIENCE, "the triggers of a removed table to go")
        database.execute("DROP TABLE keyless")
        mirrored.resync("orders")
        database.execute("DELETE FROM orders WHERE id % 2 = 0")
        mirrored.becomes_equal("orders")
    mirrored.command("teardown", "--yes")
    assert left_behind(database) == 0


def test_a_table_that_inherits_for_a_while_is_stopped_and_then_re_copied(mirrored: Mirrored) -> None:
    """A statement on the parent changes its rows, and fires no triggers of it."""
    database = mirrored.database
    database.execute("CREATE TABLE above (a int, b text)")
    with mirrored.running():
        mirrored.is_streaming("orders", "keyless", "above")
        database.execute("ALTER TABLE keyless INHERIT above; UPDATE above SET b = 'by the parent' WHERE a = 1")
        wait_until(lambda: _refused(mirrored) == {"above", "keyless"}, PATIENCE, "both to be refused")
        database.execute("INSERT INTO orders VALUES (600, 'new', 1); DELETE FROM above WHERE a = 2")
        mirrored.becomes_equal("orders")
        database.execute("ALTER TABLE keyless NO INHERIT above; INSERT INTO keyless VALUES (1, 'after')")
        mirrored.becomes_equal("keyless", "above")


def _refused(mirrored: Mirrored) -> set[str]:
    found = {name: mirrored.table(name) for name in ("orders", "keyless", "above")}
    return {name for name, one in found.items() if one is not None and "inherit" in str(one.error)}


def test_sessions_that_are_ended_at_any_moment_lose_and_double_nothing(mirrored: Mirrored) -> None:
    database = mirrored.database
    with mirrored.running():
        mirrored.is_streaming("orders", "keyless")
        for number in range(6):
            database.execute(f"INSERT INTO keyless SELECT {number}, 'k' FROM generate_series(1, 3000)")
            database.execute("UPDATE orders SET amount = amount + 1; DELETE FROM keyless WHERE a = 0")
            wait_until(lambda: database.rows(END_SESSIONS), PATIENCE, "a session to end")
        mirrored.becomes_equal("orders", "keyless")


def test_a_group_that_changes_to_the_wal_and_back_leaves_nothing_of_the_other(mirrored: Mirrored) -> None:
    mirrored.catches_up("orders", "keyless")
    mirrored.database.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    for capture in ("wal", "trigger"):
        mirrored.configure(groups=[{"name": GROUP, "flush_interval": 0.1, "capture": capture}])
        with mirrored.running():
            mirrored.database.execute("UPDATE orders SET amount = amount + 1")
            mirrored.becomes_equal("orders", "keyless")
        triggers = mirrored.database.value("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'wal2lake%'")
        slots = mirrored.database.value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
        publications = mirrored.database.value("SELECT count(*) FROM pg_publication")
        assert (bool(triggers), slots, publications) == ((False, 1, 1) if capture == "wal" else (True, 0, 0))


def test_check_shows_how_the_triggers_of_a_table_are(mirrored: Mirrored) -> None:
    database = mirrored.database
    words = ("gets statement-level triggers", "installed", "outdated", "missing", "disabled")

    def told() -> list[str]:
        said = [one.consequence for one in check(mirrored.config) if one.object == "public.orders"]
        return [word for word in words if any(word in text.partition(":")[0] for text in said)]

    assert told() == ["gets statement-level triggers"]
    mirrored.catches_up("orders", "keyless")
    name = database.value("SELECT tgname FROM pg_trigger WHERE tgrelid = 'orders'::regclass AND tgname ~ 'wal2lake_up'")
    for spoil, condition in {
        f"ALTER TABLE orders DISABLE TRIGGER {name}": "disabled",
        f"ALTER TABLE orders ENABLE TRIGGER {name}": "disabled",
        f"DROP TRIGGER {name} ON orders": "missing",
        "ALTER TABLE orders ADD COLUMN w int": "outdated",
    }.items():
        assert told() == ["installed"]
        database.execute(spoil)
        assert told() == [condition]
        database.execute("UPDATE orders SET amount = amount + 1")
        mirrored.catches_up("orders", "keyless")


def test_partitions_that_come_go_and_are_written_straight_meanwhile(mirrored: Mirrored) -> None:
    """One that is detached is a table of its own then, which is mirrored, too."""
    database = mirrored.database
    database.execute(
        "CREATE TABLE parted (k int, v text) PARTITION BY RANGE (k);"
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE spare (k int, v text); INSERT INTO parted VALUES (1, 'a'), (2, 'a'); INSERT INTO spare VALUES (15, 's')"
    )
    with mirrored.running():
        mirrored.is_streaming("orders", "parted", "spare")
        for number in range(3):
            database.execute("ALTER TABLE parted DETACH PARTITION low; INSERT INTO low VALUES (3, 'detached')")
            database.execute("UPDATE low SET v = v || '.'; UPDATE orders SET amount = amount + 1")
            if number == 1:
                mirrored.becomes_equal("parted", "low")
            database.execute("ALTER TABLE parted ATTACH PARTITION low FOR VALUES FROM (0) TO (10)")
            database.execute("INSERT INTO low VALUES (4, 'straight'); DELETE FROM parted WHERE k = 2")
            if number != 2:
                mirrored.becomes_equal("parted", "orders")
        database.execute("ALTER TABLE parted ATTACH PARTITION spare FOR VALUES FROM (10) TO (20)")
        database.execute("INSERT INTO spare VALUES (16, 'straight'); UPDATE parted SET k = k + 10 WHERE k = 1")
        mirrored.becomes_equal("parted", "orders")
        database.execute(
            "INSERT INTO spare VALUES (17, 'straight'); TRUNCATE low; INSERT INTO parted VALUES (5, 'new')"
        )
        mirrored.becomes_equal("parted", "orders")
    mirrored.command("teardown", "--yes")
    assert left_behind(database) == 0


def test_a_locked_partition_delays_no_other_table(mirrored: Mirrored) -> None:
    """VACUUM FULL holds such a lock for as long as it takes."""
    database = mirrored.database
    database.execute(
        "CREATE TABLE parted (k int, v text) PARTITION BY RANGE (k);"
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10); INSERT INTO parted VALUES (1, 'a')"
    )
    with mirrored.running():
        mirrored.is_streaming("orders", "parted")
        locker = database.connect(autocommit=False)
        locker.execute("LOCK TABLE low IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        database.execute("UPDATE orders SET amount = amount + 1")
        mirrored.follows("orders")
        assert time.monotonic() - began < 25
        locker.rollback()
        mirrored.becomes_equal("parted")
    locker = database.connect(autocommit=False)
    locker.execute("LOCK TABLE low IN ACCESS EXCLUSIVE MODE")
    database.execute("UPDATE orders SET amount = amount + 1")
    mirrored.catches_up("orders")
    locker.rollback()
