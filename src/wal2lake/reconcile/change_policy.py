"""What becomes of a table whose columns change at the source, by its configuration. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CopyNeeded, SchemaChanged, SchemaUnclear, Wal2LakeError
from ..evolution import Incompatible, MasksLost, Unclear
from ..schema import TableSchema


@dataclass(frozen=True)
class Policy:
    """What the configuration says of a table whose columns change."""

    keep_dropped: bool = False
    stop: bool = False
    """wait for somebody instead of re-copying"""
    keep_partitions: bool = False
    """rows of partitions that went stay in the lake"""


FOLLOW = Policy()


def unfollowed(schema: TableSchema, error: Incompatible | Unclear, policy: Policy) -> Wal2LakeError:
    """What becomes of a table whose change of columns its lake table can't follow."""
    table, cause = str(schema.id), str(error)
    if isinstance(error, MasksLost):
        remedy = (
            "give the table a [tables] section with a mask of its own; mask = {} if nothing is to be masked any more"
        )
        return SchemaUnclear(table=table, question=cause, remedy=remedy)
    if isinstance(error, Unclear):
        if policy.stop:
            return SchemaUnclear(table=table, question=cause)
        cause = f"its columns changed, and it can't be told how ({cause})"
    return SchemaChanged(table=table, cause=cause) if policy.stop else CopyNeeded(table=table, cause=cause)
