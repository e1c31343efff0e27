"""What decoding takes and gives: relations as the stream describes them, where their rows go, and decoded cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ..changelog.manifest import Refusal, Truncation
from ..position import Lsn
from ..schema import Identity, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa


class TextNeeded(Exception):
    """The stream has values in binary form that only their text can be read of. To be asked for again, as text."""


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
    identity: Identity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Target:
    """Where the rows of a relation go."""

    schema: TableSchema
    """the mirrored table, the root when the relation is a partition; its columns are found by name"""
    version: int
    leaf: int | None = None
    """oid of the partition when the table is partitioned"""
    predicate: str | None = None
    """the partition's constraint, handed on with a truncation"""


Resolver = Callable[[Relation], Target | None]
"""Answers where a relation's rows go; None where the table is not mirrored. Asked once per Relation message, when the
first change that needs it is decoded."""


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
    """updates that are in it as a delete and an insert"""


class Refusals:
    """Changes of one table that can't be carried: of each kind the earliest, so that a million cost no memory."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str | None], Refusal] = {}

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
        """The same with a commit that was not known before."""
        refusals = Refusals()
        for refusal in self:
            refusals.note(replace(refusal, commit_lsn=commit_lsn))
        return refusals


def _place(refusal: Refusal) -> tuple[int, int]:
    return refusal.commit_lsn, refusal.seq


@dataclass(frozen=True)
class Cut:
    """All complete transactions since the cut before."""

    to_lsn: Lsn
    transactions: int
    commit_ts: datetime | None
    tables: tuple[DecodedTable, ...]
    truncations: dict[int, tuple[Truncation, ...]]
    refusals: dict[int, tuple[Refusal, ...]]
