"""Which commit brings a batch of changes into its table: a judgement on the facts of the batch alone, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ..changelog.manifest import Truncation
from ..errors import CopyNeeded
from ..evolution import changes
from ..schema import TableSchema
from .model import Batch
from .partition import Untranslatable, translate

BROADCAST_KEYS = 200_000
"""keys that are sent to every task at most; rows themselves never are"""
BROADCAST_HASHES = 500_000
"""the same of hashes, which have 8 bytes"""


class How(Enum):
    """What kind of commit brings a batch into the table."""

    NOTHING = auto()
    APPEND = auto()
    REPLACE = auto()
    """all rows of the table give way to what is left after a truncation"""
    MERGE = auto()
    """by key"""
    MATCH = auto()
    """by whole rows, with multiplicity"""


@dataclass(frozen=True)
class Plan:
    how: How
    after: tuple[int, int] | None = None
    """only changes after this (commit LSN, seq) count: the last truncation of the whole table"""
    emptied: tuple[Truncation, ...] = ()
    """truncations of single partitions that count"""
    gone: tuple[str, ...] = ()
    """conditions on rows of the lake table that those truncations removed"""
    only_inserts: bool = False
    may_insert: bool = True
    may_delete: bool = True
    key_changes: bool = False
    unchanged: bool = False
    rows: int = 0
    """how many there are in the batch, of changes and truncations"""
    sought: int = 0
    """stored rows that are looked for: those that are deleted as a whole, or have values that were not sent"""

    @property
    def few(self) -> bool:
        """Whether keys of all changes fit into the memory of every task."""
        return self.rows <= BROADCAST_KEYS

    @property
    def join_hint(self) -> str:
        """How Spark is to find the stored rows."""
        return (
            "BROADCAST" if self.sought <= (BROADCAST_HASHES if self.how is How.MATCH else BROADCAST_KEYS) else "MERGE"
        )


def plan(before: TableSchema, batch: Batch) -> Plan:
    """Raises CopyNeeded if the rows of a truncated partition can't be told from their columns."""
    schema = batch.schema or before
    skip = batch.skip_before or 0
    truncations = [t for t in batch.truncations if t.commit_lsn >= skip]
    whole = [(t.commit_lsn, t.seq) for t in truncations if t.relation is None]
    after = max(whole) if whole else None
    emptied = tuple(t for t in truncations if t.relation is not None and (t.commit_lsn, t.seq) > (after or (0, -1)))
    if emptied and changes(before, schema).renamed:
        raise CopyNeeded(table=str(schema.id), cause="TRUNCATE of a partition beside a column that was renamed")
    facts = [segment for _, segment in batch.segments]
    if not facts and not truncations:
        return Plan(How.NOTHING)
    only_inserts = all(segment.only_inserts for segment in facts)
    if after is not None:
        how = How.REPLACE
    elif only_inserts and not emptied:
        how = How.APPEND
    else:
        how = How.MERGE if schema.key else How.MATCH
    return Plan(
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
        return tuple(dict.fromkeys(translate(truncation.predicate, schema) for truncation in emptied))
    except Untranslatable:
        raise CopyNeeded(
            table=str(schema.id), cause="TRUNCATE of a partition whose rows can't be told from their columns"
        ) from None
