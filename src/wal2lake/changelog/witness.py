"""What a change log knows of its source, to detect a database that was restored to an earlier point.

Such a database has lost the latest of what was written to it. A position is written to the database from time to time,
and afterwards here: a position that is here must be in the database. The timeline shows whether its WAL branched off
before a position that was captured.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import ChangeLogDamaged
from ..position import Lsn
from .storage import LogStorage

T = TypeVar("T")
_STORED = "stored.json"
_TIMELINE = "timeline.json"


class Witness:
    """Its files are in the log; the start of a new stretch deletes them."""

    def __init__(self, storage: LogStorage) -> None:
        self._storage = storage

    def stored(self) -> Lsn | None:
        """A position that was written to the database; nothing lower was written since."""
        return self._read(_STORED, lambda data: Lsn.parse(data["lsn"]))

    def storing(self, lsn: Lsn) -> None:
        """Call before a position is written to the database: a higher one can't be expected from then on."""
        before = self.stored()
        if before is not None and before > lsn:
            self._storage.delete(_STORED)

    def has_stored(self, lsn: Lsn) -> None:
        """A position is durable in the database."""
        if self.stored() != lsn:
            self._storage.put(_STORED, json.dumps({"lsn": str(lsn)}).encode())

    def timeline(self) -> int | None:
        return self._read(_TIMELINE, lambda data: int(data["timeline"]))

    def on_timeline(self, timeline: int) -> None:
        self._storage.put(_TIMELINE, json.dumps({"timeline": timeline}).encode())

    def forget(self) -> None:
        for name in (_STORED, _TIMELINE):
            self._storage.delete(name)

    def _read(self, name: str, value: Callable[[dict[str, Any]], T]) -> T | None:
        """The value in a file; None if there is none. Raises for a file that can't be read, and does not replace it."""
        data = self._storage.get(name)
        try:
            return None if data is None else value(json.loads(data))
        except (ValueError, KeyError, TypeError):
            path = self._storage.uri(name)
            raise ChangeLogDamaged(
                path=path, cause="it can't be read, so it is unknown whether the source was restored from a backup",
                remedy=f"if it was not, delete the file: rm {shlex.quote(path)}; if it was: "
                "wal2lake tables resync --all",
            ) from None  # fmt: skip
