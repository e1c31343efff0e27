"""Rows of COPY BINARY as messages of the stream: many at a time, without an object for each value.

COPY      fields | length kind       | length value | -1    | …
message   header | I oid N columns   | t length value | n   | …
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...decode import Messages
from ...errors import SourceError

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

COPY_HEADER_BYTES = 19
"""signature, flags and the length of an extension, before the first row"""
_TRAILER = b"\xff\xff"
_XLOG = b"w" + bytes(24)
_FIRST_VALUE = 7
"""of a row: the number of fields (2), and the length and the value of the kind (4 + 1)"""
_HEAD = len(_XLOG) + 8
"""kind (1), relation (4), marker (1), number of columns (2)"""


class Rows:
    """Rows that COPY has sent: the kind of each, and where it is."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        """`chunks`: one row each."""
        self._lengths = np.fromiter(map(len, chunks), np.int64, len(chunks))
        # Four bytes are read at a time.
        self._data = np.frombuffer(b"".join([*chunks, bytes(4)]), np.uint8)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self.kinds = self._data[self._starts + _FIRST_VALUE - 1]

    def __len__(self) -> int:
        return len(self._lengths)

    def marks(self) -> list[int]:
        """Places of what is no row."""
        return np.flatnonzero((self.kinds != ord("I")) & (self.kinds != ord("D"))).tolist()

    def messages(self, oid: int, columns: int, first: int, last: int) -> Messages:
        """Inserted and deleted rows as the stream tells of them, deleted ones with all their values."""
        starts = self._starts[first:last]
        count = len(starts)
        at = starts + _FIRST_VALUE
        sources = np.empty((count, columns), np.int64)
        sizes = np.empty((count, columns), np.int64)
        for column in range(columns):
            length = self._lengths_at(at)
            sources[:, column] = at
            sizes[:, column] = np.where(length < 0, 0, length + 4)
            at = at + 4 + np.maximum(length, 0)
        if (at != starts + self._lengths[first:last]).any():
            raise SourceError(operation="reading a buffer", cause="a row has not the columns that it was made with")
        ends = np.cumsum(sizes + 1, axis=1)
        sized = _HEAD + (ends[:, -1] if columns else np.zeros(count, np.int64))
        begins = np.cumsum(sized) - sized
        out = np.zeros(int(sized.sum()), np.uint8)
        head = np.frombuffer(_XLOG + b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", columns), np.uint8)
        out[begins[:, None] + np.arange(_HEAD)] = head
        deleted = begins[self.kinds[first:last] == ord("D")]
        out[deleted + len(_XLOG)] = ord("D")
        out[deleted + len(_XLOG) + 5] = ord("O")
        if columns:
            marks = (begins + _HEAD)[:, None] + ends - sizes - 1
            out[marks] = np.where(sizes == 0, ord("n"), ord("t"))
            self._copy(out, (marks + 1).ravel(), sources.ravel(), sizes.ravel())
        return Messages(out, sized)

    def _lengths_at(self, at: Numbers) -> Numbers:
        four = [self._data[at + place].astype(np.uint32) for place in range(4)]
        return (four[0] << 24 | four[1] << 16 | four[2] << 8 | four[3]).astype(np.int32).astype(np.int64)

    def _copy(self, out: npt.NDArray[np.uint8], to: Numbers, source: Numbers, size: Numbers) -> None:
        """Bytes from many places to many others."""
        total = int(size.sum())
        within = np.arange(total) - np.repeat(np.cumsum(size) - size, size)
        out[np.repeat(to, size) + within] = self._data[np.repeat(source, size) + within]


def rows(chunks: Iterable[bytes]) -> Rows:
    """Rows of what COPY has sent, of which the first may begin with its header and the last be its end."""
    kept = [chunk for chunk in chunks if chunk != _TRAILER]
    if kept and kept[0].startswith(b"PGCOPY\n"):
        kept[0] = kept[0][COPY_HEADER_BYTES:]
        if kept[0] in (b"", _TRAILER):
            del kept[0]
    return Rows(kept)
