"""Copies and drops under way, and what is left of those that were cut off.

Both make or remove files outside of the table's own commits. A note is written before and removed after; who finds one
later clears up, so that nothing stays but what the catalog's table refers to.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..schema import TableId
from .format import Found
from .iceberg import IcebergTables
from .intent import Intent, Intents, unreferenced
from .names import OURS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# File systems stamp with a clock of their own, which may be a little behind.
_CLOCK_SLACK = 1.0


class PendingFiles:
    def __init__(self, lake: Path, tables: IcebergTables) -> None:
        self._lake, self._tables = lake, tables
        self._notes = Intents(lake / OURS / "copies")

    def copying(self, table: TableId, source_id: str, found: Found | None) -> str | None:
        """A copy begins. Where the files of a new table go; None: where they are, or where the catalog puts them."""
        location = Path(found.location) if found is not None else self._tables.new_location(table)
        text = None if location is None else str(location)
        self._notes.write(Intent(source_id, table, text, found is None, time.time()))
        return text if found is None else None

    def dropping(self, table: TableId, source_id: str, location: str) -> None:
        self._notes.write(Intent(source_id, table, location, True, time.time()))

    def done(self, source_id: str) -> None:
        self._notes.remove(source_id)

    def noted(self, source_id: str) -> bool:
        """Whether there may be something to clear up."""
        return self._notes.find(source_id) is not None

    def clear(self, session: SparkSession, source_id: str) -> None:
        """Finish what a note of this source table speaks of, if there is one."""
        note = self._notes.find(source_id)
        if note is None:
            return
        found = self._tables.find(session, note.table)
        location = None if note.location is None else Path(note.location)
        if location is not None and location.is_relative_to(self._lake) and location.exists():
            # A table may have another name by now, and a user's catalog may put two tables into one directory.
            placed = self._tables.placed(session, str(location))
            if not placed and note.ours:
                shutil.rmtree(location, ignore_errors=True)
            elif placed == {note.table} and found is not None and found.source == source_id:
                referenced = self._tables.files(session, note.table)
                for path in list(unreferenced(location, referenced, note.began - _CLOCK_SLACK)):
                    path.unlink(missing_ok=True)
        log.info("cleared what was left of an interrupted copy or drop of %s", note.table)
        self._notes.remove(source_id)
