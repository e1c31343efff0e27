"""The schemas that the rows of a change log were written in: <directory>/<oid>/<version>.json, never written over.

Every process that has the log reads them; capture and control may both add one.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

from ..schema import TableSchema
from .durable import create, read, sync_directory


class Schemas:
    """All versions of all tables' schemas. Numbers begin at 1 for each table."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[int, list[TableSchema]] = {}
        self._lock = threading.Lock()

    def version(self, schema: TableSchema) -> int:
        """The version under which a schema is on disk; one that differs from the last gets the next number."""
        directory = self.directory / str(schema.oid)
        while True:
            known = self.of(schema.oid)
            if known and known[-1] == schema:
                return len(known)
            number = len(known) + 1
            directory.mkdir(parents=True, exist_ok=True)
            sync_directory(directory.parent)
            # A number that is taken is another process's: capture writes what it sees, control what is masked.
            with suppress(FileExistsError):
                create(directory / f"{number}.json", json.dumps(schema.to_json(), indent=1, ensure_ascii=False))
                return number

    def of(self, oid: int) -> list[TableSchema]:
        """All versions of a table's schema that have been written, oldest first."""
        with self._lock:
            known = self._known.setdefault(oid, [])
            while (text := read(self.directory / str(oid) / f"{len(known) + 1}.json")) is not None:
                known.append(TableSchema.from_json(json.loads(text)))
        return known

    def last(self, oid: int) -> TableSchema | None:
        """The newest of them."""
        return next(reversed(self.of(oid)), None)

    def get(self, oid: int, version: int) -> TableSchema | None:
        known = self._known.get(oid, [])
        if version > len(known):
            known = self.of(oid)
        return known[version - 1] if 0 < version <= len(known) else None

    def forget(self) -> None:
        """The files are gone."""
        with self._lock:
            self._known.clear()
