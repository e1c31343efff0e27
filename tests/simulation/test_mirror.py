"""The whole mirror, in memory and simulated time: whatever the order of its steps, the lake becomes what the source is."""

from __future__ import annotations

import os
import secrets
import time

import pytest

from simulation.campaign import attempt
from simulation.scenario import Scenario, run

SEEDS = range(40)
FRESH_SECONDS = 30.0


@pytest.mark.parametrize("seed", range(10))
def test_changes_of_rows_arrive(seed: int) -> None:
    run(Scenario.calm(seed, "changes"))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_lake_becomes_what_the_source_is(seed: int) -> None:
    run(Scenario.calm(seed, "life"))


@pytest.mark.slow
def test_fresh_seeds() -> None:
    """As many as there is time for; WAL2LAKE_TEST_SEED gives one."""
    fixed = os.environ.get("WAL2LAKE_TEST_SEED")
    until = time.monotonic() + FRESH_SECONDS
    count = 0
    while not count or (not fixed and time.monotonic() < until):
        seed = int(fixed) if fixed else secrets.randbelow(1 << 32)
        count += 1
        failed = attempt(Scenario.calm(seed, "life"))
        assert failed is None, str(failed)


def test_a_seed_gives_the_same_run_again() -> None:
    def trace(seed: int) -> list[tuple[float, str]]:
        return run(Scenario.calm(seed, "life")).executor.trace

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
