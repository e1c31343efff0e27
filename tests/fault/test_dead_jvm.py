"""The JVM of a run dies: the run restarts it, capture continues meanwhile, and nothing is lost or doubled."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from mirroring import lines_of_error
from processes import Process, descendants

from command import Project, Running
from oracle import assert_equal_tables
from servers import Database
from waiting import wait_until
from wal2lake.position import Lsn

ONE_CORE = '[spark]\nmaster = "local[1]"\n'


def jvm_of(running: Running) -> Process | None:
    return next((each for each in descendants(running.process.pid) if each.is_java), None)


def kill_jvm(running: Running) -> Process:
    jvm = jvm_of(running)
    assert jvm is not None
    os.kill(jvm.pid, signal.SIGKILL)
    wait_until(lambda: not jvm.alive, 10, "the JVM is dead")
    return jvm


def state(project: Project, name: str) -> str | None:
    tables = project.watch()["tables"]
    return next((table["state"] for table in tables if table["name"] == f"public.{name}"), None)


def streams(project: Project, running: Running, *names: str) -> None:
    def all_stream() -> bool:
        assert running.running, running.err
        return all(state(project, name) == "STREAMING" for name in names)

    wait_until(all_stream, 90, lambda: f"{project.watch()}\n{running.err}")


def there(project: Project, running: Running, database: Database, *names: str) -> None:
    """Wait until tables are where the source is now, and compare them."""
    position = Lsn.parse(database.value("SELECT pg_current_wal_insert_lsn()::text"))
    database.execute("SELECT pg_logical_emit_message(true, 'test', '')")

    def reached() -> bool:
        assert running.running, running.err
        tables = {table["name"]: table for table in project.watch()["tables"]}
        return all(
            (found := tables[f"public.{name}"])["state"] == "STREAMING" and Lsn.parse(found["applied_lsn"]) >= position
            for name in names
        )

    wait_until(reached, 90, lambda: f"{project.watch()}\n{running.err}")
    assert_equal_tables(database, project.lake, names)


@pytest.mark.slow
def test_jvm_killed_while_idle_and_in_a_copy_is_started_again_and_capture_goes_on(
    project: Project, database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'x' FROM generate_series(1, 1000) i"
    )
    conf = 'conf = { "spark.hadoop.fs.s3a.secret.key" = "hush", "spark.driver.memory" = "700m" }\n'
    project.configure(database.dsn, ONE_CORE + conf)
    running = project.start("run")
    streams(project, running, "t")

    jvm = kill_jvm(running)
    assert "hush" not in jvm.command, "everybody on the machine can read the command line"
    assert "-Xmx700m" in jvm.command
    database.execute("UPDATE t SET v = 'while there was no JVM' WHERE id <= 10")
    position = Lsn.parse(database.value("SELECT pg_current_wal_insert_lsn()::text"))

    def acknowledged() -> bool:
        return Lsn.parse(project.watch()["groups"][0]["acknowledged_lsn"]) >= position

    wait_until(acknowledged, 10, lambda: f"the slot is acknowledged: {project.watch()}")
    there(project, running, database, "t")
    assert "it is restarted" in running.err

    # A lock that lets the copy begin, and holds up the reading of its rows.
    database.execute("CREATE TABLE big (id int PRIMARY KEY); INSERT INTO big SELECT generate_series(1, 200000)")
    copies = project.lake / "_wal2lake" / "copies"
    wait_until(lambda: any(copies.glob("*.json")) or state(project, "big") == "STREAMING", 60, "the copy has begun")
    kill_jvm(running)
    database.execute("INSERT INTO big VALUES (-1)")
    there(project, running, database, "t", "big")

    running.signal(signal.SIGTERM)
    assert running.wait(15).code == 0
    lines_of_error(running.err)


@pytest.mark.slow
def test_jvm_killed_around_a_merge_neither_loses_nor_doubles_a_change(project: Project, database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i;"
        "CREATE TABLE appended (v int); ALTER TABLE appended REPLICA IDENTITY FULL"
    )
    project.configure(database.dsn, ONE_CORE)
    running = project.start("run")
    streams(project, running, "t", "appended")
    applied = project.watch()["tables"]
    for round in range(400):
        database.execute("UPDATE t SET v = v + 1; INSERT INTO appended VALUES (1)")
        if round >= 20 and project.watch()["tables"] != applied:
            break
    kill_jvm(running)
    there(project, running, database, "t", "appended")
    running.signal(signal.SIGTERM)
    assert running.wait(15).code == 0


@pytest.mark.slow
def test_run_whose_jvm_never_comes_up_again_ends_with_two_lines(
    project: Project, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    java = tmp_path / "java-home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.symlink_to(Path(shutil.which("java") or "java").resolve())
    project.configure(database.dsn, ONE_CORE)
    running = project.start("run", env={"JAVA_HOME": str(java.parent.parent)})
    streams(project, running, "t")
    # Java is uninstalled under the run.
    java.unlink()
    kill_jvm(running)
    finished = running.wait(90)
    assert finished.code == 1
    ((error, remedy),) = lines_of_error(finished.err)
    assert "Spark could not start" in error and "in a row" in error
    assert remedy
    assert not database.value("SELECT bool_or(active) FROM pg_replication_slots")
