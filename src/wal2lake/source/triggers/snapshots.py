"""Snapshots as resume tokens: which transactions they see, and whether one sees all that another does. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Snapshot:
    """A pg_snapshot: it sees the transactions below `xmin`, and those below `xmax` that are not `running`."""

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
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def includes(self, other: Snapshot) -> bool:
        """Whether it sees every transaction that the other one sees."""
        if other.xmax > self.xmax and any(other.sees(xid) for xid in range(self.xmax, other.xmax)):
            return False
        return not any(other.sees(xid) for xid in self.running)
