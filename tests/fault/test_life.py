"""Tables and groups come and go at random while a writer is busy: at the end all is equal, and nobody had to wait.

    make life-test [SECONDS=600] [SEED=]

Ten tables, 300 transactions a second. Three of the tables are left in peace. Workers take the tables in turn: between
two turns of such a table nobody else may have more than the one that it has in a cycle, and the one before that when
nothing waited for the table yet. Their lag is printed at the end.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from mirroring import Mirrored
from writing import SteadyWriter

from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake.errors import Wal2LakeError
from wal2lake.lake import Lake
from wal2lake.lake.model import Applied
from wal2lake.mirror import Mirror
from wal2lake.state import GroupSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = proof_size("WAL2LAKE_TEST_SECONDS", long=600, short=60)
RATE = 300
"""transactions a second"""
MOST_TURNS = 2
"""that another table may have while one in peace has none"""
PATIENCE = 240.0
QUIET = ("t0", "t1", "t2")
BUSY = tuple(f"t{number}" for number in range(3, 10))
GROUPS = ("second", "third")


_STEPS = {"add": 4, "pause": 2, "resume": 3, "resync": 3, "move": 5, "remove": 2, "create": 3, "drop": 1}
"""what is asked for, and how often beside the others"""


def _write(rng: random.Random, connection: psycopg.Connection[Any], number: int) -> None:
    table, id = rng.choice((*QUIET, *BUSY)), rng.randint(1, 2000)
    change = rng.choice([
        "INSERT INTO {0} VALUES ({1}, 0, 'new') ON CONFLICT (id) DO UPDATE SET n = {0}.n + 1",
        "UPDATE {0} SET n = n + 1 WHERE id = {1}",
        "UPDATE {0} SET id = {2}, n = n + 1 WHERE id = {1}",
        "DELETE FROM {0} WHERE id = {1}",
    ])  # fmt: skip
    connection.execute(change.format(table, id, 100_000 + number).encode())


class Disturber:
    """Asks for something at random, again and again; what is refused is refused with a reason, and counted."""

    def __init__(self, mirror: Mirror, seed: int) -> None:
        self._mirror, self._random = mirror, random.Random(seed)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def disturb(self) -> None:
        """Mostly what can be done as things stand; they may have changed when it is asked for."""
        step = self._random.choices(list(_STEPS), list(_STEPS.values()))[0]
        try:
            self._do(step)
            self.done[step] += 1
        except Wal2LakeError as error:
            self.refused[f"{step} ({type(error).__name__})"] += 1

    def pause(self) -> float:
        return self._random.uniform(0.5, 3)

    def _do(self, step: str) -> None:
        mirror, choice = self._mirror, self._random.choice
        groups = {table.name: table.group for table in mirror.tables()}
        there = sorted(name for name in groups if name.split(".")[1] in BUSY)
        gone = sorted({f"public.{name}" for name in BUSY} - set(there))
        names = self._random.sample(there, min(len(there), self._random.randint(1, 2)))
        known = sorted(group.name for group in mirror.groups())
        if not there and step not in ("create", "drop"):
            step = "add"
        match step:
            case "add":
                mirror.add([choice(gone or there)], choice(known))
            case "move":
                table = choice(there)
                mirror.move([table], choice([group for group in known if group != groups[table]] or known))
            case "remove":
                mirror.remove(names[:1], drop_lake=self._random.random() < 0.3)
            case "resync":
                mirror.resync(names, together=self._random.random() < 0.5)
            case "create":
                mirror.create_group(
                    GroupSpec(choice([g for g in GROUPS if g not in known] or GROUPS), True, flush_interval=0.5)
                )
            case "drop":
                mirror.drop_group(choice([group for group in known if group in GROUPS] or GROUPS))
            case "pause" | "resume":
                getattr(mirror, step)(names)


class WorkerSlots:
    """Who had a worker, from when to when: each commit, and each piece of maintenance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[tuple[str, float, float]] = []
        for name in ("apply", "maintain"):
            monkeypatch.setattr(Lake, name, self._noted(getattr(Lake, name)))

    def _noted(self, work: Callable[..., Applied]) -> Callable[..., Applied]:
        def noted(lake: Lake, applied: Applied, *rest: Any) -> Applied:
            began = time.monotonic()
            try:
                return work(lake, applied, *rest)
            finally:
                self.taken.append((applied.schema.id.name, began, time.monotonic()))

        return noted

    def passed_over(self, table: str) -> tuple[int, str]:
        """How many turns somebody else had, at most, between two of a table; and who."""
        own = sorted((began, ended) for name, began, ended in self.taken if name == table)
        worst = (0, "nobody")
        for (_, ended), (began, _) in pairwise(own):
            between = Counter(name for name, start, _ in self.taken if name != table and ended < start < began)
            worst = max(worst, *((count, name) for name, count in between.items()), worst)
        return worst


def _watch(mirror: Mirror, seconds: float) -> float:
    """How far behind the tables left in peace are, at most, over some time."""
    worst, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        behind = {
            table.name: table.lag_seconds or 0.0 for table in mirror.tables() if table.name.split(".")[1] in QUIET
        }
        assert len(behind) == len(QUIET), behind
        worst = max(worst, *behind.values())
    return worst


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(SECONDS + 900)
def test_tables_come_and_go_under_load_and_all_is_equal_at_the_end(
    database: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = WorkerSlots(monkeypatch)
    seed = int(os.environ.get("WAL2LAKE_TEST_SEED") or random.randrange(10**6))
    print(f"WAL2LAKE_TEST_SEED={seed} repeats these decisions")  # noqa: T201 - shown when the test fails
    for name in (*QUIET, *BUSY):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int, v text);"
            f"INSERT INTO {name} SELECT i, 0, 'v' FROM generate_series(1, 1000) i"
        )
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=[{"name": "default", "flush_interval": 0.5}])
    mirror = Mirror(mirrored.config)
    disturber = Disturber(mirror, seed)
    with mirrored.running():
        mirrored.is_streaming(*QUIET, *BUSY)
        with SteadyWriter(database, RATE, partial(_write, random.Random(seed))) as writer:
            usual = _watch(mirror, SECONDS / 5)
            worst, until = 0.0, time.monotonic() + SECONDS
            while time.monotonic() < until:
                disturber.disturb()
                worst = max(worst, _watch(mirror, disturber.pause()))
        told = f"done {dict(disturber.done)}, refused {dict(disturber.refused)}; at most {worst:.1f} s behind, undisturbed {usual:.1f} s"
        passed = {table: turns.passed_over(table) for table in QUIET}
        print(f"{writer.committed} transactions; {told}; turns of others {passed}")  # noqa: T201
        assert max(passed.values())[0] <= MOST_TURNS, passed
        _bring_all_back(mirror)
        wait_until(
            lambda: _all_stream(mirror),
            PATIENCE,
            lambda: [(t.name, t.group, t.state, t.error) for t in mirror.tables()],
        )
        mirrored.follows(*QUIET, *BUSY)
    slots = database.value(
        "SELECT array_agg(slot_name::text) FROM pg_replication_slots WHERE database = current_database()"
    )
    assert len(slots) == len(mirror.groups()), slots


def _bring_all_back(mirror: Mirror) -> None:
    """Every table is to be mirrored again, wherever."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        missing = {f"public.{name}" for name in BUSY} - {table.name for table in mirror.tables()}
        for name in missing:
            try:
                mirror.add([name], "default")
            except Wal2LakeError:
                continue
        present = [table.name for table in mirror.tables() if table.name.split(".")[1] in BUSY]
        if present:
            mirror.resume(present)
        if not missing and len(present) == len(BUSY):
            return
        time.sleep(0.5)
    raise AssertionError([(table.name, table.group, table.state) for table in mirror.tables()])


def _all_stream(mirror: Mirror) -> bool:
    tables = mirror.tables()
    return len(tables) == len(QUIET) + len(BUSY) and all(table.state == "STREAMING" for table in tables)
