"""A group changes from triggers to the WAL under load again and again, and is killed at each step.

The seed is printed; WAL2LAKE_TEST_SEED repeats its decisions, WAL2LAKE_TEST_ROUNDS sets the number of changes.
"""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from mirroring import PATIENCE, Mirrored
from test_capture_crossing import by_triggers, captured_by, counted, crosses, streams
from writing import TABLES, Writer, make_tables

from command import Project
from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake import faults
from wal2lake.faults import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = proof_size("WAL2LAKE_TEST_ROUNDS", long=50, short=3)
POINTS = (
    faults.CROSSING_SLOT_MADE, faults.CROSSING_STOPPED, faults.CROSSED, faults.CROSSING_PUBLISHED,
    faults.CROSSING_UNDONE, None,
)  # fmt: skip
"""None: it is killed at a moment that chance decides"""
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal2lake.scheduling.lanes.LOOK_SECONDS", 0.3)
    monkeypatch.setattr("wal2lake.scheduling.lanes.AGAIN_SECONDS", 1.0)
    monkeypatch.setattr("wal2lake.scheduling.lanes.CLEAR_SECONDS", 0.3)


def _seed() -> int:
    return int(os.environ.get("WAL2LAKE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))


def _by_triggers_again(mirrored: Mirrored) -> None:
    mirrored.configure(groups=captured_by("trigger"))
    with mirrored.running():
        wait_until(lambda: by_triggers(mirrored.database), PATIENCE, lambda: f"triggers: {counted(mirrored.database)}")
        mirrored.becomes_equal(*TABLES)


def _killed(project: Project, mirrored: Mirrored, point: str | None, chance: random.Random) -> None:
    project.configure(mirrored.database.dsn, '[[groups]]\nname = "default"\nflush_interval = 0.1\ncapture = "auto"\n')
    run = project.start("run", env=None if point is None else {VARIABLE: point})
    if point is None:
        if chance.random() < 0.5:
            wait_until(lambda: counted(mirrored.database)["slots"], PATIENCE, lambda: run.err)
        else:
            streams(mirrored, "counters")
        run.signal(signal.SIGKILL)
    assert run.wait().code == -signal.SIGKILL


def _round(project: Project, mirrored: Mirrored, number: int, point: str | None, chance: random.Random) -> None:
    database = mirrored.database
    _by_triggers_again(mirrored)
    mirrored.configure(groups=captured_by("auto"))
    writer = Writer(database, chance.randrange(1 << 30))
    # Keys of earlier rounds are taken.
    writer._next += 100_000 * number
    with ExitStack() as ends, writer:
        _killed(project, mirrored, point, chance)
        held = database.connect(autocommit=False)
        ends.callback(held.close)
        held.execute("INSERT INTO journal VALUES (-1, 'held')")
        with mirrored.running():
            mirrored.is_streaming("counters")
            held.commit() if chance.random() < 0.7 else held.rollback()
            crosses(mirrored)
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_random_changes_to_the_wal_with_a_kill_at_each_step(
    project: Project, database: Database, spark: SparkSession
) -> None:
    seed = _seed()
    print(f"WAL2LAKE_TEST_SEED={seed} repeats these {ROUNDS} rounds")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    make_tables(database)
    mirrored = Mirrored(database, project.lake, spark, groups=captured_by("trigger"))
    for number in range(ROUNDS):
        point = POINTS[number] if number < len(POINTS) else chance.choice(POINTS)
        print(f"round {number}: {point or 'any moment'}")  # noqa: T201 - shown when the test fails
        _round(project, mirrored, number, point, chance)
    mirrored.command("teardown", "--yes")
    assert set(counted(database).values()) == {0}
