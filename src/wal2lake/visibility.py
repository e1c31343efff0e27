"""Which transactions a copy holds that was made at the snapshot of an ordinary session.

Such a snapshot equals no position: a transaction that waits for a synchronous standby has written its commit record
and is invisible all the same. So a transaction counts as copied if and only if the snapshot sees it, whatever its
commit LSN. Beyond `until`, which was read after the snapshot was taken, nothing can be visible in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from .position import Lsn

_XIDS = 2**32


@dataclass(frozen=True)
class Visibility:
    """A PostgreSQL snapshot: it sees the transactions below `xmin`, and those below `xmax` that are not `running`."""

    xmin: int
    xmax: int
    """both with the epoch, as pg_current_snapshot() has them"""
    running: frozenset[int]
    until: Lsn
    """no transaction with this commit LSN or a higher one is visible"""

    @classmethod
    def of(cls, snapshot: str, until: Lsn) -> Self:
        """`snapshot`: as PostgreSQL writes a pg_snapshot, `xmin:xmax:xid,xid,…`."""
        xmin, xmax, running = snapshot.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))), until)

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `str` has written."""
        snapshot, _, until = text.partition(" ")
        return cls.of(snapshot, Lsn.parse(until))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))} {self.until}"

    def sees(self, commit_lsn: int, xid: int) -> bool:
        """Whether a committed transaction of the stream is visible. `xid` has 32 bits, as the stream has it."""
        if commit_lsn >= self.until:
            return False
        full = self.xmax + distance(xid, self.xmax)
        return full < self.xmin or (full < self.xmax and full not in self.running)

    def sql(self, commit_lsn: str, xid: str) -> str:
        """The same as a condition of Spark SQL on two columns of type bigint."""
        half = _XIDS // 2
        away = f"(pmod({xid} - {self.xmax}L + {half}L, {_XIDS}L) - {half}L)"
        running = ", ".join(f"{one - self.xmax}L" for one in sorted(self.running))
        below = f"{away} < 0" + (f" AND {away} NOT IN ({running})" if running else "")
        return f"({commit_lsn} < {int(self.until)}L AND ({away} < {self.xmin - self.xmax}L OR ({below})))"


def distance(xid: int, other: int) -> int:
    """How far a 32-bit xid is from another one with its epoch; they are less than 2^31 apart."""
    return (xid - other + _XIDS // 2) % _XIDS - _XIDS // 2
