"""Snapshots of PostgreSQL: which transactions they see, and which of them a copy holds that was made at one. Pure.

The snapshot of an ordinary session equals no position: a transaction that waits for a synchronous standby has written
its commit record and is invisible all the same. So a transaction counts as copied if and only if the snapshot sees it,
whatever its commit LSN. Beyond `until`, which was read after the snapshot was taken, nothing can be visible in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from .position import Lsn

_XIDS = 2**32


@dataclass(frozen=True)
class PgSnapshot:
    """A pg_snapshot: it sees the transactions below `xmin`, and those below `xmax` that are not `running`.

    Transactions have 64 bits, with the epoch.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """What PostgreSQL writes, `xmin:xmax:xid,xid,…`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    def sees(self, xid: int) -> bool:
        """Whether a transaction that is known to have committed is visible."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def includes(self, other: PgSnapshot) -> bool:
        """Whether it sees every transaction that the other one sees."""
        if other.xmax > self.xmax and any(other.sees(xid) for xid in range(self.xmax, other.xmax)):
            return False
        return not any(other.sees(xid) for xid in self.running)

    def begun_before(self, xid: int) -> bool:
        """Whether a transaction had a number already; without one it has written nothing."""
        return xid < self.xmax

    def full(self, xid: int) -> int:
        """A transaction of the stream, which has 32 bits, with all its bits."""
        return max(self.xmax + distance(xid, self.xmax), 0)

    def writer(self, xid: int) -> int:
        """The transaction that wrote a row of the catalog which is seen, with all its bits."""
        full = self.xmax - self.xmax % _XIDS + xid
        return max(full - _XIDS, 0) if full >= self.xmax else full


@dataclass(frozen=True)
class Visibility:
    """What a copy holds that was made at a snapshot."""

    snapshot: PgSnapshot
    until: Lsn
    """no transaction with this commit LSN or a higher one is visible"""

    @classmethod
    def of(cls, snapshot: str, until: Lsn) -> Self:
        """`snapshot`: as PostgreSQL writes it."""
        return cls(PgSnapshot.parse(snapshot), until)

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `str` has written."""
        snapshot, _, until = text.partition(" ")
        return cls.of(snapshot, Lsn.parse(until))

    def __str__(self) -> str:
        return f"{self.snapshot} {self.until}"

    def sees(self, commit_lsn: int, xid: int) -> bool:
        """Whether a committed transaction of the stream is visible. `xid` has 32 bits, as the stream has it."""
        return commit_lsn < self.until and self.snapshot.sees(self.snapshot.full(xid))

    def sql(self, commit_lsn: str, xid: str) -> str:
        """The same as a condition of Spark SQL on two columns of type bigint."""
        xmin, xmax, half = self.snapshot.xmin, self.snapshot.xmax, _XIDS // 2
        away = f"(pmod({xid} - {xmax}L + {half}L, {_XIDS}L) - {half}L)"
        running = ", ".join(f"{one - xmax}L" for one in sorted(self.snapshot.running))
        below = f"{away} < 0" + (f" AND {away} NOT IN ({running})" if running else "")
        return f"({commit_lsn} < {int(self.until)}L AND ({away} < {xmin - xmax}L OR ({below})))"


def distance(xid: int, other: int) -> int:
    """How far a 32-bit xid is from another one with its epoch; they are less than 2^31 apart."""
    return (xid - other + _XIDS // 2) % _XIDS - _XIDS // 2
