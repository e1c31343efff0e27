"""Who owns a lake table, when a source table needs its name.

A lake table stores the oid of its source table, so that a table that was dropped and created again, or that got the
name of another one, is never taken for the table that had the name before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..errors import ForeignTable, LakeNameTaken, TableRecreated, Wal2LakeError
from ..lake import Applied, LakeTables
from ..schema import TableId
from ..source import SourceDatabase
from .desired_tables import Naming, interim_name
from .table_runtime import TableRuntime

log = logging.getLogger(__name__)


class LakeNames:
    """Queries on the lake and the source, and renames; they may wait for both."""

    def __init__(
        self, source: SourceDatabase, lake: LakeTables, naming: Naming, target_of: Callable[[int], TableId | None]
    ) -> None:  # fmt: skip
        """`target_of`: the lake table that a mirrored table has at the moment."""
        self._source, self._lake, self.naming, self._target_of = source, lake, naming, target_of

    def begin(self, table: TableRuntime) -> None:
        """Set the name of the lake table that a table is to have, if it has none.

        A copy may have been committed although its answer is lost: then that lake table is renamed like any other.
        """
        new = self.naming.first(table.schema.id, table.spec)
        if new == table.target:
            return
        source_id = self._source.table_id(table.schema.oid)
        try:
            for name in (table.target, self._interim_name(table)):
                if self._lake.has(name, source_id):
                    return table.found_made(name)
        except Wal2LakeError as error:
            log.warning("%s: its lake table %s could not be looked for: %s", table.name, table.target, error)
            return
        table.set_target(new)

    def where(self, table: TableRuntime) -> Applied | None:
        """The position of a table's lake table, also under a name that an interrupted rename has left."""
        source_id = self._source.table_id(table.schema.oid)
        try:
            if (answer := self._lake.applied(table.target, source_id)) is not None:
                return answer
            foreign = None
        except ForeignTable as error:
            foreign = error
        for name in (self.naming.renamed(table.schema, table.target, table.spec), self._interim_name(table)):
            if name is not None and self._lake.has(name, source_id):
                return self._lake.applied(name, source_id)
        if foreign is not None:
            raise foreign
        return None

    def move(self, table: TableRuntime, new: TableId) -> TableId:
        """Rename a table's lake table, if there is one; return the name."""
        former = self._make_room(table, new, requested=table.resync)
        if former is not None:
            self._lake.drop(new, former)
        self._lake.rename(self._source.table_id(table.schema.oid), (table.target, self._interim_name(table)), new)
        return new

    def take(self, table: TableRuntime) -> str | None:
        """Make sure that a copy can use a table's lake table; return the dropped source table that it replaces."""
        source_id = self._source.table_id(table.schema.oid)
        former = self._make_room(table, table.target, requested=table.copy_requested_at is not None)
        if table.made and former is None and self._lake.has(self._interim_name(table), source_id):
            self._lake.rename(source_id, (self._interim_name(table),), table.target)
        return former

    def _make_room(self, table: TableRuntime, name: TableId, requested: bool) -> str | None:
        """Make sure that a lake table's name is free, or held by a table that needs it no more, whose id is returned:
        a dropped one, or one that was not mirrored for a while, and has another lake table.

        Any other lake table whose source table is not mirrored any more is renamed to its present name.
        Raises TableRecreated if nobody has `requested` to replace the rows of a dropped table, LakeNameTaken and
        ForeignTable.
        """
        holder = self._lake.holder(name)
        if holder is None or holder == self._source.table_id(table.schema.oid):
            return None
        oid = self._source.oid_of(holder)
        if oid is None:
            raise ForeignTable(table=table.name, lake_table=f"lake.{name}")
        replaces = requested or self.naming.replaces(table.schema)
        if self._was_dropped(holder):
            if not replaces:
                raise TableRecreated(table=table.name, lake_table=str(name))
            return holder
        now = self._source.names().get(oid, name)
        blocking = self._lake.holder(now)
        if replaces and self._has_another(holder, name):
            return holder
        if (
            now == name
            or self.naming.on_rename != "rename"
            or (blocking and not (replaces and self._was_dropped(blocking)))
        ):
            raise LakeNameTaken(table=table.name, lake_table=str(name), holder=str(now))
        if blocking is not None:
            self._lake.drop(now, blocking)
        self._lake.rename(holder, (name,), now)
        return None

    def judge_foreign(self, table: TableRuntime, error: ForeignTable) -> Wal2LakeError | None:
        """The error if a table's lake table belongs to another one; None: the table is copied into it."""
        try:
            holder = self._lake.holder(table.target)
        except Wal2LakeError as reason:
            return reason
        if holder is None:
            return None
        replaces = self.naming.replaces(table.schema)
        if not self._was_dropped(holder):
            return None if replaces and self._has_another(holder, table.target) else error
        if replaces:
            return None
        return TableRecreated(table=table.name, lake_table=str(table.target))

    def drop(self, oid: int, name: TableId) -> None:
        """Drop the lake table of a removed table. A table of that name that belongs to another live table stays."""
        holder, own = self._lake.holder(name), self._source.table_id(oid)
        if holder is None or holder == own or self._was_dropped(holder):
            # Without a table, files of an interrupted drop are removed.
            self._lake.drop(name, holder or own)

    def _was_dropped(self, source_id: str) -> bool:
        """Whether an id is that of a table of this database that does not exist any more."""
        oid = self._source.oid_of(source_id)
        return oid is not None and not self._source.existing([oid])

    def _has_another(self, source_id: str, name: TableId) -> bool:
        """Whether a source table has another lake table, by its present name or by what is known of it."""
        oid = self._source.oid_of(source_id)
        if oid is None:
            return False
        others = {self._source.names().get(oid), self._target_of(oid)}
        return any(self._lake.holder(other) == source_id for other in others if other not in (None, name))

    def _interim_name(self, table: TableRuntime) -> TableId:
        return interim_name(table.target, table.schema.oid)
