"""Tuples of many row messages, column by column: finds the position of each value, for all rows at once.

I: oid 'N' tuple      U: oid ['K'|'O' tuple] 'N' tuple      D: oid 'K'|'O' tuple
tuple: count, then per column 'n', 'u', or 't' (in a binary stream 'b') length value
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import SourceError
from ..types import Bytes, Mask, Positions, Slices
from .messages import (
    DELETE,
    NEW_ROW,
    NULL,
    OLD_KEY,
    OLD_ROW,
    TEXT,
    UNCHANGED,
    UPDATE,
    Raw,
)

_OID = 4
_COUNT = 2
_LENGTH_BYTES = 4
_LENGTH = np.uint64(0xFFFFFFFF)
_LENGTH_SHIFT, _COUNT_SHIFT = np.uint64(24), np.uint64(48)


@dataclass(frozen=True)
class Cells:
    """One column of some tuples."""

    kind: Bytes
    """TEXT for a value in either form, NULL or UNCHANGED"""
    start: Positions
    length: Positions

    def take(self, rows: Positions) -> Cells:
        return Cells(self.kind[rows], self.start[rows], self.length[rows])

    def slices(self, raw: Raw) -> Slices:
        present = self.kind == TEXT
        return Slices(raw.bytes, self.start, self.length, None if present.all() else present)

    @staticmethod
    def concatenated(first: Cells, second: Cells) -> Cells:
        return Cells(
            np.concatenate([first.kind, second.kind]),
            np.concatenate([first.start, second.start]),
            np.concatenate([first.length, second.length]),
        )


@dataclass(frozen=True)
class Tuples:
    """Old and new tuples of row messages. `old_rank` and `new_rank` have a message's tuple index, -1 for none."""

    marker: Bytes
    """N, K or O: which tuple comes first in the message"""
    new: tuple[Cells, ...]
    new_rank: Positions
    old: tuple[Cells, ...]
    old_rank: Positions

    @property
    def has_old(self) -> Mask:
        return self.old_rank >= 0


def walk(raw: Raw, ops: Bytes, at: Positions, end: Positions, columns: int, form: int = TEXT) -> Tuples:
    """`at` and `end` are the positions of the messages' kind bytes and of their ends. All values have one form."""
    marker = raw.bytes[at + 1 + _OID]
    body = at + 2 + _OID
    old_rows = np.flatnonzero(marker != NEW_ROW)
    if not len(old_rows):
        new, stop = _walk(raw, body, columns, form)
        _require((stop == end).all() and not (ops == DELETE).any())
        return Tuples(marker, new, np.arange(len(at)), (), np.full(len(at), -1))
    first = marker[old_rows]
    _require(
        (((first == OLD_KEY) | (first == OLD_ROW)) & ((ops[old_rows] == DELETE) | (ops[old_rows] == UPDATE))).all()
    )
    old, stop = _walk(raw, body[old_rows], columns, form)
    body[old_rows] = stop
    followed = np.zeros(len(at), np.bool_)
    followed[old_rows] = True
    new_rows = np.flatnonzero(ops != DELETE)
    after_old = body[followed & (ops != DELETE)]
    _require((raw.bytes[after_old] == NEW_ROW).all() and (body[ops == DELETE] == end[ops == DELETE]).all())
    new, stop = _walk(raw, (body + followed)[new_rows], columns, form)
    _require((stop == end[new_rows]).all())
    return Tuples(marker, new, _rank(len(at), new_rows), old, _rank(len(at), old_rows))


def _rank(count: int, rows: Positions) -> Positions:
    rank = np.full(count, -1)
    rank[rows] = np.arange(len(rows))
    return rank


def _walk(raw: Raw, at: Positions, columns: int, form: int) -> tuple[tuple[Cells, ...], Positions]:
    _require((raw.words(at) >> _COUNT_SHIFT == columns).all())
    cursor: npt.NDArray[np.int64] = at + _COUNT
    cells = []
    for _ in range(columns):
        word = raw.words(cursor)
        kind = raw.bytes[cursor]
        word >>= _LENGTH_SHIFT
        word &= _LENGTH
        length = word.view(np.int64)
        start = cursor + (1 + _LENGTH_BYTES)
        present = kind == form
        if form != TEXT:
            kind += present.view(np.uint8) * np.uint8(TEXT - form)
        if present.all():
            cursor = start + length
        else:
            _require((present | (kind == NULL) | (kind == UNCHANGED)).all())
            length *= present
            cursor = start + length
            # A cell without a value is its kind byte only.
            cursor -= (~present).view(np.uint8) * np.uint8(_LENGTH_BYTES)
        cells.append(Cells(kind, start, length))
    return tuple(cells), cursor


def _require(holds: bool | np.bool_) -> None:
    if not holds:
        raise SourceError(operation="reading a row of the stream", cause="the message has an unexpected format")
