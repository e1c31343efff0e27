"""Buffers of the scripted PostgreSQL that triggers fill: what they hold, and what a statement adds.

A statement adds whole old and new rows to the buffer of the mirrored table, TRUNCATE a mark, and another mark says that
the table has not the columns any more that the buffer was made for. Rows are there when their transaction commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation.postgres_tables import ScriptedTable, State, Text
from wal2lake.position import Lsn
from wal2lake.source.triggers.definition import Buffer, BufferColumn


@dataclass(frozen=True)
class BufferRow:
    xid: int
    op: str
    """I, D, T (emptied) or X (to be re-copied)"""
    values: tuple[Text, ...] = ()


@dataclass
class ScriptedBuffer:
    buffer: Buffer
    rows: list[BufferRow] = field(default_factory=list)


@dataclass
class ScriptedLane:
    there: bool = False
    """whether the lane has begun; its triggers may be there before and after that"""
    position: Lsn | None = None
    asked: str | None = None
    exported: str | None = None
    asked_position: Lsn | None = None
    answered: str | None = None
    granted: bool = False
    buffers: dict[int, list[ScriptedBuffer]] = field(default_factory=dict)
    """of each table, older ones first"""


@dataclass
class Triggers:
    """All of a server: its lanes, and the tables that have triggers."""

    lanes: dict[str, ScriptedLane] = field(default_factory=dict)
    installed: dict[int, ScriptedBuffer] = field(default_factory=dict)
    """what the triggers of a table fill"""

    def captured(
        self, state: State, heap: ScriptedTable, op: str, row: Mapping[int, Text] | None
    ) -> tuple[ScriptedBuffer, BufferRow] | None:
        """What a row of a statement adds to the buffer of its table, without a transaction."""
        root = state.root(heap)
        if (filled := self.installed.get(root.oid)) is None:
            return None
        if columns_of(root) != filled.buffer.columns:
            return filled, BufferRow(0, "X")
        if row is None:
            return filled, BufferRow(0, "T" if heap.oid == root.oid else "X")
        values = tuple(heap.value(row, heap.column(one.name)) for one in filled.buffer.columns)
        return filled, BufferRow(0, op, values)

    def buffers(self, lane: str) -> list[ScriptedBuffer]:
        found = self.lanes.get(lane)
        return [one for some in found.buffers.values() for one in some] if found is not None else []


def columns_of(table: ScriptedTable) -> tuple[BufferColumn, ...]:
    return tuple(
        BufferColumn(column.name, column.type.type.oid, column.type.typmod, column.type.type.name, "textout")
        for column in table.live
    )
