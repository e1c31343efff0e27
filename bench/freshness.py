"""Seconds from a commit in PostgreSQL until a reader of the lake sees it, with `wal2lake run` as a process.

A writer makes 1,000 changed rows a second over four tables, then other loads in steps; an observer notes when each
version of each lake table becomes visible. The first seconds, in which the JVM warms up, are written and compared like
the rest, and told apart in the figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
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
WARM_UP_SECONDS, STEP_SECONDS, QUICK_STEP_SECONDS = 20.0, 25.0, 12.0


@dataclass(frozen=True)
class Outcome:
    rows: int
    warm_up: float
    flush_interval: float
    steady: Followed
    steps: dict[float, Followed]
    merge_rows: int
    merge_seconds: float

    @property
    def bound(self) -> float:
        return self.flush_interval + 2 * self.merge_seconds


def measure(options: Options) -> Section:
    rows = options.rows(TABLE_ROWS)
    warm_up = min(WARM_UP_SECONDS, options.seconds)
    with prepared() as ground:
        project = prepare(ground, TABLES, rows)
        writer = Writer(ground.dsn, TABLES, rows)
        with running(project) as run:
            run.until_streaming(len(TABLES))
            steady = follow(ground, run, writer, ROWS_PER_SECOND, warm_up + options.seconds)
            seconds = max(5.0, options.seconds_of(STEP_SECONDS, QUICK_STEP_SECONDS))
            rates = STEPS if options.full else QUICK_STEPS
            steps = {rate: follow(ground, run, writer, rate, seconds) for rate in rates}
            run.end()
        require_same_tables(ground.dsn, project.lake, TABLES)
        size = max(1, round(median(batch.changes for batch in _while_written(steady, warm_up))))
        merge = warm_merge(project.config, TABLES[0], size, high=writer.high * 2)
    interval = project.config.groups[0].flush_interval
    return _section(Outcome(rows, warm_up, interval, steady, steps, size, merge))


def prepare(ground: Ground, tables: Sequence[str], rows: int) -> Project:
    """Tables of the shape of `orders`, and a project that mirrors them."""
    ground.connection.execute(ORDERS)
    for table in tables:
        if table != "orders":
            ground.connection.execute(f"CREATE TABLE {table} (LIKE orders INCLUDING ALL)")
        fill_orders(ground.connection, rows, table)
    ground.settle()
    return new_project(ground.directory / "project", ground.dsn, [f"public.{table}" for table in tables])


def _while_written(followed: Followed, warm_up: float) -> list[Batch]:
    """The lake commits while the load was steady."""
    commits = followed.written.commits
    since, until = commits[0].at + warm_up, commits[-1].at
    later = [batch for batch in followed.batches if batch.at > commits[0].at]
    return [batch for batch in later if since <= batch.at <= until] or later


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
    steady = outcome.steady
    warm = steady.since(outcome.warm_up)
    figures = {table: _spread([delay for delay in warm if delay.table == table]) for table in TABLES}
    figures["all"] = _spread(warm)
    p50 = figures["all"]["p50"]
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
        notes=_notes(outcome, p50),
        figures={
            "rows_per_second": steady.written.rows_per_second, "seconds": steady.written.seconds, "tables": figures,
            "flush_interval": outcome.flush_interval, "stages": _stages(warm),
            "warm_merge": {"rows": outcome.merge_rows, "seconds": outcome.merge_seconds},
            "steps": [
                {"offered": rate, "visible_rows_per_second": f.rows_per_second, **spread, "stages": _stages(f.delays)}
                for rate, (spread, f) in steps.items()
            ],
        },
        ratios=(
            Ratio(
                "commit to visible, p50", load, "s", p50, "flush interval + 2 × warm MERGE", outcome.bound,
                outcome.bound / p50, 1.0,
            ),
        ),
        series=(*_lag_over_time(steady), *_by_load({r: (s, f.rows_per_second) for r, (s, f) in steps.items()})),
    )  # fmt: skip


def _row(load: str, name: str, spread: dict[str, Any]) -> tuple[str, ...]:
    return (load, name, f"{spread['commits']:,}", *[f"{spread[key]:.2f}" for key in ("p50", "p95", "p99", "max")])


def _notes(outcome: Outcome, p50: float) -> tuple[str, ...]:
    steady = outcome.steady
    began = steady.written.commits[0].at
    cold = [delay.seconds for delay in steady.delays if delay.at < began + outcome.warm_up]
    batches = _while_written(steady, outcome.warm_up)
    gap = median(batch.seconds for batch in batches)
    made_of = ", ".join(
        f"{name} {seconds:.2f} s" for name, seconds in _stages(steady.since(outcome.warm_up)).items()
    )  # fmt: skip
    return (
        f"written: {steady.written.rows_per_second:,.0f} changed rows/s; longest wait in the {outcome.warm_up:g} s of "
        f"warm-up before: {max(cold, default=0.0):.2f} s",
        f"a table got a lake commit every {gap:.2f} s (median) with {outcome.merge_rows:,} changes",
        f"a commit's time is made of (means): {made_of or 'unknown'}",
        f"flush interval {outcome.flush_interval:g} s; a warm MERGE of {outcome.merge_rows:,} such rows into one "
        f"table, alone: {outcome.merge_seconds:.2f} s",
        f"flush interval + 2 × MERGE = {outcome.bound:.2f} s, p50 = {p50:.2f} s",
        *[
            f"{rate:,.0f} changed rows/s offered: {followed.written.rows_per_second:,.0f} written, "
            f"{followed.rows_per_second:,.0f} visible per second until the last of them was"
            for rate, followed in outcome.steps.items()
        ],
    )  # fmt: skip


def _lag_over_time(followed: Followed) -> list[Series]:
    """Per table and second of the writer's time: the longest wait of a commit that was made in it."""
    began = followed.written.commits[0].at
    longest: dict[str, dict[int, float]] = {table: defaultdict(float) for table in TABLES}
    for delay in followed.delays:
        second = int(delay.at - began)
        longest[delay.table][second] = max(longest[delay.table][second], delay.seconds)
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
