"""An independent eye on the lake: when does which version of a table become visible to a reader?

It asks the catalog's file for the tables' current metadata, as any reader does first, and reads with pyiceberg what has
changed. A version counts as visible when it has been seen, so its time is late by at most one look, never early.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from wal2lake.position import ZERO, Lsn

LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Version:
    at: float
    """when it was first seen, by the clock of this machine"""
    lsn: Lsn
    changes: int
    """changes since the first copy"""


class Observer:
    """Looks until it is closed, in a thread of its own."""

    def __init__(self, lake: Path) -> None:
        self._catalog = f"file:{lake / 'catalog.db'}?mode=ro"
        self._versions: dict[str, dict[int, Version]] = {}
        self._seen: dict[str, str] = {}
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._thread.start()

    def versions(self, table: str) -> list[Version]:
        """All versions of a table so far, in the order of their positions."""
        if self._error is not None:
            raise self._error
        return sorted(self._versions.get(table, {}).copy().values(), key=lambda version: version.lsn)

    def position(self, table: str) -> Lsn:
        return max((version.lsn for version in self.versions(table)), default=ZERO)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with closing(sqlite3.connect(self._catalog, uri=True, timeout=30, check_same_thread=False)) as catalog:
                while not self._stop.wait(LOOK_SECONDS):
                    self._look(catalog)
        except Exception as error:
            self._error = error

    def _look(self, catalog: sqlite3.Connection) -> None:
        found = catalog.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall()
        at = time.time()
        for table, location in found:
            if self._seen.get(table) != location:
                self._seen[table] = location
                self._note(table, location, at)

    def _note(self, table: str, location: str, at: float) -> None:
        from pyiceberg.table import StaticTable

        versions = self._versions.setdefault(table, {})
        for snapshot in StaticTable.from_metadata(location).metadata.snapshots:
            summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            if snapshot.snapshot_id not in versions and "wal2lake.lsn" in summary:
                versions[snapshot.snapshot_id] = Version(
                    at, Lsn.parse(summary["wal2lake.lsn"]), int(summary["wal2lake.changes"])
                )
