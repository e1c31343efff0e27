"""Notes of files that are about to be made or removed, so that they can be cleaned up after a crash.

A note `<lake>/_wal2lake/copies/<source>.json` says where files will appear, and whether the location was free before.
It is removed when the work is done; a note that is found later belongs to interrupted work.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...changelog import LogStorage
from ...schema import TableId


@dataclass(frozen=True)
class Intent:
    source: str
    table: TableId
    location: str | None
    """of the table's files; None if the catalog chooses it"""
    ours: bool
    """nothing of others was there: it may be removed if the catalog has no such table"""
    began: float


class Intents:
    """The notes of one lake."""

    def __init__(self, storage: LogStorage) -> None:
        self._storage = storage

    def write(self, intent: Intent) -> None:
        content: dict[str, Any] = {**vars(intent), "table": [intent.table.schema, intent.table.name]}
        self._storage.prepare()
        self._storage.put(_name(intent.source), json.dumps(content).encode())

    def find(self, source: str) -> Intent | None:
        """The note of a source table; None if nothing of it was cut off."""
        found = self._storage.get(_name(source))
        return None if found is None else _read(found)

    def remove(self, source: str) -> None:
        self._storage.delete(_name(source))


def _name(source: str) -> str:
    return source.replace("/", "-") + ".json"


def _read(text: bytes) -> Intent:
    data = json.loads(text)
    return Intent(**{**data, "table": TableId(*data["table"])})
