"""What an output plugin tells of a transaction, in one vocabulary for all of them.

A change names its table and its columns by the names that they had when it was written, and nothing by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class TableName(NamedTuple):
    schema: str
    name: str


class Unchanged(Enum):
    """A value that was left out, because it is stored out of line and an update has not touched it."""

    TOAST = "toast"


class Ambiguous(Enum):
    """A value whose form is that of other values, too."""

    NULL = "NULL, NaN, Infinity or -Infinity"


Value = bytes | None | Unchanged | Ambiguous
"""PostgreSQL's text of it; None: NULL"""


class Cell(NamedTuple):
    column: str
    type: str | int
    """what format_type makes of it without a typmod, or its oid"""
    value: Value


@dataclass(frozen=True, slots=True)
class CommitPoint:
    commit_lsn: int
    end_lsn: int
    commit_us: int
    """microseconds since 2000-01-01 UTC"""


@dataclass(frozen=True, slots=True)
class Began:
    xid: int
    commit: CommitPoint | None
    """where the plugin tells it at the beginning already"""


@dataclass(frozen=True, slots=True)
class Ended:
    xid: int
    commit_us: int
    commit: CommitPoint | None
    """None: the plugin does not tell where the commit record begins"""


@dataclass(frozen=True, slots=True)
class RowTold:
    kind: str
    """I, U or D"""
    table: TableName
    new: tuple[Cell, ...]
    old: tuple[Cell, ...] | None
    """of an update or a delete; None if the plugin has nothing of the old row"""
    complete: bool
    """whether `new` has every column that the table had"""


@dataclass(frozen=True, slots=True)
class Truncated:
    tables: tuple[TableName, ...]


Told = Began | Ended | RowTold | Truncated


class NotUnderstood(Exception):
    """A message that is not in the plugin's format. It says nothing of its contents, which may be a row's values."""


def microseconds(text: str) -> int:
    """A time as timestamptz_to_str writes it, in microseconds since 2000."""
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
