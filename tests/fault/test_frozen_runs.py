"""A run that is frozen in the middle of a commit, loses its group to another one, and continues: it changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored, lines_of_error
from processes import capture_of, frozen

from command import TIMEOUT, Project, Running
from servers import Database
from waiting import wait_until
from wal2lake import faults
from wal2lake.demo.compare import open_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _lose_group(run: Running, database: Database) -> None:
    """End its sessions and its capture process, as when its machine is cut off."""
    capture = capture_of(run.process.pid)
    assert capture is not None
    os.kill(capture.pid, signal.SIGKILL)
    wait_until(lambda: not capture.alive, TIMEOUT, "the capture process ends")
    ended = database.value(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE %s",
        [f"wal2lake on %, process {run.process.pid}"],
    )
    assert ended


@pytest.mark.slow
def test_a_frozen_run_that_has_lost_its_group_adds_nothing_and_ends(
    project: Project, database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Without a key, an insert that is applied twice would be there twice."""
    database.execute("CREATE TABLE journal (line text); ALTER TABLE journal REPLICA IDENTITY FULL")
    database.execute("INSERT INTO journal VALUES ('first'), ('first')")
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up("journal")
    project.configure(database.dsn)
    database.execute("INSERT INTO journal VALUES ('more'), ('more')")
    run = project.start("run", env={faults.VARIABLE: faults.LAKE_STAGED + faults.STOP})
    wait_until(lambda: frozen(run.process.pid), TIMEOUT, lambda: f"it is frozen: {run.err}")
    _lose_group(run, database)
    with mirrored.running():
        mirrored.follows("journal")
        run.signal(signal.SIGCONT)
        ended = run.wait()
        assert ended.code == 1, ended.all
        ((error, remedy),) = lines_of_error(ended.err)
        assert error.startswith("Error: group default is already run by ")
        assert remedy == "Try: stop that process first; only one process at a time runs a group"
        database.execute("INSERT INTO journal VALUES ('more')")
        mirrored.follows("journal")
    journal = mirrored.table("journal")
    assert journal is not None and (journal.rows, journal.changes_applied) == (5, 3)
    with open_catalog(mirrored.lake) as catalog:
        assert set(catalog.load_table(("public", "journal")).refs()) == {"main"}
