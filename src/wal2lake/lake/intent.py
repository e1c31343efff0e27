"""What is being made or removed in the lake, noted before it begins, so that a crash leaves nothing behind.

A note `<lake>/_wal2lake/copies/<source>.json` says where files are about to appear and whether the place was free
before. It is removed when the work is done; one that is found later belongs to work that was cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schema import TableId


@dataclass(frozen=True)
class Intent:
    source: str
    table: TableId
    location: str | None
    """directory of the table's files; None where the catalog decides it"""
    ours: bool
    """nothing of anybody else was there: it may go when the catalog has no such table"""
    began: float


class Intents:
    """The notes of one lake."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, intent: Intent) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(intent.source)
        draft = path.with_suffix(".tmp")
        content: dict[str, Any] = {**vars(intent), "table": [intent.table.schema, intent.table.name]}
        with draft.open("w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def find(self, source: str) -> Intent | None:
        """The note of a source table; None if nothing of it was cut off."""
        path = self._path(source)
        return _read(path) if path.exists() else None

    def remove(self, source: str) -> None:
        self._path(source).unlink(missing_ok=True)

    def _path(self, source: str) -> Path:
        return self._directory / (source.replace("/", "-") + ".json")


def _read(path: Path) -> Intent:
    data = json.loads(path.read_text("utf-8"))
    return Intent(**{**data, "table": TableId(*data["table"])})


def unreferenced(directory: Path, referenced: frozenset[str], since: float) -> Iterator[Path]:
    """Files below a directory that came after a moment and that no version of the table refers to."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            owner = path.with_name(name[1:-4]) if name.startswith(".") and name.endswith(".crc") else path
            if str(owner) not in referenced and path.stat().st_mtime >= since:
                yield path
