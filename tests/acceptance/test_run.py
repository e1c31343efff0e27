"""`wal2lake run`, as a process: it copies, follows, can be stopped, and leaves only the lake."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from command import Project, Running
from oracle import assert_equal_tables
from servers import Database
from waiting import wait_until

START_LIMIT = 120


def _streaming(project: Project, run: Running, *tables: str) -> None:
    def states() -> dict[str, str]:
        assert run.running, run.out + run.err
        return {table["name"]: table["state"] for table in project.watch()["tables"]}

    wait_until(
        lambda: all(states().get(t) == "STREAMING" for t in tables), START_LIMIT, lambda: f"{states()}\n{run.err}"
    )


def _caught_up(project: Project, database: Database, *tables: str) -> None:
    """Wait until the lake is where the source is; what it then holds is compared by the test itself."""
    position = database.value("SELECT pg_current_wal_lsn()")

    def behind() -> list[str]:
        found = {t["name"]: t["applied_lsn"] for t in project.watch()["tables"]}
        return [t for t in tables if not database.value("SELECT %s::pg_lsn >= %s", [found.get(t) or "0/0", position])]

    wait_until(lambda: not behind(), 60, lambda: f"caught up: {behind()}")


def _told_of_java(project: Project) -> Path:
    """A file that is there as soon as somebody starts Java, in the directory to be used as its home."""
    home = project.directory / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text('#!/bin/sh\necho "$@" >> "${0%/bin/java}/started"\nexit 1\n')
    java.chmod(0o755)
    return home / "started"


def _leftovers(database: Database) -> list[tuple[object, ...]]:
    return database.rows(
        "SELECT 'slot', slot_name::text FROM pg_replication_slots WHERE database = current_database() "
        "UNION ALL SELECT 'publication', pubname::text FROM pg_publication "
        "UNION ALL SELECT 'schema', nspname::text FROM pg_namespace WHERE nspname LIKE 'wal2lake%'"
    )


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2), tags text[], at timestamptz);"
        "CREATE TABLE counts (a int, b text, n bigint, PRIMARY KEY (a, b));"
        "INSERT INTO items SELECT i, 'item ' || i, i / 4.0, ARRAY['a', NULL], now() FROM generate_series(1, 500) i;"
        "INSERT INTO counts SELECT i, 'x', i FROM generate_series(1, 50) i"
    )
    return database


def _change(database: Database) -> None:
    database.execute(
        "INSERT INTO items SELECT i, 'item ' || i, NULL, '{}', now() FROM generate_series(1001, 1100) i;"
        "UPDATE items SET name = 'changed' WHERE id % 7 = 0; DELETE FROM items WHERE id % 11 = 0;"
        "UPDATE counts SET a = a + 1000 WHERE a % 5 = 0; DELETE FROM counts WHERE a = 1"
    )


def test_run_once_copies_then_follows_and_teardown_leaves_only_the_lake(project: Project, shop: Database) -> None:
    project.configure(shop.dsn)
    first = project.run("run", "--once")
    assert first.code == 0, first.all
    assert_equal_tables(shop, project.lake, ["items", "counts"])

    _change(shop)
    second = project.run("run", "--once")
    assert second.code == 0, second.all
    assert_equal_tables(shop, project.lake, ["items", "counts"])

    tables = {table["name"]: table for table in project.status()["tables"]}
    assert tables["public.items"]["rows"] == shop.value("SELECT count(*) FROM items")
    assert tables["public.items"]["changes_applied"] > 0

    # Nothing to apply: what the lake's own files say is enough, and no JVM is started.
    started = _told_of_java(project)
    idle = project.run("run", "--once", env={"JAVA_HOME": str(started.parent)})
    assert idle.code == 0, idle.all
    assert not started.exists(), "a JVM was started"
    shop.execute("UPDATE items SET name = 'once more' WHERE id = 1")
    busy = project.run("run", "--once", env={"JAVA_HOME": str(started.parent)})
    assert busy.code == 1 and started.exists(), busy.all

    gone = project.run("teardown", "--yes")
    assert gone.code == 0, gone.all
    assert _leftovers(shop) == []
    assert_equal_tables(shop, project.lake, ["counts"])
    assert shop.server.password not in first.all + second.all + gone.all


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=lambda number: number.name
)
def test_a_run_follows_changes_and_stops_cleanly_on(number: signal.Signals, project: Project, shop: Database) -> None:
    project.configure(shop.dsn)
    run = project.start("run")
    _streaming(project, run, "public.items", "public.counts")
    _change(shop)
    _caught_up(project, shop, "public.items", "public.counts")
    assert_equal_tables(shop, project.lake, ["items", "counts"])

    run.signal(number)
    finished = run.wait(30)
    assert finished.code == 0, finished.all
    assert "Traceback" not in finished.all and shop.server.password not in finished.all
    readers = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()"
    wait_until(lambda: shop.rows(readers) == [], 10, "nobody reads the slot any more")


@pytest.mark.slow
def test_a_second_run_is_refused_with_the_name_of_the_first(project: Project, shop: Database) -> None:
    project.configure(shop.dsn)
    first = project.start("run")
    _streaming(project, first, "public.items")
    second = project.run("run")
    assert second.code == 1, second.all
    lines = second.err.strip().splitlines()
    assert lines[-2].startswith("Error: ") and lines[-1].startswith("Try: "), second.all
    assert "already run by" in lines[-2] and str(first.process.pid) in lines[-2], second.all
    assert first.running


@pytest.mark.slow
def test_status_of_an_idle_caught_up_mirror_shows_no_lag(project: Project, shop: Database) -> None:
    project.configure(shop.dsn)
    run = project.start("run")
    _streaming(project, run, "public.items", "public.counts")
    wait_until(lambda: all(t["lag_seconds"] == 0 for t in project.watch()["tables"]), 30, "no lag")
    status = project.status()
    (group,) = status["groups"]
    assert set(group) >= {
        "name", "state", "slot", "capture", "received_lsn", "logged_lsn", "acknowledged_lsn", "lag_bytes",
        "lag_seconds", "retained_wal_bytes",
    }  # fmt: skip
    for table in status["tables"]:
        assert set(table) >= {
            "name", "group", "state", "mode", "applied_lsn", "rows", "changes_applied", "lag_seconds",
            "last_commit_at", "error", "remedy", "retry_at",
        }  # fmt: skip
    assert {t["name"]: t["rows"] for t in status["tables"]} == {"public.items": 500, "public.counts": 50}


@pytest.mark.slow
def test_run_once_names_the_table_that_failed_and_brings_the_others_there(project: Project, shop: Database) -> None:
    shop.execute("CREATE TABLE odd (id int PRIMARY KEY, at timestamp); INSERT INTO odd VALUES (1, 'infinity')")
    project.configure(shop.dsn)
    finished = project.run("run", "--once")
    assert finished.code == 1, finished.all
    assert "public.odd" in finished.err and "Traceback" not in finished.all
    assert_equal_tables(shop, project.lake, ["items", "counts"])


def test_a_lake_that_cannot_be_written_is_refused(project: Project, shop: Database) -> None:
    (project.directory / "occupied").write_text("a file, not a directory")
    project.configure(shop.dsn, '[lake]\npath = "occupied/lake"')
    finished = project.run("run", "--once")
    assert finished.code == 1, finished.all
    lines = finished.err.strip().splitlines()
    assert lines[-2].startswith("Error: ") and "occupied" in lines[-2], finished.all
    assert lines[-1].startswith("Try: ") and "Traceback" not in finished.all
    assert shop.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


def test_a_machine_without_java_says_so(project: Project, shop: Database, tmp_path: Path) -> None:
    project.configure(shop.dsn)
    finished = project.run("run", "--once", env={"JAVA_HOME": str(tmp_path / "nowhere")})
    assert finished.code == 1, finished.all
    assert "Java" in finished.err and "Traceback" not in finished.all
    assert finished.err.strip().splitlines()[-1].startswith("Try: ")
    assert shop.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
