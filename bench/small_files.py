"""Reading a table after many small merges, with the maintenance that `wal2lake run` does, against rows just written.

A writer keeps one table changing while `wal2lake run` follows, with a short flush interval, until the table has had so
many lake commits. Then the same reads are made of it and of a new copy of the same rows, in turns: a full scan
by Spark, and one by pyiceberg. The run has ended by then, so what is read is what readers find in the middle of a day.

After that `wal2lake run` is on again with nobody writing, until it has tidied the table, and the reads are repeated.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from wal2lake.demo.compare import open_catalog
from wal2lake.source.database import Source

from .ground import Ground, prepared
from .lake_contents import require_same_tables
from .loads import ORDERS, fill_orders
from .model import Options, Ratio, Section, require_equal
from .observer import Observer
from .running import Project, Run, new_project, running
from .spark import Place, Spark, started
from .writer import Writer

TABLE = "orders"
MERGES, QUICK_MERGES = 500, 100
FLUSH_INTERVAL = 0.1
ROWS_PER_SECOND = 200.0
SECONDS_PER_MERGE = 20.0
TIDY_LIMIT = 300.0
READS = 7
TARGET = 1.5


@dataclass(frozen=True)
class Layout:
    """What a reader has to open."""

    data_files: int
    delete_files: int
    snapshots: int
    metadata_bytes: int


def measure(options: Options) -> Section:
    rows = options.rows(500_000)
    merges = max(5, round((MERGES if options.full else QUICK_MERGES) * min(1.0, options.scale)))
    with prepared() as ground:
        ground.connection.execute(ORDERS)
        fill_orders(ground.connection, rows)
        ground.settle()
        project = new_project(ground.directory / "project", ground.dsn, flush_interval=FLUSH_INTERVAL)
        with running(project) as run:
            run.until_streaming(1)
            commits, seconds = _merge(ground, run, rows, merges)
            run.end()
        require_same_tables(ground.dsn, project.lake, [TABLE])
        with started(ground.dsn, ground.directory) as spark:
            fresh = spark.place(ground.dsn, ground.directory / "fresh")
            _copy(fresh)
            require_same_tables(ground.dsn, fresh.path, [TABLE], "re-copy")
            layouts = {"just written": layout(fresh.path), "after the merges": layout(project.lake)}
            reads = _read_both(ground, spark, project, fresh)
            _leave_alone(project)
            require_same_tables(ground.dsn, project.lake, [TABLE])
            layouts["left alone"] = layout(project.lake)
            for reader, times in _read_both(ground, spark, project, fresh).items():
                reads[f"{reader}, left alone"] = times
    return _section(f"{merges:,} small merges into a table of {rows:,} rows", commits, seconds, reads, layouts)


def _merge(ground: Ground, run: Run, rows: int, merges: int) -> tuple[int, float]:
    """Write until the table has had so many commits and all is visible; how many it had, and how long that took."""
    stop = threading.Event()
    writer = Writer(ground.dsn, [TABLE], rows)
    limit = merges * SECONDS_PER_MERGE + 120
    began = time.monotonic()
    with closing(Observer(run.project.lake)) as observer, ThreadPoolExecutor(1, "writer") as pool:
        run.until(60, lambda: observer.versions(TABLE), "the copy is visible")
        writing = pool.submit(writer.run, limit, ROWS_PER_SECOND, stop)
        try:
            run.until(limit, lambda: writing.done() or len(observer.versions(TABLE)) > merges, f"{merges} lake commits")
        finally:
            stop.set()
        last = writing.result().commits[-1]
        run.until(limit, lambda: observer.position(TABLE) > last.after, "all commits are visible")
        return len(observer.versions(TABLE)) - 1, time.monotonic() - began


def _leave_alone(project: Project) -> None:
    """Let wal2lake run, with nothing to apply, until no deleted row is left."""
    with running(project) as run:
        run.until_streaming(1)
        run.until(TIDY_LIMIT, lambda: not layout(project.lake).delete_files, "the table is tidied")
        run.end()


def _copy(place: Place) -> None:
    source = Source(place.config, place.config.groups[0])
    with closing(source):
        (schema,) = source.discover()
        with source.open_snapshot() as held:
            place.lake.copy(
                source.copy_source(schema), held.snapshot, source.table_id(schema.oid), 0, lambda _: None
            )  # fmt: skip


def _read_both(ground: Ground, spark: Spark, project: Project, fresh: Place) -> dict[str, dict[str, list[float]]]:
    """Seconds of each read: by reader, of the merged and of the fresh table, in turns."""
    merged = spark.place(ground.dsn, project.lake)
    expected = int(ground.value(f"SELECT count(*) FROM {TABLE}"))
    readers: Mapping[str, Callable[[Place], int]] = {"Spark": _scan, "pyiceberg": _scan_with_pyiceberg}
    times: dict[str, dict[str, list[float]]] = {}
    for reader, read in readers.items():
        each = times[reader] = {"merged": [], "fresh": []}
        for turn in range(READS + 2):
            pairs = [("merged", merged), ("fresh", fresh)]
            for who, place in pairs if turn % 2 else reversed(pairs):
                began = time.monotonic()
                found = read(place)
                seconds = time.monotonic() - began
                require_equal(f"rows that {reader} reads of the {who} table", found, expected)
                # The first two turns warm the reader and the file cache up.
                if turn >= 2:
                    each[who].append(seconds)
    return times


def _scan(place: Place) -> int:
    """All columns of all rows, added up, so that nothing can be answered from metadata."""
    with place.driver.session("scan") as session:
        columns = ", ".join(f"bit_xor(hash({name}))" for name in session.table(f"lake.public.{TABLE}").columns)
        row: Any = session.sql(f"SELECT count(id), {columns} FROM lake.public.{TABLE}").collect()[0]
        return int(row[0])


def _scan_with_pyiceberg(place: Place) -> int:
    with open_catalog(place.path) as catalog:
        return int(catalog.load_table(("public", TABLE)).scan().to_arrow().num_rows)


def layout(lake: Path, table: str = TABLE) -> Layout:
    """How many files the current version of a table is made of, and the size of its metadata."""
    with open_catalog(lake) as catalog:
        loaded = catalog.load_table(("public", table))
        snapshot = loaded.current_snapshot()
        summary = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
        metadata = Path(loaded.metadata_location.removeprefix("file:"))
        return Layout(
            data_files=int(summary.get("total-data-files", 0)),
            delete_files=int(summary.get("total-delete-files", 0)),
            snapshots=len(loaded.metadata.snapshots),
            metadata_bytes=metadata.stat().st_size,
        )


def _section(
    load: str, commits: int, seconds: float, reads: dict[str, dict[str, list[float]]], layouts: dict[str, Layout]
) -> Section:
    middles = {reader: {who: median(each) for who, each in sides.items()} for reader, sides in reads.items()}
    ratios = {reader: middle["merged"] / middle["fresh"] for reader, middle in middles.items()}
    return Section(
        name="small-files",
        title="Reading a table after many small merges, against the same rows just written",
        header=("load", "reader", "just written", "after the merges", "after ÷ just written"),
        rows=tuple(
            (load, reader, f"{m['fresh']:.3f} s", f"{m['merged']:.3f} s", f"{ratios[reader]:.2f}")
            for reader, m in middles.items()
        ),
        notes=(
            f"{commits:,} lake commits in {seconds:.0f} s, with the maintenance between them",
            *[
                f"{name}: {each.data_files} data files, {each.delete_files} delete files, {each.snapshots} versions, "
                f"{each.metadata_bytes / 1024:.0f} kB of table metadata"
                for name, each in layouts.items()
            ],
        ),
        figures={
            "load": load, "commits": commits, "seconds": seconds, "reads": reads, "ratios": ratios,
            "layouts": {name: vars(each) for name, each in layouts.items()},
        },
        ratios=tuple(
            Ratio(
                f"read after small merges, {reader}", load, "s",
                middle["merged"], "just written", middle["fresh"], ratios[reader], TARGET, at_most=True,
            )
            for reader, middle in middles.items()
        ),
    )  # fmt: skip
