"""Whose lake table a name belongs to, when a source table is to have that name in the lake.

A lake table remembers the source table that it was made from by its oid, so that a table which was dropped and created
again, or which got the name of another one, is never taken for the table that had the name before.
"""

from __future__ import annotations

from ..errors import ForeignTable, TableRecreated, Wal2LakeError
from ..lake import Lake
from ..schema import TableId
from ..source.database import Source
from .tables import TableRun
from .wanting import Naming


class Places:
    """Questions to the lake and to the source; they may wait for both."""

    def __init__(self, source: Source, lake: Lake, naming: Naming) -> None:
        self._source, self._lake, self.naming = source, lake, naming

    def former(self, table: TableRun, name: TableId) -> str | None:
        """The id of the dropped source table whose lake table of this name a table takes over; None: there is none.

        Raises TableRecreated if nobody has asked for that, and ForeignTable if the lake table is not a dropped table's.
        """
        holder = self._lake.holder(name)
        if holder is None or holder == self._source.table_id(table.schema.oid):
            return None
        if not self._is_gone(holder):
            raise ForeignTable(table=table.name, lake_table=f"lake.{name}")
        if table.resync_wanted is None and not self.naming.replaces(table.schema):
            raise TableRecreated(table=table.name, lake_table=str(name))
        return holder

    def judged(self, table: TableRun, error: ForeignTable) -> Wal2LakeError | None:
        """What it means that a table's lake table is another one's; None: the table is copied into its place."""
        try:
            return None if self.former(table, table.target) is not None else error
        except Wal2LakeError as reason:
            return reason

    def drop(self, oid: int, name: TableId) -> None:
        """Drop the lake table of a removed table. One of that name that is another live table's stays."""
        holder = self._lake.holder(name)
        if holder is not None and (holder == self._source.table_id(oid) or self._is_gone(holder)):
            self._lake.drop(name, holder)

    def _is_gone(self, source_id: str) -> bool:
        """Whether an id is that of a table of this database which no longer exists."""
        oid = self._source.oid_of(source_id)
        return oid is not None and not self._source.existing([oid])
