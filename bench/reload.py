"""Following the changes against what people do instead: read the whole table again and overwrite the lake's.

Both bring the same changes of a table into Iceberg, in turns: `wal2lake run`, as a process, from the stream; a Spark
JDBC read of 8 partitions, in a warm Spark, from the table. The reload begins at the moment of the last commit, which is
the best that can happen to it: a change that comes while it reads waits for the next one.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import median

import psycopg

from .ground import Ground, prepared
from .lake_contents import require_same_tables
from .loads import ORDERS, fill_orders
from .model import Options, Ratio, Section
from .observer import Observer
from .plain_jdbc import PARTITIONS, PlainJdbc
from .processes import Family, server_cpu_seconds
from .running import Run, new_project, running
from .spark import Place, Spark, started
from .writer import ROWS, Writer

TABLE = "orders"
CHANGED = 10_000
TRANSACTIONS = 10
LIMIT = 600.0


@dataclass(frozen=True)
class Refresh:
    seconds: float
    """from the last commit until it was visible in the lake"""
    cpu_seconds: float
    """of all processes of that side, and of the server"""


def measure(options: Options) -> Section:
    rows = options.rows(5_000_000, 1_000_000)
    tens = max(1, options.rows(CHANGED) // (ROWS * TRANSACTIONS))
    with prepared() as ground, started(ground.dsn, ground.directory) as spark:
        ground.connection.execute(ORDERS)
        fill_orders(ground.connection, rows)
        ground.settle()
        reloading = spark.place(ground.dsn, ground.directory / "reloaded")
        plain = PlainJdbc.of(ground, TABLE)
        writer = Writer(ground.dsn, [TABLE], rows)
        project = new_project(ground.directory / "project", ground.dsn)
        with running(project) as run:
            run.until_streaming(1)
            sides = _Sides(ground, run, spark, reloading, plain, writer, rows, tens)
            with closing(sides):
                ours, reloads = sides.alternate(options.repeat)
                sides.settle()
            run.end()
        require_same_tables(ground.dsn, project.lake, [TABLE])
        require_same_tables(ground.dsn, reloading.path, [TABLE], "Spark JDBC overwrite")
    return _section(rows, tens * ROWS * TRANSACTIONS, ours, reloads)


class _Sides:
    def __init__(
        self, ground: Ground, run: Run, spark: Spark, reloading: Place, plain: PlainJdbc, writer: Writer, rows: int,
        tens: int,
    ) -> None:  # fmt: skip
        self._ground, self._run, self._spark, self._reloading, self._plain = ground, run, spark, reloading, plain
        self._writer, self._rows, self._tens = writer, rows, tens
        self._family: Family = run.family()
        self._observer = Observer(run.project.lake)

    def alternate(self, repeat: int) -> tuple[list[Refresh], list[Refresh]]:
        """Twice before anything counts: each turn has changes of its own, and ours is done before the reload begins."""
        ours, reloads = [], []
        with psycopg.connect(self._ground.dsn) as connection:
            for turn in range(repeat + 2):
                followed, reloaded = self._follow(connection), self.settle()
                if turn >= 2:
                    ours.append(followed)
                    reloads.append(reloaded)
        return ours, reloads

    def settle(self) -> Refresh:
        """Reload, as it is now."""
        used = self._spark.cpu_seconds() + server_cpu_seconds(self._ground.server.pid)
        began = time.monotonic()
        with self._reloading.driver.session("reload") as session:
            session.sql("CREATE NAMESPACE IF NOT EXISTS lake.public")
            self._plain.overwrite(session, 1, self._rows)
        seconds = time.monotonic() - began
        return Refresh(seconds, self._spark.cpu_seconds() + server_cpu_seconds(self._ground.server.pid) - used)

    def _follow(self, connection: psycopg.Connection[object]) -> Refresh:
        server = self._ground.server.pid
        used = self._family.cpu_seconds()
        for _ in range(TRANSACTIONS):
            commit = self._writer.write(connection, TABLE, self._tens)
        backends = server_cpu_seconds(server)
        self._run.until(LIMIT, lambda: self._observer.position(TABLE) > commit.after, "the changes are visible")
        (seen,) = [v.at for v in self._observer.versions(TABLE) if v.lsn > commit.after][:1]
        # What a lake commit leaves to do for the process is its own cost too.
        time.sleep(1.0)
        cpu = self._family.cpu_seconds() - used + server_cpu_seconds(server) - backends
        return Refresh(seen - commit.at, cpu)

    def close(self) -> None:
        self._observer.close()


def _section(rows: int, changed: int, ours: list[Refresh], reloads: list[Refresh]) -> Section:
    load = f"{changed:,} changed rows of a table of {rows:,} rows"
    seconds, reload_seconds = (median(each.seconds for each in side) for side in (ours, reloads))
    cpu, reload_cpu = (median(each.cpu_seconds for each in side) for side in (ours, reloads))
    return Section(
        name="reload",
        title="Following the changes against reading the whole table again (Spark JDBC overwrite)",
        header=("load", "", "Spark JDBC overwrite", "wal2lake", "overwrite ÷ wal2lake"),
        rows=(
            (
                load, "last commit to visible", f"{reload_seconds:.2f} s", f"{seconds:.2f} s",
                f"{reload_seconds / seconds:.2f}",
            ),
            (load, "processor time", f"{reload_cpu:.2f} s", f"{cpu:.2f} s", f"{reload_cpu / cpu:.2f}"),
        ),
        notes=(
            f"the overwrite ({PARTITIONS} partitions) began at the last commit; done again and again, a change waits "
            f"between once and twice as long, and {reload_cpu / reload_seconds:.2f} cores are busy all the time",
            "both sides with the server's processor time; wal2lake's own is that of all its processes until a second "
            "after the changes were visible",
        ),
        figures={
            "rows": rows, "changed": changed, "seconds": seconds, "cpu_seconds": cpu, "reload_seconds": reload_seconds,
            "reload_cpu_seconds": reload_cpu, "runs": [asdict(each) for each in ours],
            "reload_runs": [asdict(each) for each in reloads],
        },
        ratios=(
            Ratio(
                "staleness of one refresh", load, "s", seconds, "Spark JDBC overwrite", reload_seconds,
                reload_seconds / seconds,
            ),
            Ratio(
                "processor time of one refresh", load, "s", cpu, "Spark JDBC overwrite", reload_cpu, reload_cpu / cpu,
            ),
        ),
    )  # fmt: skip
