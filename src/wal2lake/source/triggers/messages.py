"""The few messages of a drain that are made one by one: its transaction, its relations, truncations."""

from __future__ import annotations

import struct

from ...decode import refused_change
from ...schema import TableId
from .definition import BufferColumn

_XLOG = b"w" + bytes(24)
_FULL = b"f"
_UNCAPTURED = (
    "a partition was truncated, or rows were written while columns or partitions differed from what the triggers know"
)


def begin(commit_lsn: int, us: int, xid: int) -> bytes:
    return _XLOG + b"B" + struct.pack(">QqI", commit_lsn, us, xid)


def commit(commit_lsn: int, end_lsn: int, us: int) -> bytes:
    return _XLOG + b"C\0" + struct.pack(">QQq", commit_lsn, end_lsn, us)


def relation(oid: int, id: TableId, columns: tuple[BufferColumn, ...]) -> bytes:
    """A table whose rows are identified as a whole, as under REPLICA IDENTITY FULL."""
    body = b"R" + struct.pack(">I", oid) + id.schema.encode() + b"\0" + id.name.encode() + b"\0"
    body += _FULL + struct.pack(">H", len(columns))
    for column in columns:
        body += b"\1" + column.name.encode() + b"\0" + struct.pack(">Ii", column.type_oid, column.typmod)
    return _XLOG + body


def truncate(oid: int) -> bytes:
    return _XLOG + b"T" + struct.pack(">IBI", 1, 0, oid)


def copy_needed(oid: int) -> bytes:
    """Rows were written that the buffer does not have: the table has to be re-copied."""
    return _XLOG + refused_change(oid, "CopyNeeded", cause=_UNCAPTURED)
