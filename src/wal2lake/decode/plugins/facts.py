"""What the catalog says of relations at one moment, and the transactions that each fact is from.

A row of the catalog is replaced whenever it changes, and says which transaction wrote it. So what a row says is known
to have held from the end of that transaction until the moment at which it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...schema import ReplicaIdentity
from ...visibility import PgSnapshot
from .told import TableName


@dataclass(frozen=True)
class SlotMark:
    """Every transaction below `xid` had ended in the log before `lsn`, and all that is still to come ends after it."""

    xid: int
    lsn: int


@dataclass(frozen=True)
class ColumnFact:
    number: int
    name: str
    type_oid: int
    type_name: str
    typmod: int
    generated: str
    dropped: bool
    written: int
    """by which transaction"""

    def is_of(self, type: str | int) -> bool:
        return type in (self.type_oid, self.type_name)

    def sent(self, server_version: int) -> bool:
        """Whether pgoutput would send it."""
        return not self.generated or (self.generated == "s" and server_version >= 180000)


@dataclass(frozen=True)
class RelationFacts:
    oid: int
    table: TableName
    kind: str
    identity: ReplicaIdentity
    columns: tuple[ColumnFact, ...]
    """by their numbers, with those that were dropped"""
    key: tuple[int, ...]
    """numbers of the columns of its replica identity; none where it has no index for it"""
    key_written: int
    """by which transaction the index of the key is described as it is; 0: there is none"""
    published: frozenset[str]
    """I, U, D and T, as far as publications of the stream have them"""
    memberships: tuple[int, ...]
    """the transactions that put it into them"""
    written: int
    """by which transaction its entry in pg_class is"""
    named: int
    """by which transaction its name and its schema are"""
    schema_named: int
    """by which transaction the name of its schema is"""

    @cached_property
    def live(self) -> tuple[ColumnFact, ...]:
        return tuple(column for column in self.columns if not column.dropped)


@dataclass(frozen=True)
class Reading:
    """Answers of one moment. A table that was asked for and is not in it does not exist."""

    snapshot: PgSnapshot
    mark: SlotMark | None
    tables: Mapping[TableName, RelationFacts]
    asked: frozenset[TableName]
    published: tuple[RelationFacts, ...] | None = None
    """every relation that publications of the stream have, if they were asked for"""
