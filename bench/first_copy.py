"""The initial copy of a table against the Spark JDBC read that people write, into the same format, in the same Spark.

Ours is all that an initial copy does: the exported snapshot, the plan of ranges, the read, the exact types, the commit.
The rival is `spark.read.jdbc` with a partition column, 8 partitions and a fetch size, written to an Iceberg table with
the same properties. Beside them stands what reading alone costs: the rival's read into nothing, and PostgreSQL's COPY
of the same rows over as many connections as there are cores. All have run once before anything is timed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median
from typing import Any

import psycopg

from wal2lake.source.database import Source

from .ground import Ground, prepared
from .lake_contents import require_same_tables
from .loads import READINGS, fill_readings
from .model import Options, Ratio, Section, require_equal
from .plain_jdbc import PARTITIONS, PlainJdbc
from .processes import server_cpu_seconds
from .spark import Place, Spark, started

TABLE = "readings"
TARGET = 0.95
SIDES = ("plain", "ours", "plain read alone", "COPY alone")
Run = dict[str, Any]


def measure(options: Options) -> Section:
    rows = options.rows(5_000_000, 1_000_000)
    with prepared() as ground, started(ground.dsn, ground.directory) as spark:
        ground.connection.execute(READINGS)
        fill_readings(ground.connection, rows)
        ground.settle()
        watch = _Stopwatch(spark, ground.server.pid)
        ours = _Ours(spark.place(ground.dsn, ground.directory / "ours"), watch)
        plain = _Plain(spark.place(ground.dsn, ground.directory / "plain"), PlainJdbc.of(ground, TABLE), watch, rows)
        sides: dict[str, Callable[[], Run]] = {
            "plain": plain.copy, "ours": ours.copy, "plain read alone": plain.extract,
            "COPY alone": lambda: _copy_out(ground, spark.cores, watch),
        }  # fmt: skip
        with closing(ours):
            runs = _alternate(sides, rows, options.repeat)
        require_same_tables(ground.dsn, ours.path, [TABLE])
        require_same_tables(ground.dsn, plain.path, [TABLE], "plain JDBC read")
    return _section(rows, runs, spark)


def _alternate(sides: dict[str, Callable[[], Run]], rows: int, repeat: int) -> dict[str, list[Run]]:
    """Who is first changes from turn to turn; the first turn warms up and is not counted."""
    runs: dict[str, list[Run]] = {who: [] for who in sides}
    for turn in range(repeat + 1):
        for who in SIDES if turn % 2 else reversed(SIDES):
            run = sides[who]()
            require_equal(f"rows by {who}", run["rows"], rows)
            if turn:
                runs[who].append(run)
    return runs


class _Stopwatch:
    """What happens from `start` to `read`: the clock, the cores in use, and Spark's own metrics."""

    def __init__(self, spark: Spark, server: int | None) -> None:
        self._spark, self._server = spark, server
        self.start()

    def start(self) -> None:
        self._used, self._at, self._began = self._cpu(), time.time(), time.monotonic()

    def read(self) -> Run:
        seconds = time.monotonic() - self._began
        spark, server = (after - before for before, after in zip(self._used, self._cpu(), strict=True))
        jobs = self._spark.jobs_since(self._at)
        return {
            "seconds": seconds, "spark_cores": spark / seconds, "server_cores": server / seconds,
            "job_seconds": jobs.busy_seconds, "tasks": jobs.tasks, "task_seconds": jobs.run_seconds,
            "task_cpu_seconds": jobs.cpu_seconds, "gc_seconds": jobs.gc_seconds,
        }  # fmt: skip

    def _cpu(self) -> tuple[float, float]:
        return self._spark.cpu_seconds(), server_cpu_seconds(self._server)


class _Ours:
    def __init__(self, place: Place, watch: _Stopwatch) -> None:
        self._watch, self._lake, self.path = watch, place.lake, place.path
        self._source = Source(place.config, place.config.groups[0])
        (self._schema,) = self._source.discover()

    def copy(self) -> Run:
        """Copy the table to where there is none."""
        schema = self._schema
        self._lake.drop(schema.id)
        self._watch.start()
        began = time.monotonic()
        with self._source.open_snapshot() as held:
            snapshot_seconds = time.monotonic() - began
            applied = self._lake.copy(
                self._source.copy_source(schema), held.snapshot, self._source.table_id(schema.oid), 0, lambda _: None
            )
        return {**self._watch.read(), "snapshot_seconds": snapshot_seconds, "rows": applied.rows}

    def close(self) -> None:
        self._source.close()


class _Plain:
    def __init__(self, place: Place, jdbc: PlainJdbc, watch: _Stopwatch, rows: int) -> None:
        self._driver, self._jdbc, self._watch, self._rows, self.path = place.driver, jdbc, watch, rows, place.path

    def copy(self) -> Run:
        with self._driver.session("plain JDBC read") as session:
            self._jdbc.drop(session)
            self._watch.start()
            self._jdbc.overwrite(session, 1, self._rows + 1)
            return {**self._watch.read(), "rows": session.table(f"lake.public.{TABLE}").count()}

    def extract(self) -> Run:
        with self._driver.session("plain JDBC read into nothing") as session:
            self._watch.start()
            self._jdbc.extract(session, 1, self._rows + 1)
            return {**self._watch.read(), "rows": self._rows}


def _copy_out(ground: Ground, connections: int, watch: _Stopwatch) -> Run:
    """COPY in text, each connection its share of the pages, all bytes received and dropped."""
    pages = int(ground.value(f"SELECT pg_relation_size('{TABLE}') / current_setting('block_size')::int"))
    share = pages // connections + 1
    ready = threading.Barrier(connections + 1)

    def copy(number: int) -> int:
        with psycopg.connect(ground.dsn) as connection, connection.cursor() as cursor:
            ready.wait(60)
            low, high = number * share, (number + 1) * share
            query = f"COPY (SELECT * FROM {TABLE} WHERE ctid >= '({low},0)' AND ctid < '({high},0)') TO STDOUT"
            with cursor.copy(query.encode()) as blocks:
                while blocks.read():
                    pass
            return cursor.rowcount

    with ThreadPoolExecutor(connections) as pool:
        copies = [pool.submit(copy, number) for number in range(connections)]
        ready.wait(60)
        watch.start()
        copied = sum(each.result() for each in copies)
        return {**watch.read(), "rows": copied}


def _section(rows: int, runs: dict[str, list[Run]], spark: Spark) -> Section:
    seconds = {who: median(run["seconds"] for run in each) for who, each in runs.items()}
    ours, plain = seconds["ours"], seconds["plain"]
    load = f"{rows:,} rows of 8 columns"
    snapshot = median(run["snapshot_seconds"] for run in runs["ours"])
    return Section(
        name="copy",
        title=f"Initial copy against a plain {PARTITIONS}-partition Spark JDBC read",
        header=(
            "load", "plain JDBC read", "wal2lake", "plain rows/s", "wal2lake rows/s", "wal2lake ÷ plain (rows/s)",
            "plain read alone, rows/s", f"COPY over {spark.cores} connections alone, rows/s",
        ),
        rows=(
            (
                load, f"{plain:.2f} s", f"{ours:.2f} s", f"{rows / plain:,.0f}", f"{rows / ours:,.0f}",
                f"{plain / ours:.2f}", f"{rows / seconds['plain read alone']:,.0f}",
                f"{rows / seconds['COPY alone']:,.0f}",
            ),
        ),
        notes=(
            f"opening the exported snapshot took {snapshot:.2f} s of wal2lake's time",
            *[_note(who, each) for who, each in runs.items()],
        ),
        figures={
            "rows": rows, "seconds": ours, "rows_per_second": rows / ours, "rival_seconds": plain,
            "rival_rows_per_second": rows / plain, "ratio": plain / ours, "runs": runs, "spark": spark.version,
        },
        ratios=(
            Ratio(
                "initial copy", load, "rows/s", rows / ours, "plain Spark JDBC read", rows / plain, plain / ours, TARGET
            ),
        ),
    )  # fmt: skip


def _note(who: str, runs: list[Run]) -> str:
    """Where the time of the middle run went."""
    run = sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]
    cores = f"{who}: Spark kept {run['spark_cores']:.2f} cores busy, the server {run['server_cores']:.2f}"
    if not run["tasks"]:
        return cores
    return (
        f"{cores}; jobs ran for {run['job_seconds']:.2f} of {run['seconds']:.2f} s, {run['tasks']} tasks took "
        f"{run['task_seconds']:.2f} s in sum, {run['task_cpu_seconds']:.2f} s of it on a processor, "
        f"{run['gc_seconds']:.2f} s collecting garbage"
    )
