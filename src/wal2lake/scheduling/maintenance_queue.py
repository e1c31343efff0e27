"""Decides which lake table is maintained next: compaction and expiration.

Only tables with commits since their last check are checked, and from time to time all of them, because work also
becomes due by age. One at a time, and never while changes of any table wait for a worker, except for a table whose
applies are slowed down by missing maintenance: it is maintained first, and then its changes are applied.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..clock import Clock
from ..lake import Applied, LakeTables
from ..reconcile import TableRuntime

RELOOK_SECONDS = 60.0


class MaintenanceQueue:
    def __init__(self, lake: LakeTables, clock: Clock) -> None:
        self._lake, self._clock = lake, clock
        self._changed: dict[int, TableRuntime] = {}
        self._maintained: set[int] = set()
        """tables that were checked and have had no commit since"""
        self._looked_at = self._clock.monotonic()
        self.under_way: TableRuntime | None = None

    def committed(self, table: TableRuntime) -> None:
        """A lake table has a new commit."""
        self._changed[table.schema.oid] = table
        self._maintained.discard(table.schema.oid)

    def urgent(self, applied: Applied) -> bool:
        """Whether maintenance of a table comes before its changes."""
        if self.under_way is not None or applied.schema.oid in self._maintained:
            return False
        work = self._lake.due(applied)
        return work is not None and work.urgent

    def next(self, tables: Iterable[TableRuntime]) -> TableRuntime | None:
        """A table without other work whose maintenance is due."""
        if self.under_way is not None:
            return None
        if self._clock.monotonic() - self._looked_at > RELOOK_SECONDS:
            self._looked_at = self._clock.monotonic()
            self._changed.update({table.schema.oid: table for table in tables})
        while self._changed:
            table = self._changed.pop(next(iter(self._changed)))
            if table.is_idle and table.applied is not None and self._lake.due(table.applied) is not None:
                return table
        return None

    def begin(self, table: TableRuntime) -> None:
        self.under_way = table

    def finish(self, table: TableRuntime, maintained: Applied | None) -> None:
        """Rows and position are the same, in other files; None: it failed."""
        self.under_way = None
        self._maintained.add(table.schema.oid)
        if maintained is not None:
            table.maintained(maintained)
            self._changed[table.schema.oid] = table
