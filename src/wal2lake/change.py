"""What a change is, and the names of the columns that a segment adds to a table's own.

A change is ordered by (commit LSN, seq); seq counts inside its transaction, over all tables. LSNs of single rows are
not monotonic across interleaved transactions and are never kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .position import Lsn

OLD_PREFIX = "old_"
MARKED_LSN = 0x7A11_57EA_3D5C_96B1
"""placeholder for the commit LSN of an open transaction"""
MARKED_US = 0x0B24_68AC_E135_79D7
"""placeholder for its commit time, in microseconds since 1970; outside of PostgreSQL's range"""


@dataclass(frozen=True)
class MetaNames:
    """Names of a segment's own columns: `_op` and its like, with more underscores where the table has such a column.

    - op: string, one of I, U, D
    - commit_lsn, seq: long; commit_ts: timestamp in UTC; xid: long
    - unchanged: list of int, positions in the table's columns that were sent as unchanged TOAST; null when none was
    - relation: long, the oid of the partition that the row is in; null where the table is not partitioned
    - old key columns are `<prefix>old_<name>`, null unless the key changed; `key_changed` (boolean) says so
    """

    prefix: str

    @classmethod
    def beside(cls, columns: Iterable[str]) -> MetaNames:
        taken = {name.lower() for name in columns}
        prefix = "_"
        while any(cls(prefix).clashes(name) for name in taken):
            prefix += "_"
        return cls(prefix)

    def clashes(self, name: str) -> bool:
        return name in self.plain or name.startswith(self.prefix + OLD_PREFIX)

    @property
    def plain(self) -> tuple[str, ...]:
        return (
            self.op, self.commit_lsn, self.seq, self.commit_ts, self.xid, self.unchanged, self.relation,
            self.key_changed,
        )  # fmt: skip

    @property
    def op(self) -> str:
        return self.prefix + "op"

    @property
    def commit_lsn(self) -> str:
        return self.prefix + "commit_lsn"

    @property
    def seq(self) -> str:
        return self.prefix + "seq"

    @property
    def commit_ts(self) -> str:
        return self.prefix + "commit_ts"

    @property
    def xid(self) -> str:
        return self.prefix + "xid"

    @property
    def unchanged(self) -> str:
        return self.prefix + "unchanged"

    @property
    def relation(self) -> str:
        return self.prefix + "relation"

    @property
    def key_changed(self) -> str:
        return self.prefix + "key_changed"

    def old(self, key_column: str) -> str:
        return self.prefix + OLD_PREFIX + key_column


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE: rows that came before (commit_lsn, seq) are gone."""

    commit_lsn: Lsn
    seq: int
    relation: int | None = None
    """of a partitioned table: the oid of the one partition that was emptied; None: the whole table"""
    predicate: str | None = None
    """PostgreSQL's constraint of that partition (pg_get_partition_constraintdef); None if it is unknown"""
    xid: int | None = field(default=None, compare=False)
    """of its transaction, 32 bits; None in change logs of earlier versions"""
    columns: tuple[tuple[str, int], ...] | None = None
    """names and attribute numbers of the columns in `predicate`; None in change logs of earlier versions"""


@dataclass(frozen=True)
class Refusal:
    """A change that can't be carried: nothing of the table is applied from its transaction on."""

    commit_lsn: Lsn
    seq: int
    error: str
    """name of a class in errors.py"""
    fields: Mapping[str, Any] = field(default_factory=dict)
    xid: int | None = field(default=None, compare=False)
    """of its transaction, 32 bits; None in change logs of earlier versions"""
