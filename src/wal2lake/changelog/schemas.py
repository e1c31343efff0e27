"""The schemas of the rows in a change log: schemas/<oid>/<version>.json, immutable.

All processes read them; the capture process and the run may both add versions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

from ..errors import ChangeLogDamaged
from ..schema import TableSchema
from .checksum import seal, unseal
from .storage import LogStorage

PREFIX = "schemas"


class Schemas:
    """All versions of all tables' schemas. Numbers begin at 1 for each table."""

    def __init__(self, storage: LogStorage) -> None:
        self._storage = storage
        self._known: dict[int, list[TableSchema]] = {}
        self._lock = threading.Lock()

    def version(self, schema: TableSchema) -> int:
        """The version of a schema; if it differs from the last one, it is written with the next number."""
        while True:
            known = self.of(schema.oid)
            if known and known[-1] == schema:
                return len(known)
            number = len(known) + 1
            # Another process took this number: capture writes schemas that it reads, the run masked ones.
            with suppress(FileExistsError):
                self._storage.put_new(_name(schema.oid, number), seal(schema.to_json()).encode())
                return number

    def of(self, oid: int) -> list[TableSchema]:
        """All versions of a table's schema, oldest first."""
        known = self._known.setdefault(oid, [])
        while (schema := self._read(_name(oid, number := len(known) + 1))) is not None:
            with self._lock:
                # Another thread may have read it meanwhile.
                if len(known) < number:
                    known.append(schema)
        return known

    def last(self, oid: int) -> TableSchema | None:
        """The newest version."""
        return next(reversed(self.of(oid)), None)

    def get(self, oid: int, version: int) -> TableSchema | None:
        known = self._known.get(oid, [])
        if version > len(known):
            known = self.of(oid)
        return known[version - 1] if 0 < version <= len(known) else None

    def require_sound(self) -> None:
        """Raises ChangeLogDamaged if a file can't be read."""
        for name in self._names():
            self._read(name)

    def set_aside_damaged(self) -> None:
        """Rename files that can't be read; for a log in which no manifest needs them any more."""
        for name in self._names():
            try:
                self._read(name)
            except ChangeLogDamaged:
                if (data := self._storage.get(name)) is not None:
                    self._storage.put(f"{name.removesuffix('.json')}.damaged", data)
                self._storage.delete(name)
        self.forget()

    def forget(self) -> None:
        """Clear the cache: the files were deleted."""
        self._known.clear()

    def _names(self) -> Iterator[str]:
        for table in self._storage.prefixes(PREFIX):
            yield from (name for name in self._storage.names(table) if name.endswith(".json"))

    def _read(self, name: str) -> TableSchema | None:
        data = self._storage.get(name)
        try:
            return None if data is None else TableSchema.from_json(unseal(data.decode(), "oid"))
        except (ValueError, KeyError, TypeError):
            raise ChangeLogDamaged(path=self._storage.uri(name), cause="it is not what was written") from None


def _name(oid: int, version: int) -> str:
    return f"{PREFIX}/{oid}/{version}.json"
