"""A backlog brought into a large lake table, against the MERGE that one would write by hand for the same outcome.

Ours reads the change log, in the batches that the scheduler plans, collapses the changes per key and commits each batch
with its position. The rival is given the collapsed rows, one per key, as Parquet, and merges them in one statement.
Both have a copy of the table of their own, made by the same code, in one Spark; after each turn
the tables are rolled back to what they were before it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from wal2lake.lake.model import Applied
from wal2lake.scheduling.batch_plan import LogView, plan_batch

from . import backlog
from .ground import prepared
from .lake_contents import require_same_tables
from .loads import ORDERS, fill_orders
from .model import Options, Ratio, Section, require_equal
from .spark import Place, Spark, current_snapshot, roll_back, started

TABLE = "orders"
TARGET = 0.60
WARM_UPS = 2
COLUMNS = ("customer", "status", "quantity", "amount", "placed_at")
SCHEMA = (
    "id BIGINT, customer INT, status STRING, quantity INT, amount DECIMAL(12,2), placed_at TIMESTAMP, op STRING"
)  # fmt: skip
MERGE = f"""
    MERGE INTO lake.public.{TABLE} AS t USING changes AS c ON t.id = c.id
    WHEN MATCHED AND c.op = 'D' THEN DELETE
    WHEN MATCHED THEN UPDATE SET {", ".join(f"t.{name} = c.{name}" for name in COLUMNS)}
    WHEN NOT MATCHED AND c.op <> 'D' THEN INSERT (id, {", ".join(COLUMNS)})
        VALUES (c.id, {", ".join(f"c.{name}" for name in COLUMNS)})
"""


@dataclass(frozen=True)
class Turn:
    seconds: float
    cpu_seconds: float
    """of the JVM"""
    commits: int
    jobs: int
    busy_seconds: float
    """during which a Spark job ran"""
    gc_seconds: float


def measure(options: Options) -> Section:
    rows, changes = options.rows(5_000_000, 1_000_000), options.rows(1_000_000, 200_000)
    with prepared() as ground, started(ground.dsn, ground.directory) as spark:
        ground.connection.execute(ORDERS)
        fill_orders(ground.connection, rows)
        ground.settle()
        ours, rival = (spark.place(ground.dsn, ground.directory / name) for name in ("ours", "rival"))
        with backlog.opened(ours.config) as (source, origin):
            wanted = source.copy_source(origin.schema)
            applied, _ = (
                place.lake.copy(wanted, origin.held.snapshot, origin.source_id, 0, lambda _: None)
                for place in (ours, rival)
            )
            made = backlog.write(ground.connection, changes, rows)
            backlog.capture(ours.config, source)
        keys = backlog.collapsed(origin, ground.directory / "collapsed")
        ground.settle()
        rivals = _Rivals(spark, ground.dsn, ours, rival, origin, applied, ground.directory / "collapsed")
        turns, rival_turns = rivals.alternate(options.repeat)
        require_same_tables(ground.dsn, ours.path, [TABLE])
        require_same_tables(ground.dsn, rival.path, [TABLE], "hand-written MERGE")
    return _section(rows, made, keys, turns, rival_turns)


class _Rivals:
    def __init__(
        self, spark: Spark, dsn: str, ours: Place, rival: Place, origin: backlog.Origin, applied: Applied,
        collapsed: Path,
    ) -> None:  # fmt: skip
        self._spark, self._dsn, self._origin, self._applied, self._collapsed = spark, dsn, origin, applied, collapsed
        self._places = {"ours": ours, "rival": rival}
        self._snapshots = {who: self._snapshot(place) for who, place in self._places.items()}

    def alternate(self, repeat: int) -> tuple[list[Turn], list[Turn]]:
        """The first turns of each warm it up and are not counted. The last one stays in the tables."""
        turns: dict[str, list[Turn]] = {"ours": [], "rival": []}
        for number in range(repeat + WARM_UPS):
            for who in ("ours", "rival") if number % 2 else ("rival", "ours"):
                turns[who].append(self._turn(who))
        return turns["ours"][WARM_UPS:], turns["rival"][WARM_UPS:]

    def _turn(self, who: str) -> Turn:
        self._set_back(who)
        place = self._places[who]
        # A lake that has just been opened remembers nothing of the turn before.
        fresh = self._spark.place(self._dsn, place.path)
        began, clock, used = time.time(), time.monotonic(), self._spark.cpu_seconds()
        commits = self._apply(fresh) if who == "ours" else self._merge(fresh)
        seconds, cpu = time.monotonic() - clock, self._spark.cpu_seconds() - used
        jobs = self._spark.jobs_since(began)
        return Turn(seconds, cpu, commits, jobs.count, jobs.busy_seconds, jobs.gc_seconds)

    def _apply(self, place: Place) -> int:
        """What the scheduler does with a table that is behind."""
        log = self._origin.log
        view = LogView.of(log)
        applied, commits = self._applied, 0
        manifests = log.after(0)
        last = manifests[-1].number
        while applied.manifest < last:
            planned = plan_batch(applied, manifests, view)
            if planned.batch is None or planned.obstacle is not None:
                raise RuntimeError(f"the backlog can't be applied: {planned.obstacle}")
            applied = place.lake.apply(applied, planned.batch, self._origin.source_id)
            commits += bool(planned.batch.segments)
        require_equal("position after the backlog", applied.lsn, manifests[-1].to_lsn)
        return commits

    def _merge(self, place: Place) -> int:
        with place.driver.session("merge by hand") as session:
            session.read.schema(SCHEMA).parquet(str(self._collapsed)).createOrReplaceTempView("changes")
            session.sql(MERGE)
        return 1

    def _snapshot(self, place: Place) -> int:
        with place.driver.session("looking") as session:
            return current_snapshot(session, TABLE)

    def _set_back(self, who: str) -> None:
        with self._places[who].driver.session("setting back") as session:
            if current_snapshot(session, TABLE) != self._snapshots[who]:
                roll_back(session, TABLE, self._snapshots[who])


def _section(rows: int, made: int, keys: int, turns: list[Turn], rival_turns: list[Turn]) -> Section:
    seconds, rival = (median(turn.seconds for turn in each) for each in (turns, rival_turns))
    cpu, rival_cpu = (median(turn.cpu_seconds for turn in each) for each in (turns, rival_turns))
    load = f"{made:,} changes of {keys:,} keys on a table of {rows:,} rows"
    figures: dict[str, Any] = {
        "rows": rows, "changes": made, "keys": keys, "seconds": seconds, "rival_seconds": rival,
        "changes_per_second": made / seconds, "ratio": rival / seconds, "cpu_ratio": rival_cpu / cpu,
        "runs": [asdict(turn) for turn in turns], "rival_runs": [asdict(turn) for turn in rival_turns],
    }  # fmt: skip
    return Section(
        name="apply",
        title="A backlog applied, against a hand-written MERGE of the same rows collapsed",
        header=("load", "MERGE by hand", "wal2lake", "wal2lake changes/s", "MERGE ÷ wal2lake", "… processor time"),
        rows=(
            (
                load, f"{rival:.2f} s", f"{seconds:.2f} s", f"{made / seconds:,.0f}", f"{rival / seconds:.2f}",
                f"{rival_cpu / cpu:.2f}",
            ),
        ),
        notes=tuple(
            _note(who, each) for who, each in (("wal2lake", turns), ("MERGE by hand", rival_turns))
        ),
        figures=figures,
        ratios=(
            Ratio(
                "apply of a backlog", load, "changes/s", made / seconds, "hand-written MERGE", made / rival,
                rival / seconds, TARGET,
            ),
        ),
    )  # fmt: skip


def _note(who: str, turns: list[Turn]) -> str:
    middle = sorted(turns, key=lambda turn: turn.seconds)[len(turns) // 2]
    return (
        f"{who}: lake commits {middle.commits}, Spark jobs {middle.jobs}, which took {middle.busy_seconds:.2f} of "
        f"{middle.seconds:.2f} s; {middle.cpu_seconds:.1f} s of processor time, {middle.gc_seconds:.1f} s of garbage "
        "collection in tasks"
    )
