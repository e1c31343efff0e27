"""Killed in the middle of a lake table's maintenance: the table is right, and so is its position."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored

from command import TIMEOUT, Project, Running
from servers import Database
from waiting import wait_until
from wal2lake import faults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = "[maintenance]\nsmall_files = 2\nsnapshots_kept = 1\nsnapshot_retention = 0\n"


def _changes(database: Database) -> int:
    return int(database.value("SELECT sum(n) + count(*) - 20 FROM counters"))


def _dies(mirrored: Mirrored, run: Running) -> bool:
    """Whether the mirror has died; one small transaction more when it has applied the last one, so that it has time."""
    if not run.running:
        return True
    found = mirrored.table("counters")
    if found is not None and found.changes_applied == _changes(mirrored.database):
        mirrored.database.execute("UPDATE counters SET n = n + 1 WHERE id <= 3; INSERT INTO counters DEFAULT VALUES")
    return False


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", [faults.LAKE_COMPACTED, faults.SNAPSHOTS_EXPIRED])
def test_killed_between_two_steps_of_the_maintenance(
    project: Project, database: Database, tmp_path: Path, spark: SparkSession, point: str
) -> None:
    database.execute(
        "CREATE TABLE counters (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int DEFAULT 0);"
        "INSERT INTO counters SELECT FROM generate_series(1, 20)"
    )
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up("counters")
    project.configure(database.dsn, SETTINGS)
    run = project.start("run", env={"WAL2LAKE_FAULT": point})
    wait_until(lambda: _dies(mirrored, run), 2 * TIMEOUT, lambda: f"maintenance begins: {run.err}")
    assert run.wait().code == -signal.SIGKILL, run.err
    mirrored.catches_up("counters")
    found = mirrored.table("counters")
    assert found is not None
    assert found.changes_applied == _changes(database)
