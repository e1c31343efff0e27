"""The schemas that the rows of a change log were written in: <directory>/<oid>/<version>.json, never written over.

Every process that has the log reads them; the capture process and the run may both add one.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from ..errors import ChangeLogDamaged
from ..schema import TableSchema
from .checksum import seal, unseal
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
            # A number that is taken is another process's: capture writes what it sees, the run what is masked.
            with suppress(FileExistsError):
                create(directory / f"{number}.json", seal(schema.to_json()))
                return number

    def of(self, oid: int) -> list[TableSchema]:
        """All versions of a table's schema that have been written, oldest first."""
        with self._lock:
            known = self._known.setdefault(oid, [])
            while (schema := _read(self._path(oid, len(known) + 1))) is not None:
                known.append(schema)
        return known

    def last(self, oid: int) -> TableSchema | None:
        """The newest of them."""
        return next(reversed(self.of(oid)), None)

    def get(self, oid: int, version: int) -> TableSchema | None:
        known = self._known.get(oid, [])
        if version > len(known):
            known = self.of(oid)
        return known[version - 1] if 0 < version <= len(known) else None

    def require_sound(self) -> None:
        """Raises ChangeLogDamaged if a file can't be read."""
        for path in self.directory.glob("*/*.json"):
            _read(path)

    def set_aside_damaged(self) -> None:
        """Take files that can't be read out of the way; for a log none of whose manifests names them any more."""
        for path in self.directory.glob("*/*.json"):
            try:
                _read(path)
            except ChangeLogDamaged:
                path.rename(path.with_suffix(".damaged"))
        self.forget()

    def _path(self, oid: int, version: int) -> Path:
        return self.directory / str(oid) / f"{version}.json"

    def forget(self) -> None:
        """The files are gone."""
        with self._lock:
            self._known.clear()


def _read(path: Path) -> TableSchema | None:
    try:
        text = read(path)
        return None if text is None else TableSchema.from_json(unseal(text, "oid"))
    except (ValueError, KeyError, TypeError):
        raise ChangeLogDamaged(path=str(path), cause="it is not what was written") from None
