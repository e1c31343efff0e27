"""Nothing that is idle keeps the server from removing WAL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored

from servers import Database, fresh_database
from waiting import wait_until
from wal2lake.position import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute(
        "CREATE TABLE idle (id int PRIMARY KEY); INSERT INTO idle VALUES (1);"
        "CREATE TABLE busy (id int PRIMARY KEY, n int); INSERT INTO busy VALUES (1, 0)"
    )
    return Mirrored(database, tmp_path / "lake", spark, source={"heartbeat_interval": 1.0})


def test_an_idle_table_does_not_hold_the_slot(mirrored: Mirrored) -> None:
    with mirrored.running():
        mirrored.is_streaming("idle", "busy")
        for _ in range(3):
            before = mirrored.now()
            mirrored.database.execute("UPDATE busy SET n = n + 1")
            mirrored.slot_passes(before)
        mirrored.follows("idle", "busy")


def test_a_quiet_database_on_a_busy_cluster_does_not_hold_the_slot(mirrored: Mirrored) -> None:
    with mirrored.running(), fresh_database(mirrored.database.server) as other:
        mirrored.is_streaming("idle", "busy")
        other.execute("CREATE TABLE noise (v text)")
        for _ in range(3):
            other.execute("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 500)")
            mirrored.slot_passes(mirrored.now(), seconds=10)
        restart = "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        before = Lsn.parse(mirrored.database.value(restart, [mirrored.slot]))

        def released() -> bool:
            # The server moves it with the next list of running transactions, which a checkpoint writes.
            other.execute("INSERT INTO noise VALUES ('x')")
            mirrored.database.execute("CHECKPOINT")
            return Lsn.parse(mirrored.database.value(restart, [mirrored.slot])) > before

        wait_until(released, 30, f"WAL before {before} is released")
