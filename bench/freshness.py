"""Seconds from a commit in PostgreSQL until a reader of the lake sees it, with `wal2lake run` as a process.

A writer makes 1,000 changed rows a second over four tables; an observer notes when each version of each lake table
becomes visible. A commit is visible with the first version whose position includes it. The first seconds, in which the
JVM warms up, are written and compared like the rest, and told apart in the figures.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from wal2lake.config import Config, load_config
from wal2lake.demo.compare import compare_tables
from wal2lake.mirror import Mirror
from wal2lake.position import Lsn

from .ground import Ground, prepared
from .loads import ORDERS, fill_orders
from .model import Options, Section, WrongData, percentile, require_equal
from .observer import Observer, Version
from .warm_merge import warm_merge
from .writer import Commit, Writer, Written, commit_ends, watch_commits

TABLES = ("orders", "orders_2", "orders_3", "orders_4")
TABLE_ROWS = 100_000
ROWS_PER_SECOND = 1000.0
WARM_UP_SECONDS = 20.0
START_LIMIT, CATCH_UP_LIMIT, STOP_LIMIT = 180.0, 180.0, 60.0


@dataclass(frozen=True)
class Delay:
    table: str
    seconds: float
    warm: bool
    """whether the commit came after the warm-up"""


def measure(options: Options) -> Section:
    rows = options.rows(TABLE_ROWS)
    warm_up = min(WARM_UP_SECONDS, options.seconds)
    with prepared() as ground:
        config = _prepare(ground, rows)
        with _running(ground) as process:
            _until(START_LIMIT, process, lambda: _streaming(config), "all tables are copied")
            written, ends, versions = _follow(ground, config, rows, warm_up + options.seconds, process)
            _end(process)
        for comparison in compare_tables(ground.dsn, config.lake_path, [("public", table) for table in TABLES]):
            if not comparison.equal:
                raise WrongData(str(comparison))
        delays = _delays(written.commits, ends, versions, warm_up)
        batches = _batches(versions, written.commits[0].at + warm_up, written.commits[-1].at)
        size = max(1, round(median(each["changes"] for each in batches)))
        merge = warm_merge(config, TABLES[0], size, high=rows * 2 + 10 * len(written.commits))
    return _section(config, written, delays, batches, (size, merge))


def _follow(
    ground: Ground, config: Config, rows: int, seconds: float, process: subprocess.Popen[bytes]
) -> tuple[Written, dict[int, Lsn], dict[str, list[Version]]]:
    """Write, and watch the lake until every commit is visible in it."""
    with closing(Observer(config.lake_path)) as observer:
        watch_commits(ground.connection)
        written = _write(ground, rows, seconds, process)
        last = {commit.table: commit for commit in written.commits}.values()
        # Asking for the ends costs the server a moment of work, so it comes when the last commits are through.
        _until(
            CATCH_UP_LIMIT, process, lambda: all(observer.position(commit.table) > commit.after for commit in last),
            "all commits are visible",
        )  # fmt: skip
        ends = commit_ends(ground.connection)
        _until(
            CATCH_UP_LIMIT, process,
            lambda: all(observer.position(commit.table) >= ends[commit.xid] for commit in last),
            "all commits are visible",
        )  # fmt: skip
        return written, ends, {table: observer.versions(table) for table in TABLES}


def _section(
    config: Config, written: Written, delays: Sequence[Delay], batches: Sequence[Mapping[str, Any]],
    merge: tuple[int, float],
) -> Section:  # fmt: skip
    warm = [delay for delay in delays if delay.warm]
    groups = {table: [d.seconds for d in warm if d.table == table] for table in TABLES}
    groups["all"] = [delay.seconds for delay in warm]
    figures = {
        name: {
            "commits": len(values), **{f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)},
            "max": max(values), "mean": sum(values) / len(values),
        }
        for name, values in groups.items()
    }  # fmt: skip
    interval, (size, seconds) = config.groups[0].flush_interval, merge
    cold = max((delay.seconds for delay in delays if not delay.warm), default=0.0)
    gap = median(each["seconds"] for each in batches)
    return Section(
        name="freshness",
        title=f"Seconds from commit to visible at {ROWS_PER_SECOND:,.0f} changed rows/s over {len(TABLES)} tables",
        header=("table", "commits", "p50", "p95", "p99", "max"),
        rows=tuple(
            (name, f"{f['commits']:,}", f"{f['p50']:.2f}", f"{f['p95']:.2f}", f"{f['p99']:.2f}", f"{f['max']:.2f}")
            for name, f in figures.items()
        ),
        notes=(
            f"written: {written.rows_per_second:,.0f} changed rows/s; longest wait in the warm-up before: {cold:.2f} s",
            f"a table got a lake commit every {gap:.2f} s (median) with {size:,} changes",
            f"flush interval {interval:g} s; a warm MERGE of {size:,} such rows into one table, alone: {seconds:.2f} s",
            f"flush interval + 2 × MERGE = {interval + 2 * seconds:.2f} s, p50 = {figures['all']['p50']:.2f} s",
        ),
        figures={
            "rows_per_second": written.rows_per_second, "seconds": written.seconds, "tables": figures,
            "warm_up_max": cold, "flush_interval": interval, "warm_merge": {"rows": size, "seconds": seconds},
            "lake_commits": len(batches), "lake_commit_gap": gap,
        },
    )  # fmt: skip


def _prepare(ground: Ground, rows: int) -> Config:
    ground.connection.execute(ORDERS)
    for table in TABLES[1:]:
        ground.connection.execute(f"CREATE TABLE {table} (LIKE orders INCLUDING ALL)")
    for table in TABLES:
        fill_orders(ground.connection, rows, table)
    ground.settle()
    file = ground.directory / "wal2lake.toml"
    file.write_text(f'[source]\ndsn = "{ground.dsn}"\n[lake]\npath = "lake"\n[[groups]]\nname = "default"\n', "utf-8")
    config = load_config(file)
    config.lake_path.mkdir()
    return config


@contextmanager
def _running(ground: Ground) -> Iterator[subprocess.Popen[bytes]]:
    """`wal2lake run`, which does not outlive this process; what it said is shown if anything goes wrong."""
    setpriv = shutil.which("setpriv")
    log = ground.directory / "run.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*([setpriv, "--pdeathsig", "TERM"] if setpriv else []), sys.executable, "-m", "wal2lake", "run"],
            cwd=ground.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    except BaseException:
        sys.stderr.write(_tail(log))
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    return "".join(f"run: {line}\n" for line in log.read_text("utf-8", "replace").splitlines()[-20:])


def _until(limit: float, process: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"wal2lake run ended with {process.returncode} before {what}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {limit:g} s: {what}")
        time.sleep(0.2)


def _streaming(config: Config) -> bool:
    tables = Mirror(config).status().tables
    if broken := [f"{table.name}: {table.error}" for table in tables if table.state == "ERRORED"]:
        raise RuntimeError("; ".join(broken))
    return len(tables) == len(TABLES) and all(table.state == "STREAMING" for table in tables)


def _write(ground: Ground, rows: int, seconds: float, process: subprocess.Popen[bytes]) -> Written:
    stop = threading.Event()
    writer = Writer(ground.dsn, TABLES, rows, ROWS_PER_SECOND)
    with ThreadPoolExecutor(1, "writer") as pool:
        writing = pool.submit(writer.run, seconds, stop)
        try:
            _until(seconds * 2 + 60, process, writing.done, "the writer is done")
        finally:
            stop.set()
        return writing.result()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    require_equal("exit status of wal2lake run", process.wait(STOP_LIMIT), 0)


def _delays(
    commits: Sequence[Commit], ends: Mapping[int, Lsn], versions: Mapping[str, Sequence[Version]], warm_up: float
) -> list[Delay]:
    positions = {table: [version.lsn for version in each] for table, each in versions.items()}
    warm_from = commits[0].at + warm_up
    delays = []
    for commit in commits:
        # A version includes what ends at or before its position.
        first = versions[commit.table][bisect_left(positions[commit.table], ends[commit.xid])]
        delays.append(Delay(commit.table, first.at - commit.at, commit.at >= warm_from))
    return delays


def _batches(versions: Mapping[str, Sequence[Version]], since: float, until: float) -> list[dict[str, Any]]:
    """The lake commits while the load was steady: how many changes each brought, and seconds since the one before."""
    pairs = [pair for each in versions.values() for pair in pairwise(each)]
    steady = [pair for pair in pairs if since <= pair[1].at <= until] or pairs
    return [{"changes": b.changes - a.changes, "seconds": b.at - a.at} for a, b in steady]
