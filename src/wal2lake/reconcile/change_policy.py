"""How to handle changes of a table's columns, by its configuration. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CopyNeeded, SchemaChanged, SchemaUnclear, Wal2LakeError
from ..evolution import Incompatible, MasksLost, Unclear
from ..schema import TableSchema


@dataclass(frozen=True)
class Policy:
    """The settings for changes of a table's columns."""

    keep_dropped: bool = False
    stop: bool = False
    """stop instead of re-copying"""
    keep_partitions: bool = False
    """rows of dropped partitions stay in the lake"""


FOLLOW = Policy()


def unfollowed(schema: TableSchema, error: Incompatible | Unclear, policy: Policy) -> Wal2LakeError:
    """The error of a table whose change of columns its lake table can't follow."""
    table, cause = str(schema.id), str(error)
    if isinstance(error, MasksLost):
        remedy = "give the table a [tables] section with a mask; mask = {} if nothing of it is to be masked"
        return SchemaUnclear(table=table, question=cause, remedy=remedy)
    if isinstance(error, Unclear):
        if policy.stop:
            return SchemaUnclear(table=table, question=cause)
        cause = f"its columns changed, and the catalog does not show how ({cause})"
    return SchemaChanged(table=table, cause=cause) if policy.stop else CopyNeeded(table=table, cause=cause)
