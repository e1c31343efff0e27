"""Rows of COPY BINARY as messages of the stream: many at a time, without an object for each value.

COPY      fields | length head       | length value   | -1  | …
message   header, kind, oid, N, count | t length value | n   | …

The head comes from the server, as a constant of such a length that each row is a message but for the kinds of its
values: these are inserted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from ...decode import Messages
from ...errors import SourceError
from ...types import PADDING, words
from ..sessions.copy_out import Portion

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

_XLOG_BYTES = 25
_FIELD_BYTES = 2 + 4
"""before the first value of a row: the number of its values, and the length of the first"""
_HEAD = _XLOG_BYTES + 8
"""kind (1), relation (4), marker (1), number of columns (2)"""
_INSERT, _DELETE, _XLOG_DATA, _TEXT, _BINARY, _NULL = b"IDwtbn"
_LENGTH_SHIFT = np.uint64(32)


def head(kind: str, oid: int, columns: int) -> bytes:
    """What a row begins with in place of its kind; `kind` is I or D for rows, else that of a mark."""
    marker = b"O" if kind == "D" else b"N"
    told = kind.encode() + struct.pack(">I", oid) + marker + struct.pack(">H", columns)
    return bytes(_HEAD - _FIELD_BYTES - len(told)) + told


class Rows:
    """Rows that COPY has sent: the kind of each, and where it is."""

    def __init__(self, portion: Portion) -> None:
        self._lengths = np.array(portion.lengths, np.int64)
        self._ends = np.cumsum(self._lengths)
        self._starts = self._ends - self._lengths
        portion.data.extend(PADDING)
        self._data = np.frombuffer(portion.data, np.uint8)
        self.kinds = self._data[self._starts + _XLOG_BYTES]
        self._data[self._starts] = _XLOG_DATA

    def __len__(self) -> int:
        return len(self._lengths)

    def marks(self) -> list[int]:
        """Places of what is no row."""
        return np.flatnonzero((self.kinds != _INSERT) & (self.kinds != _DELETE)).tolist()

    def messages(self, columns: int, first: int, last: int, binary: bool) -> Messages:
        """Inserted and deleted rows as the stream tells of them, deleted ones with all their values."""
        starts, lengths = self._starts[first:last], self._lengths[first:last]
        begin, end = int(starts[0]), int(self._ends[last - 1])
        places = np.empty((len(starts), columns), np.int64)
        null = np.empty((len(starts), columns), np.bool_)
        at = starts + _HEAD
        for column in range(columns):
            # The upper half of what is read; NULL has the length -1.
            length = words(self._data, at).view(np.int64) >> 32
            places[:, column], null[:, column] = at, length < 0
            at = at + 4 + np.maximum(length, 0)
        if (at != self._ends[first:last]).any():
            raise SourceError(operation="reading a buffer", cause="a row has not the columns that it was made with")
        data = self._data[begin:end]
        if not columns:
            return Messages(data, lengths)
        to = places.ravel() - begin + np.arange(places.size)
        kinds: npt.NDArray[np.uint8] | int = _BINARY if binary else _TEXT
        sized = lengths + columns
        if null.any():
            # A NULL is its kind alone: its length is left out.
            nulls = null.ravel()
            to -= 4 * (np.cumsum(nulls) - nulls)
            kept = np.ones(len(data), np.bool_)
            without = places.ravel()[nulls] - begin
            for byte in range(4):
                kept[without + byte] = False
            data = data[kept]
            kinds = np.where(nulls, np.uint8(_NULL), np.uint8(kinds))
            sized -= 4 * null.sum(axis=1)
        out = np.empty(len(data) + places.size, np.uint8)
        copied = np.ones(len(out), np.bool_)
        copied[to] = False
        out[copied] = data
        out[to] = kinds
        return Messages(out, sized)
