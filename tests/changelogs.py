"""An empty change log, begun at position 100, for tests that need no server."""

from __future__ import annotations

from pathlib import Path

from wal2lake.changelog import ChangeLog, Origin
from wal2lake.position import Lsn

ORIGIN = Origin("1", 5, "wal2lake_g")


def begun(root: Path) -> ChangeLog:
    made = ChangeLog(root, "g")
    made.create(ORIGIN, ORIGIN.slot)
    made.begin(Lsn(100))
    return made
