"""Commands given while `wal2lake run` is active, from another process: they take effect at once, without a restart."""

from __future__ import annotations

from typing import Any

import pytest

from command import Project, Running
from oracle import assert_equal_tables
from servers import Database
from waiting import wait_until

PATIENCE = 120
GROUP = '[[groups]]\nname = "default"\ntables = ["public.a", "public.b"]\nflush_interval = 0.2\n'


def _said(project: Project, *command: str) -> str:
    done = project.run(*command)
    assert done.code == 0, done.all
    return done.out


def _tables(project: Project) -> dict[str, Any]:
    return {table["name"].removeprefix("public."): table for table in project.watch()["tables"]}


def _becomes(project: Project, run: Running, name: str, **wanted: Any) -> None:
    def there() -> bool:
        assert run.running, run.err
        table = _tables(project).get(name)
        return table is not None and all(table[key] == value for key, value in wanted.items())

    wait_until(there, PATIENCE, lambda: f"{name} {wanted}: {_tables(project).get(name)}\n{run.err}")


def _write(database: Database, first: int) -> None:
    for name in "abc":
        database.execute(f"INSERT INTO {name} VALUES ({first}, 'new'); UPDATE {name} SET v = v || '+' WHERE id % 3 = 0")


def _equal(project: Project, database: Database, *names: str) -> None:
    position = database.value("SELECT pg_current_wal_lsn()::text")
    database.execute("SELECT pg_logical_emit_message(true, 'test', '')")

    def there() -> bool:
        found = _tables(project)
        return all(
            database.value("SELECT %s::pg_lsn >= %s::pg_lsn", [found[n]["applied_lsn"] or "0/0", position])
            for n in names
        )

    wait_until(there, PATIENCE, "the tables are where the source was")
    assert_equal_tables(database, project.lake, names)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tables_and_groups_come_and_go_by_command(project: Project, database: Database) -> None:
    for name in "abc":
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 30) i"
        )
    project.configure(database.dsn, GROUP)
    run = project.start("run")
    _becomes(project, run, "a", state="STREAMING")

    _said(project, "tables", "add", "c", "--as", "sales.c_copy")
    _becomes(project, run, "c", state="STREAMING")
    _said(project, "tables", "pause", "a")
    _becomes(project, run, "a", state="PAUSED")
    _write(database, 100)
    _equal(project, database, "b")
    _said(project, "tables", "resume", "a")
    _becomes(project, run, "a", state="STREAMING")
    _equal(project, database, "a", "b")

    _said(project, "groups", "create", "second")
    _said(project, "tables", "move", "b", "--group", "second")
    _becomes(project, run, "b", state="STREAMING", group="second")
    _write(database, 101)
    _equal(project, database, "a", "b")
    tailed = _said(project, "tail", "public.b", "--no-follow")
    assert "public.b.UPDATE" in tailed, tailed

    _said(project, "tables", "resync", "a", "b", "--together")
    _write(database, 102)
    _becomes(project, run, "a", state="STREAMING")
    _becomes(project, run, "b", state="STREAMING")
    _equal(project, database, "a", "b")
    history = _said(project, "tables", "history", "b")
    assert "SNAPSHOT" in history and "second" in history, history

    _said(project, "tables", "remove", "c", "--drop-lake")
    wait_until(lambda: "c" not in _tables(project), PATIENCE, "c is removed")
    _said(project, "tables", "move", "b", "--group", "default")
    _becomes(project, run, "b", state="STREAMING", group="default")
    _said(project, "groups", "drop", "second")
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
    wait_until(lambda: database.value(slots) == 1, PATIENCE, "the slot of the dropped group is gone")
    _write(database, 103)
    _equal(project, database, "a", "b")
    assert run.running and "Traceback" not in run.err
