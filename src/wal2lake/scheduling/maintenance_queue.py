"""Which lake table is maintained next: small files compacted, old snapshots expired.

Only tables that have committed since they were looked at can have become due, so only those are asked, and all of
them now and then for what falls due by age. One at a time, and never while changes of any table wait for a worker;
but where a table is so far gone that each apply is slower for it, that comes first, and then its changes do.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from ..lake import Lake
from ..lake.model import Applied
from ..reconcile.table_runtime import TableRuntime

RELOOK_SECONDS = 60.0


class MaintenanceQueue:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._changed: dict[int, TableRuntime] = {}
        self._maintained: set[int] = set()
        """tables that had their turn and have committed nothing since"""
        self._looked_at = monotonic()
        self.under_way: TableRuntime | None = None

    def committed(self, table: TableRuntime) -> None:
        """A commit has changed what a lake table is made of."""
        self._changed[table.schema.oid] = table
        self._maintained.discard(table.schema.oid)

    def urgent(self, applied: Applied) -> bool:
        """Whether a table is so far gone that its changes have to wait for it."""
        if self.under_way is not None or applied.schema.oid in self._maintained:
            return False
        work = self._lake.due(applied)
        return work is not None and work.urgent

    def next(self, tables: Iterable[TableRuntime]) -> TableRuntime | None:
        """A table for which there is nothing else to do and whose time has come."""
        if self.under_way is not None:
            return None
        if monotonic() - self._looked_at > RELOOK_SECONDS:
            self._looked_at = monotonic()
            self._changed.update({table.schema.oid: table for table in tables})
        while self._changed:
            table = self._changed.pop(next(iter(self._changed)))
            if table.at_rest and table.applied is not None and self._lake.due(table.applied) is not None:
                return table
        return None

    def begin(self, table: TableRuntime) -> None:
        self.under_way = table

    def finish(self, table: TableRuntime, maintained: Applied | None) -> None:
        """The rows and the position are the same as before, in other files; None: nothing has come of it."""
        self.under_way = None
        self._maintained.add(table.schema.oid)
        if maintained is not None:
            table.maintained(maintained)
            self._changed[table.schema.oid] = table
