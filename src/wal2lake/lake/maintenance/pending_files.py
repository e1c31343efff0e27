"""Cleans up after interrupted copies and drops.

Both make or remove files outside of the table's commits. A note is written before and removed after; a note that is
found later makes the next run remove every file that the catalog's table does not refer to.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ...changelog import LogStorage
from ...schema import TableId
from ..format import Found, TableFormat
from .intent import Intent, Intents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Clocks of file systems may be slightly behind.
_CLOCK_SLACK = 1.0


class PendingFiles:
    def __init__(self, storage: LogStorage, tables: TableFormat) -> None:
        """`storage`: where what belongs to the lake, and is no table, is kept."""
        self._tables = tables
        self._notes = Intents(storage.within("copies"))

    def copying(self, table: TableId, source_id: str, found: Found | None) -> str | None:
        """Begin a copy; return the location for the files of a new table; None: keep it, or let the catalog choose."""
        location = found.location if found is not None else self._tables.new_location(table)
        self._notes.write(Intent(source_id, table, location, found is None, time.time()))
        return location if found is None else None

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
        if note.location is not None:
            self._tables.clean_up(
                session, note.location, note.table, source_id, note.began - _CLOCK_SLACK, free=note.ours
            )
        log.info("removed what an interrupted copy or drop of %s had left", note.table)
        self._notes.remove(source_id)
