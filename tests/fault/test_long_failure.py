"""A table that fails for a long time under load: it loses nothing, and the others don't notice.

make failure-test [SECONDS=600]
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from mirroring import Mirrored, blocked
from writing import SteadyWriter

from oracle import table_directory
from proof_size import proof_size
from servers import Database
from wal2lake.mirror import Mirror
from wal2lake.position import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = proof_size("WAL2LAKE_TEST_SECONDS", long=600, short=60)
SICK, WELL = "sick", ("a", "b", "c")
ROWS = 5000
RATE = 200
"""transactions a second, over all tables"""
LOOK_SECONDS = 0.5
WARM_UP = proof_size("WAL2LAKE_TEST_WARM_UP", long=90, short=45)
"""seconds until the JVM has compiled what it needs: for some of the first minute that takes most of the machine"""
SLOT_PATIENCE = 15.0
"""seconds in which the slot must have moved"""


def _write(connection: psycopg.Connection[Any], number: int) -> None:
    table = (SICK, *WELL)[number % 4]
    connection.execute(
        f"INSERT INTO {table} VALUES ({number % ROWS}, 1) ON CONFLICT (id) DO UPDATE SET n = {table}.n + 1".encode()
    )
    if number % 50 == 0:
        connection.execute(f"DELETE FROM {table} WHERE id = {number * 7919 % ROWS}".encode())


class Lags:
    """How far behind the well tables are, looked at again and again, and whether the slot moves on."""

    def __init__(self, mirrored: Mirrored) -> None:
        self._mirrored, self._mirror = mirrored, Mirror(mirrored.config)
        self._confirmed, self._moved = Lsn(0), time.monotonic()
        self.longest_stop = 0.0

    def watch(self, seconds: float) -> list[float]:
        seen, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            tables = {table.name.removeprefix("public."): table for table in self._mirror.tables()}
            seen.append(max(tables[name].lag_seconds or 0.0 for name in WELL))
            self._look_at_slot()
            # Looks one after the other would take a core from those that are looked at.
            time.sleep(LOOK_SECONDS)
        return seen

    def _look_at_slot(self) -> None:
        confirmed, now = self._mirrored.confirmed(), time.monotonic()
        self.longest_stop = max(self.longest_stop, now - self._moved)
        if confirmed > self._confirmed:
            self._confirmed, self._moved = confirmed, now


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(2 * SECONDS + 600)
def test_a_table_that_fails_for_long_loses_nothing_and_delays_no_other(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    for name in (SICK, *WELL):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int); INSERT INTO {name} SELECT i, 0 FROM generate_series(1, {ROWS}) i"
        )
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=[{"name": "default"}])
    with mirrored.running():
        mirrored.is_streaming(SICK, *WELL)
        lags = Lags(mirrored)
        with SteadyWriter(database, RATE, _write) as writer:
            lags.watch(WARM_UP)
            without = lags.watch(SECONDS / 4)
            with blocked(table_directory(mirrored.lake, SICK) / "data"):
                mirrored.fails(SICK)
                during = lags.watch(SECONDS)
                failed = mirrored.table(SICK)
                assert failed is not None and failed.state == "ERRORED" and failed.error and failed.remedy
            Mirror(mirrored.config).resume([f"public.{SICK}"])
            lags.watch(5)
        told = f"lag of the others: median {median(without):.2f} s, most {max(without):.2f} s without, "
        told += f"median {median(during):.2f} s, most {max(during):.2f} s with the failing table"
        print(f"{writer.committed} transactions; {told}; the slot stood still for {lags.longest_stop:.1f} s at most")  # noqa: T201
        mirrored.follows(SICK, *WELL)
    assert median(during) <= 1.25 * median(without) + 0.5, told
    assert max(during) <= 1.25 * max(without) + 2, told
    assert lags.longest_stop < SLOT_PATIENCE
