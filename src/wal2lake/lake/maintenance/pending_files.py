"""Cleans up after interrupted copies and drops.

Both make or remove files outside of the table's commits. A note is written before and removed after; a note that is
found later makes the next run remove every file that the catalog's table does not refer to.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...changelog import LogStorage
from ...schema import TableId
from ..format import Found, TableFormat
from .intent import Intent, Intents, unreferenced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Clocks of file systems may be slightly behind.
_CLOCK_SLACK = 1.0


class PendingFiles:
    def __init__(self, lake: Path, storage: LogStorage, tables: TableFormat) -> None:
        """`storage`: where what belongs to the lake, and is no table, is kept."""
        self._lake, self._tables = lake, tables
        self._notes = Intents(storage.within("copies"))

    def copying(self, table: TableId, source_id: str, found: Found | None) -> str | None:
        """Begin a copy; return the location for the files of a new table; None: keep it, or let the catalog choose."""
        location = Path(found.location) if found is not None else self._tables.new_location(table)
        text = None if location is None else str(location)
        self._notes.write(Intent(source_id, table, text, found is None, time.time()))
        return text if found is None else None

    def dropping(self, table: TableId, source_id: str, location: str) -> None:
        self._notes.write(Intent(source_id, table, location, True, time.time()))

    def done(self, source_id: str) -> None:
        self._notes.remove(source_id)

    def noted(self, source_id: str) -> bool:
        """Whether there may be something to clean up."""
        return self._notes.find(source_id) is not None

    def clear(self, session: SparkSession, source_id: str) -> None:
        """Finish the work in the note of this source table, if there is one."""
        note = self._notes.find(source_id)
        if note is None:
            return
        found = self._tables.find(session, note.table)
        location = None if note.location is None else Path(note.location)
        if location is not None and location.is_relative_to(self._lake) and location.exists():
            # The table may have been renamed, and a user's catalog may put two tables into one directory.
            placed = self._tables.placed(session, str(location))
            if not placed and note.ours:
                shutil.rmtree(location, ignore_errors=True)
            elif placed == {note.table} and found is not None and found.source == source_id:
                referenced = self._tables.files(session, note.table)
                for path in list(unreferenced(location, referenced, note.began - _CLOCK_SLACK)):
                    path.unlink(missing_ok=True)
        log.info("removed what an interrupted copy or drop of %s had left", note.table)
        self._notes.remove(source_id)
