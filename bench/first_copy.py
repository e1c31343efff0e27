"""The first copy of a table against the Spark JDBC read that people write, into the same format, in the same Spark.

Ours is all that a first copy does: the exported snapshot, the plan of ranges, the read, the exact types, the commit.
The rival is `spark.read.jdbc` with a partition column, 8 partitions and a fetch size, written to an Iceberg table with
the same properties. Both have run once before anything is timed.
"""

from __future__ import annotations

import time
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any

from wal2lake.config import Config
from wal2lake.demo.compare import compare_tables
from wal2lake.demo.server import HOST, SUPERUSER
from wal2lake.lake import Lake
from wal2lake.lake.iceberg import TABLE_PROPERTIES, IcebergTables
from wal2lake.lake.session import Driver
from wal2lake.source.database import Source

from .ground import DATABASE, Ground, prepared
from .loads import READINGS, fill_readings
from .machine import cpu_seconds, share
from .model import Options, Section, WrongData, require_equal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "readings"
PARTITIONS, FETCH_SIZE = 8, 10_000


def measure(options: Options) -> Section:
    rows = options.rows(1_000_000)
    with prepared() as ground:
        ground.connection.execute(READINGS)
        fill_readings(ground.connection, rows)
        ground.settle()
        config = Config(source={"dsn": ground.dsn}, lake={"path": str(ground.directory / "lake")})
        driver = Driver(config)
        driver.start(IcebergTables(config).settings())
        try:
            watch = _Stopwatch(int(driver.jvm.java.lang.ProcessHandle.current().pid()), ground.server.pid)
            ours, plain = _Ours(config, driver, watch), _Plain(ground, driver, watch)
            with closing(ours):
                ours.copy()
                plain.copy(rows)
                runs, rival_runs = _alternate(ours, plain, rows, options.repeat)
            version = driver.root.version
        finally:
            driver.stop()
        for comparison in compare_tables(ground.dsn, ground.directory / "lake", [("public", TABLE)]):
            if not comparison.equal:
                raise WrongData(str(comparison))
    return _section(rows, runs, rival_runs, version)


def _section(rows: int, runs: list[dict[str, Any]], rival_runs: list[dict[str, Any]], version: str) -> Section:
    seconds, rival = (median(run["seconds"] for run in each) for each in (runs, rival_runs))
    notes = [
        f"opening the exported snapshot took {median(run['snapshot_seconds'] for run in runs):.2f} s of wal2lake's time"
    ]
    for name, each in (("wal2lake", runs), ("plain read", rival_runs)):
        if all(run["spark_cores"] is not None and run["server_cores"] is not None for run in each):
            spark = median(run["spark_cores"] for run in each)
            server = median(run["server_cores"] for run in each)
            notes.append(f"{name}: Spark kept {spark:.2f} cores busy, the server {server:.2f}")
    return Section(
        name="copy",
        title=f"First copy against a plain {PARTITIONS}-partition Spark JDBC read",
        header=("load", "plain JDBC read", "wal2lake", "plain rows/s", "wal2lake rows/s", "wal2lake ÷ plain (rows/s)"),
        rows=(
            (
                f"{rows:,} rows of 8 columns", f"{rival:.2f} s", f"{seconds:.2f} s", f"{rows / rival:,.0f}",
                f"{rows / seconds:,.0f}", f"{rival / seconds:.2f}",
            ),
        ),
        notes=tuple(notes),
        figures={
            "rows": rows, "seconds": seconds, "rows_per_second": rows / seconds, "rival_seconds": rival,
            "rival_rows_per_second": rows / rival, "ratio": rival / seconds, "runs": runs, "rival_runs": rival_runs,
            "spark": version,
        },
    )  # fmt: skip


def _alternate(ours: _Ours, plain: _Plain, rows: int, repeat: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    runs: list[dict[str, Any]] = []
    rival_runs: list[dict[str, Any]] = []
    for turn in range(repeat):
        for who in ("ours", "plain") if turn % 2 else ("plain", "ours"):
            run = ours.copy() if who == "ours" else plain.copy(rows)
            require_equal(f"rows copied by {who}", run["rows"], rows)
            (runs if who == "ours" else rival_runs).append(run)
    return runs, rival_runs


class _Stopwatch:
    """Seconds since `start`, and the cores that Spark and the server kept busy meanwhile."""

    def __init__(self, spark: int, server: int | None) -> None:
        self._spark, self._server = spark, server
        self.start()

    def start(self) -> None:
        self._used, self._began = self._cpu(), time.monotonic()

    def read(self) -> dict[str, Any]:
        seconds = time.monotonic() - self._began
        spark, server = (share(*pair, seconds) for pair in zip(self._used, self._cpu(), strict=True))
        return {"seconds": seconds, "spark_cores": spark, "server_cores": server}

    def _cpu(self) -> tuple[float | None, float | None]:
        # The server's processes that did the reading have ended by the time they count.
        return cpu_seconds(self._spark), cpu_seconds(self._server, reaped=True)


class _Ours:
    def __init__(self, config: Config, driver: Driver, watch: _Stopwatch) -> None:
        self._watch = watch
        self._source = Source(config, config.groups[0])
        (self._schema,) = self._source.discover()
        self._lake = Lake(config, driver.root)
        self._lake.start()

    def copy(self) -> dict[str, Any]:
        """Copy the table to where there is none."""
        schema = self._schema
        self._lake.drop(schema.id)
        self._watch.start()
        with self._source.open_snapshot() as held:
            snapshot_seconds = self._watch.read()["seconds"]
            applied = self._lake.copy(
                self._source.copy_source(schema), held.snapshot, self._source.table_id(schema.oid), 0, lambda _: None
            )
        return {**self._watch.read(), "snapshot_seconds": snapshot_seconds, "rows": applied.rows}

    def close(self) -> None:
        self._source.close()
        self._lake.stop()


class _Plain:
    """The read as it is written in tutorials, with Iceberg's own writer behind it."""

    def __init__(self, ground: Ground, driver: Driver, watch: _Stopwatch) -> None:
        self._driver, self._watch = driver, watch
        self._url = f"jdbc:postgresql://{HOST}:{ground.server.port}/{DATABASE}"
        self._properties = {
            "user": SUPERUSER, "password": ground.server.password, "driver": "org.postgresql.Driver",
            "fetchsize": str(FETCH_SIZE),
        }  # fmt: skip

    def copy(self, rows: int) -> dict[str, Any]:
        with self._driver.session("plain JDBC read") as session:
            session.sql("CREATE NAMESPACE IF NOT EXISTS lake.plain")
            session.sql(f"DROP TABLE IF EXISTS lake.plain.{TABLE} PURGE")
            self._watch.start()
            self._write(session, rows)
            return {**self._watch.read(), "rows": session.table(f"lake.plain.{TABLE}").count()}

    def _write(self, session: SparkSession, rows: int) -> None:
        frame = session.read.jdbc(
            self._url, TABLE, column="id", lowerBound=1, upperBound=rows + 1, numPartitions=PARTITIONS,
            properties=self._properties,
        )  # fmt: skip
        writer = frame.writeTo(f"lake.plain.{TABLE}").using("iceberg")
        for key, value in TABLE_PROPERTIES.items():
            writer = writer.tableProperty(key, value)
        writer.create()
