"""Decides which kind of commit applies a batch, from the facts of the batch. Pure, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ...change import Truncation
from ...errors import CopyNeeded
from ...evolution import changes
from ...schema import Bounds, TableSchema
from ..model import Batch
from .partition import Untranslatable, within

BROADCAST_KEYS = 200_000
"""maximum number of keys that are broadcast; rows are never broadcast"""
BROADCAST_HASHES = 500_000
"""the same for hashes, which have 8 bytes"""


class How(Enum):
    """The kind of commit."""

    NOTHING = auto()
    APPEND = auto()
    REPLACE = auto()
    """replace all rows by those after a truncation"""
    MERGE = auto()
    """match by key"""
    MATCH = auto()
    """match whole rows, with multiplicity"""


@dataclass(frozen=True)
class CommitPlan:
    how: How
    after: tuple[int, int] | None = None
    """the last truncation of the whole table; only changes after this (commit LSN, seq) are applied"""
    emptied: tuple[Truncation, ...] = ()
    """truncations of single partitions after it"""
    gone: tuple[str, ...] = ()
    """conditions for rows of the lake table that those truncations removed"""
    only_inserts: bool = False
    may_insert: bool = True
    may_delete: bool = True
    key_changes: bool = False
    unchanged: bool = False
    rows: int = 0
    """number of changes and truncations in the batch"""
    sought: int = 0
    """stored rows that are looked up: those deleted as a whole, or with unchanged TOAST values"""

    @property
    def few(self) -> bool:
        """Whether the keys of all changes can be broadcast."""
        return self.rows <= BROADCAST_KEYS

    @property
    def join_hint(self) -> str:
        """The join hint for finding the stored rows."""
        return (
            "BROADCAST" if self.sought <= (BROADCAST_HASHES if self.how is How.MATCH else BROADCAST_KEYS) else "MERGE"
        )


def plan_commit(before: TableSchema, batch: Batch) -> CommitPlan:
    """Raises CopyNeeded if the rows of a truncated partition are unknown."""
    schema = batch.schema or before
    truncations = [t for t in batch.truncations if batch.counts(t)]
    whole = [(t.commit_lsn, t.seq) for t in truncations if t.relation is None]
    after = max(whole) if whole else None
    emptied = tuple(t for t in truncations if t.relation is not None and (t.commit_lsn, t.seq) > (after or (0, -1)))
    if emptied and changes(before, schema).renamed:
        raise CopyNeeded(table=str(schema.id), cause="TRUNCATE of a partition beside a column that was renamed")
    facts = [segment for _, segment in batch.segments]
    if not facts and not truncations:
        return CommitPlan(How.NOTHING)
    only_inserts = all(segment.only_inserts for segment in facts)
    if after is not None:
        how = How.REPLACE
    elif only_inserts and not emptied:
        how = How.APPEND
    else:
        how = How.MERGE if schema.key else How.MATCH
    return CommitPlan(
        how,
        after,
        emptied,
        gone=() if after is not None else _gone(schema, emptied),
        only_inserts=only_inserts,
        may_insert=any(segment.inserts or segment.key_changes for segment in facts),
        may_delete=any(segment.updates or segment.deletes for segment in facts),
        key_changes=any(segment.key_changes for segment in facts),
        unchanged=any(segment.unchanged for segment in facts),
        rows=batch.rows,
        sought=sum(segment.deletes if how is How.MATCH else segment.unchanged for segment in facts),
    )


def _gone(schema: TableSchema, emptied: tuple[Truncation, ...]) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(within(_bounds(truncation), schema) for truncation in emptied))
    except Untranslatable:
        raise CopyNeeded(
            table=str(schema.id), cause="TRUNCATE of a partition whose rows can't be identified by its bounds"
        ) from None


def _bounds(truncation: Truncation) -> Bounds | None:
    """Names alone do not identify columns: others may have had them when the rows were written."""
    if truncation.predicate is None or truncation.columns is None:
        return None
    return Bounds(truncation.predicate, truncation.columns)
