"""Tables that do not change, in a group with some that do: they cost nothing.

WAL2LAKE_TEST_IDLE_TABLES sets the number of tables, of which a tenth changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import Mirrored

from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.scheduling.group_loop import GroupLoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = proof_size("WAL2LAKE_TEST_IDLE_TABLES", long=200, short=60)
QUIET_TURNS = 20


def make_tables(database: Database, count: int) -> list[str]:
    names = [f"t{number:03}" for number in range(count)]
    for name in names:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, amount int); INSERT INTO {name} VALUES (1, 1)")
    return names


class Counted:
    """What a mirror in this process asks of Spark and of the lake's catalog."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        self.turns = 0
        self.asked: Counter[str] = Counter()
        self._jobs_before = self.total_jobs()

    def total_jobs(self) -> int:
        return int(self._spark.sparkContext._jsc.sc().dagScheduler().nextJobId())

    @property
    def jobs(self) -> int:
        return self.total_jobs() - self._jobs_before

    def forget(self) -> None:
        self.turns = 0
        self.asked.clear()
        self._jobs_before = self.total_jobs()


@contextmanager
def counting(spark: SparkSession) -> Iterator[Counted]:
    """Every look at a lake table and every turn of the loop is counted; all else is as it is."""
    counted = Counted(spark)
    load, step = IcebergTables.load, GroupLoop._step

    def counted_load(self: IcebergTables, session: SparkSession, table: Any) -> Any:
        counted.asked[table.name] += 1
        return load(self, session, table)

    def counted_step(self: GroupLoop) -> None:
        counted.turns += 1
        step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IcebergTables, "load", counted_load)
        patch.setattr(GroupLoop, "_step", counted_step)
        yield counted


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tables_that_do_not_change_cost_no_spark_job_and_no_look_at_the_catalog(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    names = make_tables(database, TABLES)
    changing = names[::10]
    mirrored = Mirrored(database, tmp_path / "lake", spark, maintenance={"enabled": False})
    assert not mirrored.once().missed
    with counting(spark) as counted, mirrored.running():
        mirrored.is_streaming(*names)
        counted.forget()
        wait_until(lambda: counted.turns >= QUIET_TURNS, 60, lambda: f"{counted.turns} turns")
        assert (counted.jobs, dict(counted.asked)) == (0, {})

        counted.forget()
        database.execute("; ".join(f"UPDATE {name} SET amount = amount + 1" for name in changing))
        mirrored.follows(*changing)
        assert set(counted.asked) == set(changing)
        for_all = counted.jobs / len(changing)

        counted.forget()
        database.execute(f"UPDATE {changing[0]} SET amount = amount + 1")
        mirrored.follows(changing[0])
        assert set(counted.asked) == {changing[0]}
        assert for_all <= counted.jobs * 1.5, "each changed table costs what one alone costs"
        print(f"{TABLES} tables, {len(changing)} changed: {for_all:.1f} jobs each")  # noqa: T201 - the measurement
