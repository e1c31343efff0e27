"""The simulator finds bugs: each that is planted within a minute, by a seed that passes without it."""

from __future__ import annotations

import time

import pytest

from simulation.campaign import Failed, attempt
from simulation.planted_lane_bugs import BUGS, Bug
from simulation.scenario import Scenario

# A process that has crashed closes nothing.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SECONDS = 60.0
"""of a core: other tests may run beside this one"""


def test_there_are_enough() -> None:
    assert len(BUGS) >= 10 and len({bug.name for bug in BUGS}) == len(BUGS)
    assert {bug.capture for bug in BUGS} == {"wal", "poll", "trigger", "auto"}


def found(bug: Bug, seconds: float) -> Failed | None:
    """The first seed that fails with a bug."""
    until, seed = time.process_time() + seconds, 0
    # Of a change of the capture mode, most bugs show where a commit waits for a standby.
    workload = "standby" if bug.capture == "auto" else "busy"
    with pytest.MonkeyPatch.context() as patch:
        bug.plant(patch)
        while time.process_time() < until:
            if (failed := attempt(Scenario.of(seed, bug.ports, workload, bug.capture))) is not None:
                return failed
            seed += 1
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_the_simulator_finds(bug: Bug) -> None:
    failed = found(bug, SECONDS)
    assert failed is not None, f"nothing was found in {SECONDS:g} s"
    without = attempt(failed.scenario)
    assert without is None, f"seed {failed.scenario.seed} fails without the bug, too:\n{without and without.error}"
