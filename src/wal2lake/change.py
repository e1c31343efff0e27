"""What a change is, and the names of the columns that a segment adds to a table's own.

A change is ordered by (commit LSN, seq); seq counts inside its transaction, over all tables. LSNs of single rows are
not monotonic across interleaved transactions and are never kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OLD_PREFIX = "old_"


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
