"""One load written to the source while `wal2lake run` follows it, and for each commit when a reader of the lake saw it.

    COMMIT ──► cut ──► manifest published ──► the table's worker takes it ──► visible
          wait for   publishing           wait for worker             apply
          the flush

A commit is visible with the first version of its table whose position includes it. What lies between is told by the
times of the change log's files and of the versions: a worker takes the next batch when its last one is visible.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from wal2lake.position import Lsn

from .ground import Ground
from .observer import LogWatch, Observer, Published, Version, holding
from .running import Run
from .writer import Commit, Writer, Written, commit_ends, watch_commits

CATCH_UP_LIMIT = 600.0
STAGES = ("wait for the flush", "publishing", "wait for the table's worker", "apply")


@dataclass(frozen=True)
class Delay:
    """The way of one commit."""

    table: str
    at: float
    """when COMMIT was sent"""
    seconds: float
    """until it was visible"""
    stages: tuple[float, float, float, float] | None
    """seconds in each of STAGES; None if its manifest was never seen"""


@dataclass(frozen=True)
class Batch:
    """A lake commit."""

    at: float
    changes: int
    seconds: float
    """since the one before of the same table"""


@dataclass(frozen=True)
class Followed:
    written: Written
    delays: tuple[Delay, ...]
    batches: tuple[Batch, ...]

    @property
    def rows_per_second(self) -> float:
        """Changed rows that became visible, over the time from the first commit until the last was visible."""
        began = self.written.commits[0].at
        return self.written.rows / (max(delay.at + delay.seconds for delay in self.delays) - began)

    def since(self, moment: float) -> list[Delay]:
        """Delays of commits from so many seconds after the first one on."""
        began = self.written.commits[0].at + moment
        return [delay for delay in self.delays if delay.at >= began]


def follow(ground: Ground, run: Run, writer: Writer, rows_per_second: float, seconds: float) -> Followed:
    """Write, and watch the lake until every commit is visible in it."""
    config = run.project.config
    log = config.changelog_path / config.groups[0].name
    with closing(Observer(config.lake_path)) as observer, closing(LogWatch(log)) as watch:
        watch_commits(ground.connection)
        written = _write(run, writer, rows_per_second, seconds)
        last = {commit.table: commit for commit in written.commits}
        # Asking for the ends costs the server a moment of work, so it comes when the last commits are through.
        run.until(
            CATCH_UP_LIMIT, lambda: all(observer.position(table) > commit.after for table, commit in last.items()),
            "all commits are visible",
        )  # fmt: skip
        ends = commit_ends(ground.connection)
        run.until(
            CATCH_UP_LIMIT,
            lambda: all(observer.position(table) >= ends[commit.xid] for table, commit in last.items()),
            "all commits are visible",
        )
        versions = {table: observer.versions(table) for table in last}
        manifests = watch.published()
    return Followed(written, _delays(written.commits, ends, versions, manifests), _batches(versions))


def _write(run: Run, writer: Writer, rows_per_second: float, seconds: float) -> Written:
    stop = threading.Event()
    with ThreadPoolExecutor(1, "writer") as pool:
        writing = pool.submit(writer.run, seconds, rows_per_second, stop)
        try:
            run.until(seconds * 2 + 60, writing.done, "the writer is done")
        finally:
            stop.set()
        return writing.result()


def _delays(
    commits: Sequence[Commit], ends: Mapping[int, Lsn], versions: Mapping[str, Sequence[Version]],
    manifests: list[Published],
) -> tuple[Delay, ...]:  # fmt: skip
    positions = {table: [version.lsn for version in each] for table, each in versions.items()}
    delays = []
    for commit in commits:
        end = ends[commit.xid]
        # A version includes what ends at or before its position.
        index = bisect_left(positions[commit.table], end)
        before, first = versions[commit.table][index - 1], versions[commit.table][index]
        stages = _stages(commit, holding(manifests, end), before.at if index else 0.0, first.at)
        delays.append(Delay(commit.table, commit.at, first.at - commit.at, stages))
    return tuple(delays)


def _stages(
    commit: Commit, manifest: Published | None, free: float, visible: float
) -> tuple[float, float, float, float] | None:
    if manifest is None:
        return None
    taken = max(manifest.at, free)
    return manifest.sealed - commit.at, manifest.at - manifest.sealed, taken - manifest.at, visible - taken


def _batches(versions: Mapping[str, Sequence[Version]]) -> tuple[Batch, ...]:
    pairs = [pair for each in versions.values() for pair in pairwise(each)]
    return tuple(Batch(b.at, b.changes - a.changes, b.at - a.at) for a, b in pairs)
