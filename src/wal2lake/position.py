"""Positions in the write-ahead log.

A position P means: every transaction whose commit LSN is below P is included, no other is. The end of a commit
record is such a position, and so is a slot's consistent point; the next commit record may begin exactly there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A byte position in PostgreSQL's write-ahead log, shown the way PostgreSQL shows it."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _LSN.fullmatch(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r}")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"

    def includes(self, commit_lsn: int) -> bool:
        """Whether a state at this position holds the transaction that committed at `commit_lsn`."""
        return commit_lsn < self


ZERO = Lsn(0)


@dataclass(frozen=True, order=True)
class LakeVersion:
    """Orders the commits that wal2lake makes to a lake table; a later commit compares greater.

    Positions can't do this: a re-copy or a rewrite may have the same position as the version before it.
    """

    epoch: int = 0
    """fencing number of the run that made the commit"""
    commit: int = 0
    """increases by one with each commit that changes rows or the position"""


NO_VERSION = LakeVersion()
"""less than the version of any commit by wal2lake"""
