"""An hour of `wal2lake run` under a steady load: does anything grow?

Every few seconds: memory and open files of the run process, of the Spark driver and of the capture process, the size of
the change log, the files and the metadata of a lake table, and how far the lake is behind. What counts is what happens
after the warm-up: the last tenth of it against the first, and a line through all of it. It ends in the comparison of
all tables with PostgreSQL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from .freshness import prepare
from .ground import prepared
from .lake_contents import require_same_tables
from .model import Options, Ratio, Section, Series
from .observer import Observer
from .processes import Family, open_files, resident_bytes
from .running import Project, Run, running
from .writer import Writer, Written

TABLES = ("orders", "orders_2", "orders_3", "orders_4")
TABLE_ROWS = 100_000
ROWS_PER_SECOND = 300.0
SAMPLE_SECONDS, LOOK_SECONDS = 10.0, 0.5
WARM_UP_SECONDS, WARM_UP_SHARE = 600.0, 0.2
MEMORY_TARGET, FILES_TARGET = 10.0, 5.0
MB = 2**20


@dataclass(frozen=True)
class Sample:
    at: float
    """seconds since the writer began"""
    resident: dict[str, int]
    """bytes, by process"""
    files: dict[str, int]
    """open files, by process"""
    log_bytes: int
    lake_files: int
    """of one table's directory"""
    metadata_bytes: int
    """of that table's current metadata file"""
    lag: float
    """seconds since the oldest commit that is not visible yet"""


def measure(options: Options) -> Section:
    rows, seconds = options.rows(TABLE_ROWS), options.soak_seconds
    with prepared() as ground:
        project = prepare(ground, TABLES, rows)
        writer = Writer(ground.dsn, TABLES, rows)
        with running(project) as run:
            run.until_streaming(len(TABLES))
            family = run.family()
            samples, written = _soak(run, family, writer, seconds)
            # The processes that were measured are those that were there at the beginning.
            if run.family() != family:
                raise RuntimeError("a process of wal2lake run was started again during the soak")
            run.end()
        require_same_tables(ground.dsn, project.lake, TABLES)
    return _section(rows, seconds, samples, written)


def _soak(run: Run, family: Family, writer: Writer, seconds: float) -> tuple[list[Sample], Written]:
    stop = threading.Event()
    with closing(Observer(run.project.lake, LOOK_SECONDS)) as observer, ThreadPoolExecutor(1, "writer") as pool:
        writing = pool.submit(writer.run, seconds, ROWS_PER_SECOND, stop)
        try:
            samples = _sample(run, family, writer, observer, writing)
        finally:
            stop.set()
        written = writing.result()
        last = {commit.table: commit for commit in written.commits}.values()
        run.until(600, lambda: all(observer.position(c.table) > c.after for c in last), "all commits are visible")
    return samples, written


def _sample(
    run: Run, family: Family, writer: Writer, observer: Observer, writing: Future[Written]
) -> list[Sample]:  # fmt: skip
    samples: list[Sample] = []
    began = time.monotonic()
    behind = _Behind(writer, observer)
    while not writing.done():
        _wait(run, writing, began + SAMPLE_SECONDS * (len(samples) + 1))
        members = family.members
        samples.append(
            Sample(
                time.monotonic() - began,
                {name: resident_bytes(pid) for name, pid in members.items()},
                {name: open_files(pid) for name, pid in members.items()},
                _bytes(run.project.config.changelog_path), *_table_files(run.project), behind.seconds(),
            )
        )  # fmt: skip
    return samples


def _wait(run: Run, writing: Future[Written], until: float) -> None:
    run.until(SAMPLE_SECONDS * 10, lambda: writing.done() or time.monotonic() >= until, "the next sample")


class _Behind:
    """How far the lake is behind the writer, by the writer's own commits."""

    def __init__(self, writer: Writer, observer: Observer) -> None:
        self._writer, self._observer = writer, observer
        self._seen = 0

    def seconds(self) -> float:
        """Commits are in order; those that are visible are passed over once."""
        positions = {table: self._observer.position(table) for table in TABLES}
        commits = self._writer.latest
        while self._seen < len(commits) and positions[commits[self._seen].table] > commits[self._seen].after:
            self._seen += 1
        return time.time() - commits[self._seen].at if self._seen < len(commits) else 0.0


def _bytes(directory: Path) -> int:
    """Of all files below; files that are deleted meanwhile count as nothing."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _table_files(project: Project) -> tuple[int, int]:
    (directory,) = (project.lake / "public").glob(f"{TABLES[0]}-*")
    newest = max((directory / "metadata").glob("*.metadata.json"), key=lambda path: path.name)
    files = sum(1 for path in directory.rglob("*") if path.is_file() and not path.name.endswith(".crc"))
    return files, newest.stat().st_size


@dataclass(frozen=True)
class Growth:
    """What became of a figure after the warm-up."""

    first: float
    """of the first tenth"""
    last: float
    per_hour: float
    """the slope of a line through all samples"""

    @property
    def percent(self) -> float:
        return (self.last / self.first - 1) * 100 if self.first else 0.0


def growth(
    times: Sequence[float], values: Sequence[float], of_tenth: Callable[[Sequence[float]], float] = median
) -> Growth:  # fmt: skip
    tenth = max(1, len(values) // 10)
    slope = float(np.polyfit(times, values, 1)[0]) if len(values) > 1 else 0.0
    return Growth(of_tenth(values[:tenth]), of_tenth(values[-tenth:]), slope * 3600)


def _warm(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    warm_up = min(WARM_UP_SECONDS, seconds * WARM_UP_SHARE)
    return [sample for sample in samples if sample.at >= warm_up] or list(samples)


def _section(rows: int, seconds: float, samples: list[Sample], written: Written) -> Section:
    warm = _warm(samples, seconds)
    times = [sample.at for sample in warm]
    names = list(samples[0].resident)
    memory = {name: growth(times, [sample.resident[name] / MB for sample in warm]) for name in names}
    # Files that are being written come and go; one that is never closed lifts the lowest number too.
    files = {name: growth(times, [float(sample.files[name]) for sample in warm], min) for name in names}
    others = {
        "change log, MB": growth(times, [sample.log_bytes / MB for sample in warm]),
        f"files of {TABLES[0]}": growth(times, [float(sample.lake_files) for sample in warm]),
        f"metadata of {TABLES[0]}, kB": growth(times, [sample.metadata_bytes / 1024 for sample in warm]),
        "seconds behind": growth(times, [sample.lag for sample in warm]),
    }
    load = (
        f"{ROWS_PER_SECOND:,.0f} changed rows/s over {len(TABLES)} tables of {rows:,} rows for {seconds / 60:,.0f} min"
    )
    return Section(
        name="soak",
        title=f"A soak: {load}",
        header=("after the warm-up", "first tenth", "last tenth", "growth", "per hour, by a line through all"),
        rows=(
            *[_row(f"{name}, MB", each) for name, each in memory.items()],
            *[_row(f"{name}, open files", each) for name, each in files.items()],
            *[_row(name, each) for name, each in others.items()],
        ),
        notes=(
            f"{written.rows:,} changed rows in {len(written.commits):,} transactions; {len(samples)} samples, "
            f"{len(warm)} of them after the warm-up; longest lag after it: {max(s.lag for s in warm):.1f} s",
        ),
        figures={"seconds": seconds, "rows": written.rows, "samples": [asdict(sample) for sample in samples]},
        ratios=_ratios(load, memory, files),
        series=tuple(
            Series("soak", name, *_line(samples, name)) for name in names
        ),
    )  # fmt: skip


def _line(samples: Sequence[Sample], name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(s.at / 60 for s in samples), tuple(s.resident[name] / MB for s in samples)


def _row(name: str, each: Growth) -> tuple[str, ...]:
    return name, f"{each.first:,.1f}", f"{each.last:,.1f}", f"{each.percent:+.1f} %", f"{each.per_hour:+,.1f}"


def _ratios(load: str, memory: dict[str, Growth], files: dict[str, Growth]) -> tuple[Ratio, ...]:
    def ratio(what: str, unit: str, each: Growth, value: float, target: float) -> Ratio:
        return Ratio(what, load, unit, each.last, "first tenth", each.first, value, target, at_most=True)

    grown: list[Any] = [
        ratio(f"growth of memory, {name} (%)", "MB", each, each.percent, MEMORY_TARGET) for name, each in memory.items()
    ]
    grown += [
        ratio(f"change of open files, {name} (%)", "files", each, abs(each.percent), FILES_TARGET)
        for name, each in files.items()
    ]
    return tuple(grown)
