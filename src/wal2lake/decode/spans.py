"""Pieces of a buffer that lie anywhere in it, handled all at once: as Arrow's views, put together, or as messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from .messages import Bytes, Mask, Messages, Positions, sixteens

_INLINE = 12
# A view's position in its buffer has 31 bits.
_REACH_BITS = 30


@dataclass(frozen=True)
class Slices:
    """Texts that lie somewhere in a buffer, with at least 4 bytes before and 12 after each beginning."""

    data: Bytes
    start: Positions
    length: Positions
    valid: Mask | None = None
    """None: no text is NULL. The length of a NULL is 0."""

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, row: int) -> bytes:
        at = int(self.start[row])
        return self.data[at : at + int(self.length[row])].tobytes()

    def is_valid(self, row: int) -> bool:
        return self.valid is None or bool(self.valid[row])

    def without(self, rows: Mask) -> Slices:
        """The same with NULL in some rows."""
        valid = ~rows if self.valid is None else self.valid & ~rows
        return replace(self, length=np.where(rows, 0, self.length), valid=valid)


def views(text: Slices, type: pa.DataType) -> pa.Array:
    """The texts as an Arrow view array, which lets them stay where they are. Good for a cast, not for comparisons."""
    count, far = len(text), text.length > _INLINE
    distant = np.count_nonzero(far)
    if distant and distant == np.count_nonzero(text.length):
        # A cast, which is all that is done with views, does not look at the beginning that a far text's view has.
        view = np.zeros((count, 4), np.int32)
    else:
        # One read takes the text's beginning, after four bytes that make room for its length.
        view = sixteens(text.data, text.start - 4).view(np.int32).reshape(-1, 4)
    view[:, 0] = text.length
    # The view of a text that is longer than its twelve bytes holds the buffer's number and the position in it.
    if distant:
        np.copyto(view[:, 2], text.start >> _REACH_BITS, where=far, casting="same_kind")
        np.copyto(view[:, 3], text.start & ((1 << _REACH_BITS) - 1), where=far, casting="same_kind")
    # Buffers overlap, so that a text of up to a gigabyte, PostgreSQL's limit, lies whole in the one it begins in.
    reach = range(0, len(text.data), 1 << _REACH_BITS)
    buffers = [pa.py_buffer(text.data[begin : begin + (2 << _REACH_BITS)]) for begin in reach]
    return pa.Array.from_buffers(type, count, [bitmap(text), pa.py_buffer(view), *buffers])


def contiguous(text: Slices) -> tuple[Bytes, Positions]:
    """The bytes of all texts one after the other, and the offsets between them."""
    array = views(text, pa.binary_view()).cast(pa.large_binary())
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, np.int64, len(array) + 1)
    return np.frombuffer(data, np.uint8, int(at[-1])) if at[-1] else np.empty(0, np.uint8), at


def picked(data: Bytes, start: Positions, length: Positions) -> Messages:
    """The messages that lie there, without what is between them."""
    return Messages(contiguous(Slices(data, start, length))[0], length)


def bitmap(text: Slices) -> pa.Buffer | None:
    """Which are not NULL, as Arrow has it."""
    return None if text.valid is None else _bits(text.valid)


def booleans(text: Slices, true: Mask) -> pa.Array:
    """Which of the values are true."""
    return pa.Array.from_buffers(pa.bool_(), len(text), [bitmap(text), _bits(true)])


def _bits(mask: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))
