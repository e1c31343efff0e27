"""Killed exactly between two steps that belong together: no change is lost, and none is applied twice."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored

from command import Project
from servers import Database
from waiting import wait_until
from wal2lake import faults
from wal2lake.demo.compare import open_catalog
from wal2lake.faults import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("counters", "journal")


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    """A counter shows a change that is applied twice by its value, a table without a key by a second row."""
    database.execute(
        "CREATE TABLE counters (id int PRIMARY KEY, n numeric(6)); CREATE TABLE journal (line text);"
        "ALTER TABLE journal REPLICA IDENTITY FULL;"
        "INSERT INTO counters SELECT i, 0 FROM generate_series(1, 20) i; INSERT INTO journal VALUES ('first'), ('first')"
    )
    return Mirrored(database, tmp_path / "lake", spark)


def _change(database: Database) -> None:
    for _ in range(5):
        database.execute("UPDATE counters SET n = n + 1 WHERE id <= 10; INSERT INTO journal VALUES ('more'), ('more')")


def _assert_applied_once(mirrored: Mirrored, rounds: int) -> None:
    """The lake counts the changes that it took: 10 counters and 2 lines, five times in each round."""
    counters, journal = mirrored.table("counters"), mirrored.table("journal")
    assert counters is not None and journal is not None
    assert (counters.changes_applied, journal.changes_applied) == (50 * rounds, 10 * rounds)


@pytest.mark.slow
def test_killed_after_the_copy_was_written(project: Project, mirrored: Mirrored) -> None:
    project.configure(mirrored.database.dsn)
    killed = project.run("run", "--once", env={VARIABLE: faults.COPY_WRITTEN})
    assert killed.code == -signal.SIGKILL, killed.all
    _change(mirrored.database)
    mirrored.catches_up(*TABLES)
    _change(mirrored.database)
    mirrored.catches_up(*TABLES)
    assert list((mirrored.lake / "_wal2lake" / "copies").glob("*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("point", [faults.LAKE_STAGED, faults.LAKE_COMMITTED])
def test_killed_around_a_lake_commit(point: str, project: Project, mirrored: Mirrored) -> None:
    project.configure(mirrored.database.dsn)
    mirrored.catches_up(*TABLES)
    _change(mirrored.database)
    killed = project.run("run", "--once", env={VARIABLE: point})
    assert killed.code == -signal.SIGKILL, killed.all
    mirrored.catches_up(*TABLES)
    _assert_applied_once(mirrored, 1)


@pytest.mark.slow
@pytest.mark.parametrize("default", ["", " DEFAULT 5"], ids=["metadata", "rows"])
def test_killed_after_the_columns_changed_before_the_changes_came(
    project: Project, mirrored: Mirrored, default: str
) -> None:
    """The lake table has columns of a later moment then; changes before it are not written with them.

    The wider type is one that PostgreSQL changes to without writing the rows anew: that would need a re-copy.
    """
    project.configure(mirrored.database.dsn)
    mirrored.catches_up(*TABLES)
    _change(mirrored.database)
    mirrored.database.execute(
        f"ALTER TABLE counters ADD COLUMN x int{default}, ALTER n TYPE numeric(12); ALTER TABLE counters RENAME n TO m;"
        "UPDATE counters SET m = m + 1, x = 6 WHERE id > 15"
    )
    killed = project.run("run", "--once", env={VARIABLE: faults.LAKE_EVOLVED})
    assert killed.code == -signal.SIGKILL, killed.all
    mirrored.catches_up(*TABLES)
    counters = mirrored.table("counters")
    assert counters is not None
    assert counters.changes_applied == 55


@pytest.mark.slow
def test_killed_after_partitions_were_exchanged_before_the_table_knows_of_it(
    project: Project, mirrored: Mirrored
) -> None:
    """Without a key, rows that are exchanged twice would be there twice."""
    project.configure(mirrored.database.dsn)
    mirrored.database.execute(
        "CREATE TABLE parts (id int, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10); ALTER TABLE parts_1 REPLICA IDENTITY FULL;"
        "INSERT INTO parts SELECT i, i FROM generate_series(0, 9) i"
    )
    mirrored.catches_up("parts")
    mirrored.database.execute(
        "CREATE TABLE parts_2 (id int, n int); ALTER TABLE parts_2 REPLICA IDENTITY FULL;"
        "INSERT INTO parts_2 SELECT 15, 1 FROM generate_series(1, 3);"
        "ALTER TABLE parts DETACH PARTITION parts_1; UPDATE parts_1 SET n = -n;"
        "ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (0) TO (10);"
        "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20)"
    )
    killed = project.run("run", "--once", env={VARIABLE: faults.PARTITIONS_EXCHANGED})
    assert killed.code == -signal.SIGKILL, killed.all
    mirrored.catches_up("parts")
    mirrored.database.execute("INSERT INTO parts VALUES (15, 1), (3, 3); DELETE FROM parts WHERE id = 4")
    mirrored.catches_up("parts")


@pytest.mark.slow
def test_killed_after_a_lake_table_was_renamed_before_it_knows_its_name(project: Project, mirrored: Mirrored) -> None:
    project.configure(mirrored.database.dsn)
    mirrored.catches_up(*TABLES)
    _change(mirrored.database)
    mirrored.database.execute("ALTER TABLE journal RENAME TO diary; INSERT INTO diary VALUES ('renamed')")
    killed = project.run("run", "--once", env={VARIABLE: faults.LAKE_RENAMED})
    assert killed.code == -signal.SIGKILL, killed.all
    mirrored.catches_up("counters", "diary")
    mirrored.database.execute("INSERT INTO diary VALUES ('more')")
    mirrored.catches_up("counters", "diary")
    diary = mirrored.table("diary")
    assert diary is not None and diary.changes_applied == 12
    with open_catalog(mirrored.lake) as catalog:
        assert {name for _, name in catalog.list_tables("public")} == {"counters", "diary"}


def test_killed_after_each_manifest_before_it_is_acknowledged(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mirrored.catches_up(*TABLES)
    _change(mirrored.database)
    monkeypatch.setenv(VARIABLE, faults.MANIFEST_PUBLISHED)
    # What is published stays published: capture dies after each manifest, and gets there all the same.
    mirrored.catches_up(*TABLES)
    assert f"exit status {-signal.SIGKILL.value}" in caplog.text
    monkeypatch.delenv(VARIABLE)
    _change(mirrored.database)
    mirrored.catches_up(*TABLES)
    _assert_applied_once(mirrored, 2)


def test_killed_after_each_segment_capture_acknowledges_nothing_and_goes_on_when_it_can(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mirrored.catches_up(*TABLES)
    monkeypatch.setenv(VARIABLE, faults.SEGMENT_WRITTEN)
    with mirrored.running():
        mirrored.is_streaming(*TABLES)
        before = mirrored.now()
        _change(mirrored.database)
        wait_until(lambda: caplog.text.count("exit status -9") >= 2, 60, lambda: f"capture dies: {caplog.text}")
        assert mirrored.confirmed() <= before
        monkeypatch.delenv(VARIABLE)
        mirrored.follows(*TABLES)
    _assert_applied_once(mirrored, 1)


@pytest.mark.slow
def test_run_once_with_a_capture_that_always_dies_ends_in_an_error(project: Project, mirrored: Mirrored) -> None:
    mirrored.catches_up(*TABLES)
    _change(mirrored.database)
    project.configure(mirrored.database.dsn)
    ended = project.run("run", "--once", env={VARIABLE: faults.SEGMENT_WRITTEN}, timeout=150)
    assert ended.code == 1, ended.all
    assert "Error: " in ended.err and "Try: " in ended.err
    mirrored.catches_up(*TABLES)
    _assert_applied_once(mirrored, 1)
