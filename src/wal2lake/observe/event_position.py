"""Where an event is in the stream of its group, as text that names the place to go on from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from ..position import Lsn

_POSITION = re.compile(r"([0-9A-Fa-f]+/[0-9A-Fa-f]+)(?::(\d+)(?::(\d+))?)?(?:@(\d+))?")
_ALL = 1 << 62

Place = tuple[int, int, int]
"""commit LSN, seq, and what tells the truncations of one statement apart"""


@dataclass(frozen=True)
class EventPosition:
    """An event, or with an LSN alone a position in the log: all transactions that committed below it are before it.

    Written as `LSN`, `LSN:SEQ` or, of a TRUNCATE, `LSN:SEQ:OID`. `@N` names the stretch of the change log by its first
    manifest: after a lost slot or a restored server positions may come twice.
    """

    lsn: Lsn
    seq: int | None = None
    sub: int | None = None
    stretch: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _POSITION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not a position: {text!r}")
        seq, sub, stretch = (None if part is None else int(part) for part in match.groups()[1:])
        return cls(Lsn.parse(match[1]), seq, sub, stretch)

    @property
    def last(self) -> Place:
        """The last place before what follows it."""
        if self.seq is None:
            return self.lsn, -1, 0
        return self.lsn, self.seq, _ALL if self.sub is None else self.sub

    def __str__(self) -> str:
        parts = [str(part) for part in (self.lsn, self.seq, self.sub) if part is not None]
        return ":".join(parts) + ("" if self.stretch is None else f"@{self.stretch}")
