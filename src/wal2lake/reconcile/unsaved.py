"""What the state store lacks of a table."""

from __future__ import annotations

from dataclasses import dataclass

from ..state import HistoryEntry, TableRecord
from ..state.lifecycle import Transition
from .table_runtime import TableRuntime


@dataclass(frozen=True)
class Unsaved:
    """Changes of a table to write into the state store, as of one moment."""

    table: TableRuntime
    record: TableRecord
    transitions: list[Transition]
    history: list[HistoryEntry]
    upto: int = 0
    """the last manifest that the table had"""
