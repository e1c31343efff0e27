"""The whole mirror, in memory and simulated time: whatever the order of its steps, the lake becomes what the source is."""

from __future__ import annotations

import os
import secrets
import time

import pytest

from simulation.workload import Changes, Life
from simulation.world import World

SEEDS = range(40)
FRESH_SECONDS = 30.0


@pytest.mark.parametrize("seed", range(10))
def test_changes_of_rows_arrive(seed: int) -> None:
    World(seed, Changes()).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_lake_becomes_what_the_source_is(seed: int) -> None:
    World(seed, Life(seed)).run()


@pytest.mark.slow
def test_fresh_seeds() -> None:
    """As many as there is time for; WAL2LAKE_TEST_SEED repeats one."""
    fixed = os.environ.get("WAL2LAKE_TEST_SEED")
    until = time.monotonic() + FRESH_SECONDS
    count = 0
    while not count or (not fixed and time.monotonic() < until):
        seed = int(fixed) if fixed else secrets.randbelow(1 << 32)
        count += 1
        World(seed, Life(seed)).run()


def test_a_seed_gives_the_same_run_again() -> None:
    def trace(seed: int) -> list[tuple[float, str]]:
        world = World(seed, Life(seed))
        world.run()
        return world.executor.trace

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
