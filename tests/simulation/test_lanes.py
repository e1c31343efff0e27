"""Each capture mode, and the changes from one to another, without faults: they happen, and the lake becomes equal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.scenario import Scenario, run
from wal2lake.state.lifecycle import Mode

MOST_SEEDS = 20


@pytest.mark.parametrize("capture", ["poll", "trigger", "auto"])
@pytest.mark.parametrize("seed", range(6))
def test_the_lake_becomes_what_the_source_is(seed: int, capture: str) -> None:
    run(replace(Scenario.calm(seed, "busy"), capture=capture))


def test_groups_go_from_triggers_to_the_wal_and_back() -> None:
    """Otherwise the seeds would show nothing about it."""
    seen: set[tuple[str | None, str | None]] = set()
    wanted = {(Mode.TRIGGER, Mode.WAL), (Mode.WAL, Mode.TRIGGER)}
    for seed in range(MOST_SEEDS):
        world = run(replace(Scenario.calm(seed, "busy"), capture="auto"))
        assert world.state.store is not None
        changes = [entry for entry in world.state.store.history if entry.detail == "capture mode"]
        seen |= {(entry.before, entry.after) for entry in changes}
        if seen >= wanted:
            return
    assert seen >= wanted
