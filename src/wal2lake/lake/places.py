"""Which lake table a source table goes to. It is named like its source was when it was first copied, and stays that.

A note `<lake>/_wal2lake/tables/<source>.json` says so; the lake table itself says which source it is from, so a note
that is lost or wrong can lead to no other table than the right one.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..schema import TableId


class Places:
    """The notes of one lake."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, TableId] = {}

    def find(self, source: str) -> TableId | None:
        """Where a source table's rows are; None if that was never noted."""
        if source not in self._known:
            try:
                self._known[source] = TableId(*json.loads(self._path(source).read_text("utf-8")))
            except (FileNotFoundError, ValueError):
                return None
        return self._known[source]

    def note(self, source: str, table: TableId) -> None:
        if self.find(source) == table:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        draft = self._path(source).with_suffix(".tmp")
        draft.write_text(json.dumps([table.schema, table.name]), "utf-8")
        draft.replace(self._path(source))
        self._known[source] = table

    def forget(self, source: str) -> None:
        self._known.pop(source, None)
        self._path(source).unlink(missing_ok=True)

    def _path(self, source: str) -> Path:
        return self._directory / (source.replace("/", "-") + ".json")
