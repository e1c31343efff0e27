"""Interrupted copies: only the range of a broken connection is read again; a requested copy is never forgotten."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored

from command import Project
from servers import Database
from waiting import wait_until
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("regions", "other")
# Asked in the server itself: a range is read in less time than this process takes between two questions. The driver's
# question for the columns (WHERE 1=0) is no range.
CUT = """
DO $$
DECLARE reader int;
BEGIN
    FOR attempt IN 1..60000 LOOP
        PERFORM pg_stat_clear_snapshot();
        SELECT pid INTO reader FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND query LIKE '%ctid AS pos%'
        AND query NOT LIKE '%1=0%' AND pid <> pg_backend_pid()
        LIMIT 1;
        IF FOUND THEN
            PERFORM pg_terminate_backend(reader);
            RETURN;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RAISE 'no range was read';
END $$
"""


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute(
        "CREATE TABLE regions (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);"
        "CREATE TABLE regions_eu PARTITION OF regions FOR VALUES IN ('de', 'fr');"
        "CREATE TABLE regions_rest PARTITION OF regions DEFAULT;"
        "INSERT INTO regions SELECT i, (ARRAY['de', 'fr', 'us'])[i % 3 + 1] FROM generate_series(1, 60) i;"
        "CREATE TABLE other (id int PRIMARY KEY, n int); INSERT INTO other VALUES (1, 0)"
    )
    return Mirrored(database, tmp_path / "lake", spark)


def test_a_range_whose_connection_breaks_is_read_again_and_the_copy_goes_on(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text);"
        "INSERT INTO large SELECT i, repeat(md5(i::text), 4) FROM generate_series(1, 200000) i"
    )
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    with mirrored.running():
        database.execute(CUT)
        mirrored.is_streaming("large")
        mirrored.follows("large")
        states = [entry.after for entry in Mirror(mirrored.config).history("large")]
    assert "ERRORED" not in states and states.count("SNAPSHOT") == 1, states


@pytest.mark.slow
def test_killed_while_a_table_is_copied_because_its_default_partition_was_emptied(
    project: Project, mirrored: Mirrored
) -> None:
    database = mirrored.database
    mirrored.catches_up(*TABLES)
    project.configure(database.dsn)
    run = project.start("run")
    mirrored.is_streaming(*TABLES)
    database.execute("TRUNCATE regions_rest")
    # The copy waits for this lock until the process is dead.
    locker = database.connect(autocommit=False)
    locker.execute("LOCK TABLE regions IN ACCESS EXCLUSIVE MODE")

    def copying() -> bool:
        # Manifests that come after the truncation's let the change log forget it, if nobody says that it is needed.
        database.execute("UPDATE other SET n = n + 1")
        table = mirrored.table("regions")
        return table is not None and table.state == "SNAPSHOT"

    wait_until(copying, 60, lambda: f"regions is re-copied: {mirrored.table('regions')} {run.err}")
    for _ in range(3):
        database.execute("UPDATE other SET n = n + 1")
        mirrored.follows("other")
    run.signal(signal.SIGKILL)
    assert run.wait().code == -signal.SIGKILL
    locker.rollback()
    mirrored.catches_up(*TABLES)
