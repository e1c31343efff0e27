"""Independent eyes on the lake and on the change log: what becomes visible to a reader, and when?

`Observer` asks the catalog's file for the tables' current metadata, as any reader does first, and reads with pyiceberg
what has changed. `LogWatch` lists the manifests. A thing counts as visible when it has been seen, so its time is late
by at most one look, never early; a manifest's own time is that of its file.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from bisect import bisect_left
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
    """changes since the initial copy"""


@dataclass(frozen=True)
class Published:
    """A manifest, by the times of its files."""

    lsn: Lsn
    """it holds what ends at or before this"""
    sealed: float
    """when the first of its segments was written"""
    at: float
    """when it was published"""


class _Watch:
    """Looks until it is closed, in a thread of its own; what fails there is raised by whoever asks."""

    def __init__(self, look_seconds: float) -> None:
        self._look_seconds = look_seconds
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        raise NotImplementedError

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._look_seconds):
                self._look()
        except Exception as error:
            self._error = error


class Observer(_Watch):
    def __init__(self, lake: Path, look_seconds: float = LOOK_SECONDS) -> None:
        self._catalog = f"file:{lake / 'catalog.db'}?mode=ro"
        self._connection: sqlite3.Connection | None = None
        self._versions: dict[str, dict[int, Version]] = {}
        self._seen: dict[str, str] = {}
        super().__init__(look_seconds)

    def versions(self, table: str) -> list[Version]:
        """The versions of a table that moved its position so far, in order; maintenance makes others."""
        self._check()
        ordered = sorted(self._versions.get(table, {}).copy().values(), key=lambda version: (version.lsn, version.at))
        first = dict[Lsn, Version]()
        for version in ordered:
            first.setdefault(version.lsn, version)
        return list(first.values())

    def position(self, table: str) -> Lsn:
        self._check()
        return max((version.lsn for version in self._versions.get(table, {}).copy().values()), default=ZERO)

    def _run(self) -> None:
        with closing(sqlite3.connect(self._catalog, uri=True, timeout=30, check_same_thread=False)) as connection:
            self._connection = connection
            super()._run()

    def _look(self) -> None:
        assert self._connection is not None
        found = self._connection.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall()
        at = time.time()
        for table, location in found:
            if self._seen.get(table) != location:
                self._note(table, location, at)
                self._seen[table] = location

    def _note(self, table: str, location: str, at: float) -> None:
        from pyiceberg.table import StaticTable

        versions = self._versions.setdefault(table, {})
        try:
            snapshots = StaticTable.from_metadata(location).metadata.snapshots
        except FileNotFoundError:
            # Old metadata files are deleted; the next read finds the newer one.
            return
        for snapshot in snapshots:
            summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            if snapshot.snapshot_id not in versions and "wal2lake.lsn" in summary:
                versions[snapshot.snapshot_id] = Version(
                    at, Lsn.parse(summary["wal2lake.lsn"]), int(summary["wal2lake.changes"])
                )


class LogWatch(_Watch):
    """The manifests of a group as they appear; they are gone when all tables have them."""

    def __init__(self, changelog: Path, look_seconds: float = LOOK_SECONDS) -> None:
        self._directory = changelog
        self._published: dict[int, Published] = {}
        super().__init__(look_seconds)

    def published(self) -> list[Published]:
        self._check()
        return sorted(self._published.copy().values(), key=lambda manifest: manifest.lsn)

    def _look(self) -> None:
        for path in (self._directory / "manifests").glob("*.json"):
            if path.stem.isdigit() and int(path.stem) not in self._published:
                try:
                    self._published[int(path.stem)] = self._read(path)
                except FileNotFoundError:
                    # It was applied and deleted between the listing and the reading.
                    continue

    def _read(self, path: Path) -> Published:
        data = json.loads(path.read_text("utf-8"))
        at = path.stat().st_mtime
        files = [segment["file"] for table in data["tables"] for segment in table["segments"]]
        written = [(self._directory / file).stat().st_mtime for file in files]
        return Published(Lsn.parse(data["to_lsn"]), min([at, *written]), at)


def holding(manifests: list[Published], end: Lsn) -> Published | None:
    """The first manifest that holds a commit which ended there; None if it was never seen."""
    at = bisect_left(manifests, end, key=lambda manifest: manifest.lsn)
    return manifests[at] if at < len(manifests) else None
