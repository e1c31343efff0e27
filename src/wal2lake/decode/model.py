"""Inputs and outputs of decoding: relations as the stream describes them, their targets, and decoded transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ..change import Refusal, Truncation
from ..position import Lsn
from ..schema import Bounds, Membership, ReplicaIdentity, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa


class TextNeeded(Exception):
    """Values in binary form that can be read from their text only, so that the stream must be reopened with text."""


@dataclass(frozen=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    key: bool
    """part of the replica identity"""


@dataclass(frozen=True)
class Relation:
    """A table as a Relation message describes it: for a partition, the partition."""

    oid: int
    namespace: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Target:
    """The table that the rows of a relation go to."""

    schema: TableSchema
    """the mirrored table: the root if the relation is a partition; its columns are found by name"""
    version: int
    leaf: int | None = None
    """oid of the partition when the table is partitioned"""
    bounds: Bounds | None = None
    """of the partition, stored with a truncation; None: unknown"""
    levels: tuple[Membership, ...] = ()
    """of the partition: the membership that the bounds are of"""


ResolveRelation = Callable[[Relation, Lsn], Target | None]
"""Returns the target of a relation, or None if it is not mirrored. Called once per Relation message, when the first
change that needs it is decoded, with the commit LSN of that change."""


@dataclass(frozen=True)
class DecodedTable:
    """Rows of one table and one schema version, ordered by (commit LSN, seq): its columns, then `schema.meta`'s."""

    schema: TableSchema
    version: int
    batch: pa.RecordBatch
    inserts: int
    updates: int
    deletes: int
    key_changes: int
    unchanged: int
    split: int = 0
    """updates that are a delete and an insert in it"""


class Refusals:
    """Changes of one table that can't be carried: only the earliest of each kind, so that memory is bounded."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str | None], Refusal] = {}

    @classmethod
    def of(cls, refusal: Refusal) -> Refusals:
        refusals = cls()
        refusals.note(refusal)
        return refusals

    def __iter__(self) -> Iterator[Refusal]:
        return iter(sorted(self._kept.values(), key=_place))

    def __bool__(self) -> bool:
        return bool(self._kept)

    def note(self, refusal: Refusal) -> None:
        kind = refusal.error, refusal.fields.get("column")
        self._kept[kind] = min(refusal, self._kept.get(kind, refusal), key=_place)

    def add(self, others: Refusals) -> None:
        for refusal in others:
            self.note(refusal)

    def stamped(self, commit_lsn: Lsn) -> Refusals:
        """The same with the commit, which was not known before."""
        refusals = Refusals()
        for refusal in self:
            refusals.note(replace(refusal, commit_lsn=commit_lsn))
        return refusals


def _place(refusal: Refusal) -> tuple[int, int]:
    return refusal.commit_lsn, refusal.seq


@dataclass(frozen=True)
class Boundary:
    """The end of complete transactions, where a manifest can end, and what came since the boundary before."""

    to_lsn: Lsn
    transactions: int
    commit_ts: datetime | None
    truncations: dict[int, tuple[Truncation, ...]]
    """by table"""
    refusals: dict[int, tuple[Refusal, ...]]
    """changes that the source could not tell, by table; those of rows come with the rows"""
