"""Simulated time costs nothing: here the product's own intervals hold, those that other tests wait for are shorter."""

from __future__ import annotations

import pytest

from wal2lake.reconcile import reconciler
from wal2lake.scheduling import state_writer

INTERVALS = [(reconciler, "REFRESH_SECONDS"), (state_writer, "SAVE_SECONDS"), (state_writer, "IDLE_SAVE_SECONDS")]
OWN = [(module, name, getattr(module, name)) for module, name in INTERVALS]


@pytest.fixture(autouse=True)
def intervals_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in OWN:
        monkeypatch.setattr(module, name, seconds)
