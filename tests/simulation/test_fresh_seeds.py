"""Seeds that were never run before, with faults, for half a minute; the first one is printed."""

from __future__ import annotations

import os
import secrets
import sys
import time

import pytest

from proof_size import proof_size
from simulation.campaign import attempt
from simulation.scenario import Scenario

# A process that has crashed closes nothing.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_fresh_seeds() -> None:
    seed = int(os.environ.get("WAL2LAKE_TEST_SEED") or secrets.randbelow(1 << 31))
    sys.stdout.write(f"fresh seeds from {seed} on\n")
    until = time.monotonic() + proof_size("WAL2LAKE_TEST_SECONDS", long=30, short=30)
    while time.monotonic() < until:
        failed = attempt(Scenario.of(seed))
        assert failed is None, str(failed)
        seed += 1
