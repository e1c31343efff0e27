"""Which transactions ended before others, as far as that is certain.

Tables are altered under an exclusive lock, and who has written a row of a table holds a lock on it until it ends. So
where an alteration is in the log before a transaction that wrote the table, it was complete when the row was written.
Names of schemas are not guarded like that: there the alteration must have ended before the other transaction began.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...visibility import PgSnapshot
from .facts import Reading, SlotMark

_WORD = 1 << 32
_MOST_ENDED = 200_000
_MOST_MARKS = 16


@dataclass(frozen=True, slots=True)
class Writing:
    """A transaction of the stream."""

    xid: int
    """with 32 bits"""
    first_lsn: int
    """where the first that it wrote is in the log"""


class Chronicle:
    def __init__(self, marks: tuple[SlotMark, ...] = ()) -> None:
        self._marks = list(marks)
        self._ended: dict[int, int] = {}
        """where transactions of the stream ended, by their 32 bits: those before the current one"""
        self._seen_in: dict[int, PgSnapshot] = {}
        """the first snapshot that saw what a transaction wrote to the catalog"""

    def ended(self, xid: int, end_lsn: int) -> None:
        """The next transaction of the stream is over."""
        self._ended.pop(xid, None)
        self._ended[xid] = end_lsn
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def read(self, reading: Reading) -> None:
        """Learn from what the catalog said."""
        mark = reading.mark
        if mark is not None and (not self._marks or mark.xid > self._marks[-1].xid):
            self._marks = [*self._marks[-_MOST_MARKS:], mark]
            self._seen_in = {xid: seen for xid, seen in self._seen_in.items() if xid >= mark.xid}
        known = self._marks[-1].xid if self._marks else 0
        for facts in (*reading.tables.values(), *(reading.published or ())):
            for xid in (facts.written, facts.named, facts.schema_named, facts.key_written, *facts.memberships):
                if xid >= known:
                    self._seen_in.setdefault(xid, reading.snapshot)
            for column in facts.columns:
                if column.written >= known:
                    self._seen_in.setdefault(column.written, reading.snapshot)

    def before(self, altered: int, xid: int) -> bool:
        """Whether a transaction that altered a table ended before another one wrote that table. `xid`: its 64 bits."""
        if altered == xid:
            return False
        if any(altered < mark.xid for mark in self._marks) or altered % _WORD in self._ended:
            return True
        seen = self._seen_in.get(altered)
        return seen is not None and not seen.sees(xid)

    def before_begin(self, altered: int, writing: Writing, xid: int) -> bool:
        """Whether it ended before the other one wrote anything at all."""
        if any(altered < mark.xid and mark.lsn <= writing.first_lsn for mark in self._marks):
            return True
        end = self._ended.get(altered % _WORD)
        if end is not None and end <= writing.first_lsn:
            return True
        seen = self._seen_in.get(altered)
        return seen is not None and not seen.begun_before(xid)
