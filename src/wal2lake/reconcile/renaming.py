"""Renames lake tables with their source tables, one step of one table at a time.

    t ─► t_old, t_new ─► t      t_new waits until t is renamed
    a ─► b, b ─► a              names are swapped: both get temporary names first

A lake table stores the id of its source table, so that a crash between two steps leaves no ambiguity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ..errors import LakeNameTaken
from ..schema import TableId
from ..state import TableRecord
from .desired_tables import interim_name
from .lake_names import LakeNames
from .registry import TableRegistry
from .table_runtime import TableRuntime


class Renaming:
    def __init__(self, lake_names: LakeNames, tables: TableRegistry) -> None:
        self._lake_names, self._tables = lake_names, tables
        self._under_way: dict[int, TableId] = {}

    def __contains__(self, table: TableRuntime) -> bool:
        """Whether the running work on a table is a rename."""
        return table.schema.oid in self._under_way

    def step(self, table: TableRuntime) -> TableId | LakeNameTaken | None:
        """The next name for a table's lake table, or the error that blocks it; None: nothing to do, or not yet."""
        if table.renaming is None or table.rename_failed or table.job is not None or table.is_leaving:
            return None
        return next_name(table, self._tables, self._tables.elsewhere)

    def ready(
        self, pending: Sequence[TableRuntime]
    ) -> tuple[list[TableRuntime], list[tuple[TableRuntime, LakeNameTaken]]]:
        """Tables that can be copied with regard to their names, and those whose names are blocked permanently."""
        holders: dict[TableId, list[TableRuntime]] = {}
        for table in self._tables if pending else ():
            if table.made:
                holders.setdefault(table.target, []).append(table)
        ready, hindered = [], []
        for table in pending:
            answer = self._hindrance(table, holders.get(table.target, ()))
            if isinstance(answer, LakeNameTaken):
                hindered.append((table, answer))
            elif not answer:
                ready.append(table)
        return ready, hindered

    def _hindrance(self, table: TableRuntime, holders: Iterable[TableRuntime]) -> LakeNameTaken | bool:
        """Whether a table can't be copied yet because of its lake table's name; an error if waiting does not help."""
        if table.renaming is not None and not table.rename_failed:
            return True
        holder = holder_of(table, table.target, holders)
        if holder is not None and (holder.dropped_at is not None or holder.renaming is not None):
            return _taken(table, table.target, holder.name) if holder.rename_failed else True
        if holder is not None:
            return _taken(table, table.target, holder.name)
        other = self._tables.elsewhere.get(table.target)
        return False if other is None else _taken(table, table.target, str(other.id))

    def begin(self, table: TableRuntime) -> Callable[[], TableId] | None:
        """The next step of a table as work to run, if there is one."""
        new = self.step(table)
        if not isinstance(new, TableId):
            return None
        self._under_way[table.schema.oid] = new
        return partial(self._lake_names.move, table, new)

    def finish(self, table: TableRuntime, result: object) -> None:
        """`result`: the name that the lake table has, or the error; anything else if the work never began."""
        del self._under_way[table.schema.oid]
        if isinstance(result, BaseException):
            table.not_renamed()
        elif isinstance(result, TableId):
            table.renamed(result)
            self._tables.update_target(table)


def next_name(
    table: TableRuntime, tables: Iterable[TableRuntime], elsewhere: Mapping[TableId, TableRecord]
) -> TableId | LakeNameTaken | None:
    """`elsewhere`: live tables of other groups, by lake table."""
    new, others = table.renaming, [other for other in tables if other is not table]
    assert new is not None
    holder, other = holder_of(table, new, others), elsewhere.get(new)
    if holder is None and other is None:
        return new
    away = interim_name(table.target, table.schema.oid)
    if table.target != away and _is_needed(table.target, others, elsewhere):
        return away
    if holder is not None and (holder.dropped_at is not None or holder.renaming is not None):
        return None
    return _taken(table, new, holder.name if holder is not None else str(other and other.id))


def holder_of(table: TableRuntime, name: TableId, tables: Iterable[TableRuntime]) -> TableRuntime | None:
    """The other table whose lake table has a name."""
    return next((other for other in tables if other is not table and other.target == name and other.made), None)


def _is_needed(name: TableId, others: Sequence[TableRuntime], elsewhere: Mapping[TableId, TableRecord]) -> bool:
    """Whether another table will have a name in the lake."""
    if any(name == (other.renaming or other.target) for other in others):
        return True
    return any(record.id == name != record.lake_table for record in elsewhere.values())


def _taken(table: TableRuntime, name: TableId, holder: str) -> LakeNameTaken:
    return LakeNameTaken(table=table.name, lake_table=str(name), holder=holder)
