"""Seconds from a commit in PostgreSQL until a reader of the lake sees it, with `wal2lake run` as a process.

A writer makes 1,000 changed rows a second over four tables, then other loads in steps; an observer notes when each
version of each lake table becomes visible. The first minute, in which the JVM warms up, is written and compared like
the rest, and separated in the figures. What a MERGE costs alone is measured between stretches of the steady load,
while the mirror rests, in a Spark that is as warm: so both sides have the same machine, whatever it is doing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Any

from .following import STAGES, Batch, Delay, Followed, follow
from .ground import Ground, prepared
from .lake_contents import require_same_tables
from .loads import ORDERS, fill_orders
from .model import Options, Ratio, Section, Series, percentile
from .running import Project, new_project, running
from .warm_merge import warm_merge
from .writer import Writer

TABLES = ("orders", "orders_2", "orders_3", "orders_4")
TABLE_ROWS = 100_000
ROWS_PER_SECOND = 1000.0
STEPS, QUICK_STEPS = (250.0, 500.0, 1000.0, 2000.0, 4000.0, 8000.0), (500.0, 2000.0, 8000.0)
STEP_SECONDS, QUICK_STEP_SECONDS = 25.0, 12.0
WARM_UP_SECONDS, STRETCHES, RAMP_SECONDS = 60.0, 3, 4.0
WARM_UP_MERGES, MERGES = 40, 5


@dataclass(frozen=True)
class Stretch:
    """The steady load for a while, and MERGEs by hand before and after it."""

    followed: Followed
    merges: tuple[float, ...]

    @property
    def delays(self) -> list[Delay]:
        """Without those of the first seconds: then there are no earlier batches to wait for."""
        return self.followed.since(RAMP_SECONDS) or list(self.followed.delays)

    @property
    def batches(self) -> list[Batch]:
        return _steady_batches(self.followed, RAMP_SECONDS)

    @property
    def p50(self) -> float:
        return percentile([delay.seconds for delay in self.delays], 50)

    @property
    def merge(self) -> float:
        return median(self.merges)


@dataclass(frozen=True)
class Outcome:
    rows: int
    flush_interval: float
    warm_up: Followed
    stretches: tuple[Stretch, ...]
    steps: dict[float, Followed]
    merge_rows: int

    @property
    def delays(self) -> list[Delay]:
        return [delay for stretch in self.stretches for delay in stretch.delays]

    @property
    def batches(self) -> list[Batch]:
        return [batch for stretch in self.stretches for batch in stretch.batches]

    @property
    def rows_per_second(self) -> float:
        written = [stretch.followed.written for stretch in self.stretches]
        return sum(each.rows for each in written) / sum(each.seconds for each in written)

    def bound(self, stretch: Stretch) -> float:
        return self.flush_interval + 2 * stretch.merge

    @property
    def ratio(self) -> float:
        return median(self.bound(stretch) / stretch.p50 for stretch in self.stretches)


def measure(options: Options) -> Section:
    rows = options.rows(TABLE_ROWS)
    with prepared() as ground:
        project = prepare(ground, TABLES, rows)
        writer = Writer(ground.dsn, TABLES, rows)
        with running(project) as run:
            run.until_streaming(len(TABLES))
            warm_up = follow(ground, run, writer, ROWS_PER_SECOND, min(WARM_UP_SECONDS, options.seconds))
            half = _steady_batches(warm_up, warm_up.written.seconds / 2)
            size = max(1, round(median(batch.changes for batch in half)))
            with warm_merge(project.config, TABLES[0]) as merge:
                merge.seconds(size, WARM_UP_MERGES)
                merges = [merge.seconds(size, MERGES)]
                followed = []
                for _ in range(STRETCHES):
                    followed.append(follow(ground, run, writer, ROWS_PER_SECOND, options.seconds / STRETCHES))
                    merges.append(merge.seconds(size, MERGES))
            seconds = max(5.0, options.seconds_of(STEP_SECONDS, QUICK_STEP_SECONDS))
            rates = STEPS if options.full else QUICK_STEPS
            steps = {rate: follow(ground, run, writer, rate, seconds) for rate in rates}
            run.end()
        require_same_tables(ground.dsn, project.lake, TABLES)
    stretches = tuple(
        Stretch(each, (*before, *after)) for each, (before, after) in zip(followed, pairwise(merges), strict=True)
    )
    return _section(Outcome(rows, project.config.groups[0].flush_interval, warm_up, stretches, steps, size))


def prepare(ground: Ground, tables: Sequence[str], rows: int) -> Project:
    """Tables of the shape of `orders`, and a project that mirrors them."""
    ground.connection.execute(ORDERS)
    for table in tables:
        if table != "orders":
            ground.connection.execute(f"CREATE TABLE {table} (LIKE orders INCLUDING ALL)")
        fill_orders(ground.connection, rows, table)
    ground.settle()
    return new_project(ground.directory / "project", ground.dsn, [f"public.{table}" for table in tables])


def _steady_batches(followed: Followed, since: float) -> list[Batch]:
    """The lake commits while it was written, from so many seconds after the first commit on."""
    commits = followed.written.commits
    later = [batch for batch in followed.batches if batch.at > commits[0].at]
    return [batch for batch in later if commits[0].at + since <= batch.at <= commits[-1].at] or later


def _spread(delays: Sequence[Delay]) -> dict[str, Any]:
    values = [delay.seconds for delay in delays]
    return {
        "commits": len(values), **{f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)},
        "max": max(values), "mean": mean(values),
    }  # fmt: skip


def _stages(delays: Sequence[Delay]) -> dict[str, float]:
    known = [delay.stages for delay in delays if delay.stages is not None]
    return {name: mean(stages[i] for stages in known) for i, name in enumerate(STAGES)} if known else {}


def _section(outcome: Outcome) -> Section:
    delays = outcome.delays
    figures = {table: _spread([delay for delay in delays if delay.table == table]) for table in TABLES}
    figures["all"] = _spread(delays)
    p50 = median(stretch.p50 for stretch in outcome.stretches)
    bound = median(outcome.bound(stretch) for stretch in outcome.stretches)
    load = f"{ROWS_PER_SECOND:,.0f} changed rows/s over {len(TABLES)} tables of {outcome.rows:,} rows"
    steps = {rate: (_spread(followed.delays), followed) for rate, followed in outcome.steps.items()}
    return Section(
        name="freshness",
        title="Seconds from commit to visible",
        header=("load", "table", "commits", "p50", "p95", "p99", "max"),
        rows=(
            *[_row(load, name, spread) for name, spread in figures.items()],
            *[_row(f"{rate:,.0f} changed rows/s", "all", spread) for rate, (spread, _) in steps.items()],
        ),
        notes=_notes(outcome),
        figures={
            "rows_per_second": outcome.rows_per_second, "tables": figures, "flush_interval": outcome.flush_interval,
            "stages": _stages(delays), "merge_rows": outcome.merge_rows,
            "stretches": [
                {"p50": stretch.p50, "merges": stretch.merges, "bound": outcome.bound(stretch)}
                for stretch in outcome.stretches
            ],
            "steps": [
                {"offered": rate, "visible_rows_per_second": f.rows_per_second, **spread, "stages": _stages(f.delays)}
                for rate, (spread, f) in steps.items()
            ],
        },
        ratios=(
            Ratio(
                "commit to visible, p50", load, "s", p50, "flush interval + 2 × warm MERGE", bound, outcome.ratio, 1.0
            ),
        ),
        series=(
            *_lag_over_time([outcome.warm_up, *[stretch.followed for stretch in outcome.stretches]]),
            *_by_load({r: (s, f.rows_per_second) for r, (s, f) in steps.items()}),
        ),
    )  # fmt: skip


def _row(load: str, name: str, spread: dict[str, Any]) -> tuple[str, ...]:
    return (load, name, f"{spread['commits']:,}", *[f"{spread[key]:.2f}" for key in ("p50", "p95", "p99", "max")])


def _notes(outcome: Outcome) -> tuple[str, ...]:
    warming = outcome.warm_up
    gap = median(batch.seconds for batch in outcome.batches)
    changes = median(batch.changes for batch in outcome.batches)
    made_of = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in _stages(outcome.delays).items())
    return (
        f"written: {outcome.rows_per_second:,.0f} changed rows/s in {len(outcome.stretches)} stretches of "
        f"{outcome.stretches[0].followed.written.seconds:.0f} s; before that {warming.written.seconds:.0f} s of "
        f"warm-up, p50 {_spread(warming.delays)['p50']:.2f} s, longest wait {_spread(warming.delays)['max']:.2f} s",
        f"a table got a lake commit every {gap:.2f} s (median) with {changes:,.0f} changes",
        f"a commit's time is made of (means): {made_of or 'unknown'}",
        f"flush interval {outcome.flush_interval:g} s; a MERGE of {outcome.merge_rows:,} such rows into one table, "
        f"alone, after {WARM_UP_MERGES} others, before and after each stretch: "
        + ", ".join(f"{stretch.merge:.2f} s" for stretch in outcome.stretches),
        "flush interval + 2 × MERGE against p50, by stretch: "
        + ", ".join(f"{outcome.bound(stretch):.2f} s / {stretch.p50:.2f} s" for stretch in outcome.stretches),
        *[
            f"{rate:,.0f} changed rows/s offered: {followed.written.rows_per_second:,.0f} written, "
            f"{followed.rows_per_second:,.0f} visible per second until the last of them was"
            for rate, followed in outcome.steps.items()
        ],
    )  # fmt: skip


def _lag_over_time(stretches: Sequence[Followed]) -> list[Series]:
    """Per table and second of the writer's time: the longest wait of a commit that was made in it."""
    longest: dict[str, dict[int, float]] = {table: defaultdict(float) for table in TABLES}
    written = 0.0
    for followed in stretches:
        began = followed.written.commits[0].at
        for delay in followed.delays:
            second = int(written + delay.at - began)
            longest[delay.table][second] = max(longest[delay.table][second], delay.seconds)
        written += followed.written.seconds
    return [
        Series("lag", table, tuple(map(float, each)), tuple(each.values())) for table, each in longest.items()
    ]  # fmt: skip


def _by_load(steps: dict[float, tuple[dict[str, Any], float]]) -> list[Series]:
    rates = tuple(steps)
    return [
        Series("throughput", "wal2lake", rates, tuple(visible for _, visible in steps.values())),
        *[Series("lag-by-load", key, rates, tuple(spread[key] for spread, _ in steps.values())) for key in
          ("p50", "p95")],
    ]  # fmt: skip
