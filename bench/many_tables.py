"""Many tables in one group, few of them changing: does an idle table cost anything, and how long does a start take?

Two databases on one server, each mirrored by a `wal2lake run` of its own, both on at the same time: one has the
changing tables alone, the other has idle ones beside them. The same load goes to one, then to the other, in turns; what
counts is the processor time of the processes of the side that is written to. The second one is then given as many
tables as a start is measured with, and started again when all of them are copied.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg

from .ground import Ground, prepared
from .lake_contents import require_same_tables
from .loads import ORDERS, fill_orders
from .model import Options, Ratio, Section
from .observer import Observer
from .running import START_LIMIT, Project, Run, new_project, running
from .writer import Writer

BUSY, QUICK_BUSY = 20, 6
TABLES, QUICK_TABLES = 200, 60
STARTED, QUICK_STARTED = 1000, 100
ROWS = 1000
ROWS_PER_SECOND = 400.0
WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 30.0, 15.0
SETTLE_SECONDS = 15.0
SECONDS_PER_COPY = 10.0
START_TARGET = 60.0


@dataclass(frozen=True)
class Load:
    busy: tuple[str, ...]
    idle: tuple[str, ...]
    more: tuple[str, ...]
    """tables that the start is measured with, beside the others"""

    @classmethod
    def of(cls, options: Options) -> Load:
        def count(full: int, quick: int, least: int) -> int:
            return max(least, round((full if options.full else quick) * min(1.0, options.scale)))

        busy = count(BUSY, QUICK_BUSY, 2)
        idle = count(TABLES, QUICK_TABLES, 4) - busy
        more = count(STARTED, QUICK_STARTED, 6) - busy - idle
        names = [f"t{number:04}" for number in range(busy + idle + more)]
        return cls(tuple(names[:busy]), tuple(names[busy : busy + idle]), tuple(names[busy + idle :]))


class Side:
    """One database and its mirror."""

    def __init__(self, ground: Ground, name: str, tables: Sequence[str], load: Load) -> None:
        self.name, self.tables, self._busy = name, tables, load.busy
        ground.connection.execute(f"CREATE DATABASE {name}")
        self.dsn = ground.server.dsn(name)
        create(self.dsn, tables)
        self.project = self.configure(ground, tables)
        self._writer = Writer(self.dsn, load.busy, ROWS)

    def configure(self, ground: Ground, tables: Sequence[str]) -> Project:
        return new_project(ground.directory / self.name, self.dsn, [f"public.{table}" for table in tables])

    def window(self, run: Run, seconds: float) -> float:
        """Write for so long and let it be applied; processor time of the side's processes per second of writing."""
        family, stop = run.family(), threading.Event()
        used = family.cpu_seconds()
        with closing(Observer(run.project.lake)) as observer, ThreadPoolExecutor(1, "writer") as pool:
            writing = pool.submit(self._writer.run, seconds, ROWS_PER_SECOND, stop)
            try:
                run.until(seconds * 2 + 60, writing.done, "the writer is done")
            finally:
                stop.set()
            written = writing.result()
            last = {commit.table: commit for commit in written.commits}.values()
            run.until(600, lambda: all(observer.position(c.table) > c.after for c in last), "all is visible")
        return (family.cpu_seconds() - used) / written.seconds


def create(dsn: str, tables: Sequence[str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(ORDERS)
        fill_orders(connection, ROWS)
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (LIKE orders INCLUDING ALL)")
            connection.execute(f"INSERT INTO {table} SELECT * FROM orders")
        connection.execute("DROP TABLE orders")
        connection.execute("VACUUM (ANALYZE)")


def measure(options: Options) -> Section:
    load = Load.of(options)
    seconds = options.seconds_of(WINDOW_SECONDS, QUICK_WINDOW_SECONDS)
    with prepared() as ground:
        few, many = Side(ground, "few", load.busy, load), Side(ground, "many", [*load.busy, *load.idle], load)
        with ExitStack() as stack:
            runs, copying = {}, {}
            for side in (few, many):
                runs[side.name] = run = stack.enter_context(running(side.project))
                copying[side.name] = run.until_streaming(
                    len(side.tables), START_LIMIT + SECONDS_PER_COPY * len(side.tables)
                )
            used = _alternate((few, many), runs, max(5.0, seconds), options.repeat)
            idle = _at_rest(runs, max(5.0, seconds))
            for run in runs.values():
                run.end()
        for side in (few, many):
            require_same_tables(side.dsn, side.project.lake, side.tables)
        start = _start(ground, many, load)
    return _section(load, copying, used, idle, start)


def _copy_limit(tables: Sequence[str]) -> float:
    return START_LIMIT + SECONDS_PER_COPY * len(tables)


def _alternate(sides: tuple[Side, Side], runs: dict[str, Run], seconds: float, repeat: int) -> dict[str, list[float]]:
    """Cores that each side kept busy while it was written to; the first turn warms both up and does not count."""
    used: dict[str, list[float]] = {side.name: [] for side in sides}
    for turn in range(repeat + 1):
        for side in sides if turn % 2 else reversed(sides):
            cores = side.window(runs[side.name], seconds)
            if turn:
                used[side.name].append(cores)
    return used


def _at_rest(runs: dict[str, Run], seconds: float) -> dict[str, float]:
    """Cores that each run keeps busy with nothing to do, both over the same time."""
    # What the last changes have left to do comes to its end before.
    time.sleep(SETTLE_SECONDS)
    families = {name: run.family() for name, run in runs.items()}
    used, began = {name: family.cpu_seconds() for name, family in families.items()}, time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return {name: (family.cpu_seconds() - used[name]) / passed for name, family in families.items()}


def _start(ground: Ground, many: Side, load: Load) -> dict[str, Any]:
    """Copy the further tables, then start once more when all are copied."""
    create(many.dsn, load.more)
    tables = [*many.tables, *load.more]
    project = many.configure(ground, tables)
    with running(project) as run:
        first = run.until_streaming(len(tables), _copy_limit(tables))
        run.end()
    with running(project) as run:
        again = run.until_streaming(len(tables))
        run.end()
    require_same_tables(many.dsn, project.lake, tables)
    return {"tables": len(tables), "copied": len(load.more), "copy_seconds": first, "seconds": again}


def _section(
    load: Load, copying: dict[str, float], used: dict[str, list[float]], idle: dict[str, float], start: dict[str, Any]
) -> Section:
    busy, all_tables = len(load.busy), len(load.busy) + len(load.idle)
    few, many = (median(used[name]) for name in ("few", "many"))
    what = f"{ROWS_PER_SECOND:,.0f} changed rows/s over {busy} tables"
    return Section(
        name="many-tables",
        title="Many tables, few of them changing",
        header=("load", f"{busy} tables", f"{all_tables} tables, {busy} changing", "ratio"),
        rows=(
            (f"{what}: cores in use", f"{few:.3f}", f"{many:.3f}", f"{many / few:.2f}"),
            ("nothing written: cores in use", f"{idle['few']:.3f}", f"{idle['many']:.3f}", ""),
            (f"start and copies, {ROWS:,} rows each", f"{copying['few']:.1f} s", f"{copying['many']:.1f} s", ""),
        ),
        notes=(
            f"{start['tables']:,} tables, all copied before: all of them stream {start['seconds']:.1f} s after the "
            f"process was started (and {start['copy_seconds']:.1f} s when {start['copied']:,} were to be copied first)",
            "cores: processor time of wal2lake's processes, the JVM among them, from the first write until all is "
            "visible, per second of writing",
        ),
        figures={
            "busy": busy, "tables": all_tables, "cores": used, "cores_at_rest": idle, "copy_seconds": copying,
            "start": start,
        },
        ratios=(
            Ratio(
                "cost of idle tables", f"{what}, beside {len(load.idle)} idle ones", "cores", many,
                "without the idle ones", few, few / many, 0.9,
            ),
            Ratio(
                "start of copied tables", f"{start['tables']:,} tables", "s", start["seconds"], "", None,
                start["seconds"], START_TARGET, at_most=True,
            ),
        ),
    )  # fmt: skip
