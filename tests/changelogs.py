"""An empty change log at position 100, for tests that need no server, and functions that damage its files."""

from __future__ import annotations

from pathlib import Path

from wal2lake.changelog import ChangeLog, LogStorage, Origin, Segment
from wal2lake.position import Lsn

ORIGIN = Origin("1", 5, "wal2lake_g")


def begun(storage: LogStorage) -> ChangeLog:
    made = ChangeLog(storage, "g")
    made.create(ORIGIN, ORIGIN.slot)
    made.begin(Lsn(100))
    return made


def directory_of(log: ChangeLog) -> Path:
    """Where a log that is kept in a directory has its files."""
    return Path(log.storage.uri())


def file_of(log: ChangeLog, segment: Segment) -> Path:
    return Path(log.uri(segment))
