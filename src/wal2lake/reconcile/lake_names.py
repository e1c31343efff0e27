"""Whose lake table a name belongs to, when a source table is to have that name in the lake.

A lake table remembers the source table that it was made from by its oid, so that a table which was dropped and created
again, or which got the name of another one, is never taken for the table that had the name before.
"""

from __future__ import annotations

from ..errors import ForeignTable, LakeNameTaken, TableRecreated, Wal2LakeError
from ..lake import Lake
from ..lake.model import Applied
from ..schema import TableId
from ..source.database import Source
from .desired_tables import Naming, aside
from .table_runtime import TableRuntime


class LakeNames:
    """Questions to the lake and to the source, and renames; they may wait for both."""

    def __init__(self, source: Source, lake: Lake, naming: Naming) -> None:
        self._source, self._lake, self.naming = source, lake, naming

    def where(self, table: TableRuntime) -> Applied | None:
        """How a table's lake table stands, under whichever name a rename that was cut off has left it."""
        source_id = self._source.table_id(table.schema.oid)
        try:
            if (answer := self._lake.applied(table.target, source_id)) is not None:
                return answer
            foreign = None
        except ForeignTable as error:
            foreign = error
        for name in (self.naming.renamed(table.schema, table.target, table.spec), self._aside(table)):
            if name is not None and self._lake.has(name, source_id):
                return self._lake.applied(name, source_id)
        if foreign is not None:
            raise foreign
        return None

    def move(self, table: TableRuntime, new: TableId) -> TableId:
        """Give a table's lake table another name, if there is one; the name."""
        former = self._make_room(table, new, asked=table.resync)
        if former is not None:
            self._lake.drop(new, former)
        self._lake.rename(self._source.table_id(table.schema.oid), (table.target, self._aside(table)), new)
        return new

    def take(self, table: TableRuntime) -> str | None:
        """See that a copy can go into a table's lake table; the dropped source table that it takes it over from."""
        source_id = self._source.table_id(table.schema.oid)
        former = self._make_room(table, table.target, asked=table.resync_wanted is not None)
        if table.made and former is None and self._lake.has(self._aside(table), source_id):
            self._lake.rename(source_id, (self._aside(table),), table.target)
        return former

    def _make_room(self, table: TableRuntime, name: TableId, asked: bool) -> str | None:
        """See that a lake table's name is free for a table, or held by a dropped one: the id of that one, or None.

        A lake table whose source table is mirrored no more follows that one's name. Raises TableRecreated if nobody has
        `asked` for the rows of a dropped one to be replaced, LakeNameTaken and ForeignTable.
        """
        holder = self._lake.holder(name)
        if holder is None or holder == self._source.table_id(table.schema.oid):
            return None
        oid = self._source.oid_of(holder)
        if oid is None:
            raise ForeignTable(table=table.name, lake_table=f"lake.{name}")
        replaces = asked or self.naming.replaces(table.schema)
        if self._is_gone(holder):
            if not replaces:
                raise TableRecreated(table=table.name, lake_table=str(name))
            return holder
        now = self._source.names().get(oid, name)
        blocking = self._lake.holder(now)
        if (
            now == name
            or self.naming.on_rename != "rename"
            or (blocking and not (replaces and self._is_gone(blocking)))
        ):
            raise LakeNameTaken(table=table.name, lake_table=str(name), holder=str(now))
        if blocking is not None:
            self._lake.drop(now, blocking)
        self._lake.rename(holder, (name,), now)
        return None

    def judged(self, table: TableRuntime, error: ForeignTable) -> Wal2LakeError | None:
        """What it means that a table's lake table is another one's; None: the table is copied into its place."""
        try:
            holder = self._lake.holder(table.target)
        except Wal2LakeError as reason:
            return reason
        if holder is None or not self._is_gone(holder):
            return error if holder is not None else None
        if self.naming.replaces(table.schema):
            return None
        return TableRecreated(table=table.name, lake_table=str(table.target))

    def drop(self, oid: int, name: TableId) -> None:
        """Drop the lake table of a removed table. One of that name that is another live table's stays."""
        holder, own = self._lake.holder(name), self._source.table_id(oid)
        if holder is None or holder == own or self._is_gone(holder):
            # Without a table, files that an interrupted drop has left are removed.
            self._lake.drop(name, holder or own)

    def _is_gone(self, source_id: str) -> bool:
        """Whether an id is that of a table of this database which no longer exists."""
        oid = self._source.oid_of(source_id)
        return oid is not None and not self._source.existing([oid])

    def _aside(self, table: TableRuntime) -> TableId:
        return aside(table.target, table.schema.oid)
