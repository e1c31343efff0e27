"""The advisory locks of the state store. They belong to the server, so they work without a table."""

from __future__ import annotations

import zlib

from .connection import Session
from .queries import query

_CLASS = zlib.crc32(b"wal2lake") & 0x7FFFFFFF
CREATING, CLAIMING, OWNING, COUNTING = 0, 1, 2, 3
"""for what only one process may do at a time: migrate, claim tables, set the owner, assign epochs"""


def lock_until_commit(connection: Session, what: int) -> None:
    connection.execute(query("lock_until_commit"), {"class": _CLASS, "object": what})


def group_key(group: str) -> dict[str, int]:
    """The two numbers of the lock of a group."""
    return {"class": _CLASS, "object": zlib.crc32(group.encode()) & 0x7FFFFFFF}
