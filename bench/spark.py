"""The benchmark's own Spark driver, set like wal2lake's, with as many lakes in it as there are rivals.

Each rival has a lake directory of its own; the table has the same name in each, so both sides can be compared with
PostgreSQL alike. `jobs_since` returns what Spark did in a stretch of time, by its own metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wal2lake.config import Config
from wal2lake.lake import Lake
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.lake.spark.driver import Driver

from .machine import cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Place:
    """One lake: its tables through wal2lake, and by hand."""

    config: Config
    lake: Lake
    driver: Driver

    @property
    def path(self) -> Path:
        return self.config.lake_path


class Spark:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.pid = int(driver.jvm.java.lang.ProcessHandle.current().pid())
        self.version = driver.root.version
        self.cores = driver.cores

    def place(self, dsn: str, path: Path) -> Place:
        config = Config(source={"dsn": dsn}, lake={"path": str(path)})
        path.mkdir(exist_ok=True)
        lake = Lake(config, self._driver.root)
        lake.start()
        tables = IcebergTables(config)
        own = Driver(config, tables.runtime, self._driver.root)
        own.start(tables.settings())
        return Place(config, lake, own)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid) or 0.0

    def jobs_since(self, began: float) -> Jobs:
        """What ran since a moment (`time.time()`)."""
        store: Any = self._driver.root.sparkContext._jsc
        listed = store.sc().statusStore().jobsList(None)
        jobs = [listed.apply(index) for index in range(listed.size())]
        mine = [job for job in jobs if job.submissionTime().get().getTime() / 1000 >= began - 0.001]
        stages = {
            stages.apply(index)
            for stages in (job.stageIds() for job in mine)
            for index in range(stages.size())
        }  # fmt: skip
        attempts = [store.sc().statusStore().lastStageAttempt(stage) for stage in stages]
        return Jobs(
            count=len(mine),
            tasks=sum(int(attempt.numCompleteTasks()) for attempt in attempts),
            run_seconds=sum(int(attempt.executorRunTime()) for attempt in attempts) / 1e3,
            cpu_seconds=sum(int(attempt.executorCpuTime()) for attempt in attempts) / 1e9,
            gc_seconds=sum(int(attempt.jvmGcTime()) for attempt in attempts) / 1e3,
            busy_seconds=_covered([_span(job) for job in mine]),
        )


@dataclass(frozen=True)
class Jobs:
    """Spark's own metrics over a stretch of time."""

    count: int
    tasks: int
    run_seconds: float
    """of all tasks, added up"""
    cpu_seconds: float
    gc_seconds: float
    busy_seconds: float
    """of the clock, during which at least one job ran"""


@contextmanager
def started(dsn: str, directory: Path) -> Iterator[Spark]:
    config = Config(source={"dsn": dsn}, lake={"path": str(directory / "spark")})
    driver = Driver(config, IcebergTables.runtime)
    driver.start({})
    try:
        yield Spark(driver)
    finally:
        driver.stop()


def roll_back(session: SparkSession, table: str, snapshot: int) -> None:
    session.sql(f"CALL lake.system.rollback_to_snapshot('public.{table}', {snapshot})")


def current_snapshot(session: SparkSession, table: str) -> int:
    rows = session.sql(
        f"SELECT snapshot_id FROM lake.public.{table}.history ORDER BY made_current_at DESC LIMIT 1"
    ).collect()  # fmt: skip
    return int(rows[0][0])


def _span(job: Any) -> tuple[float, float]:
    began = job.submissionTime().get().getTime() / 1000
    ended = job.completionTime()
    return began, ended.get().getTime() / 1000 if ended.isDefined() else time.time()


def _covered(spans: list[tuple[float, float]]) -> float:
    covered, upto = 0.0, 0.0
    for began, ended in sorted(spans):
        covered += max(0.0, ended - max(began, upto))
        upto = max(upto, ended)
    return covered
