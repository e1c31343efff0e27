"""Slices of a buffer, at any positions, processed together: as numbers, as Arrow views, or joined."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TypeAlias

from .lazily import np, npt, pa

# Quoted, so that importing this module does not need numpy.
Positions: TypeAlias = "npt.NDArray[np.int64]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

# Bytes that may be read beyond the last value.
PADDING = bytes(32)
_INLINE = 12
# The offset of a view in its buffer has 31 bits.
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
    """The texts as an Arrow view array, without copying them. Valid for casts, not for comparisons."""
    count, far = len(text), text.length > _INLINE
    distant = np.count_nonzero(far)
    if distant and distant == np.count_nonzero(text.length):
        # A cast, the only use of these views, does not read the prefix of a long text.
        view = np.zeros((count, 4), np.int32)
    else:
        # One read has the text's prefix, after four bytes that are replaced by its length.
        view = sixteens(text.data, text.start - 4).view(np.int32).reshape(-1, 4)
    view[:, 0] = text.length
    # The view of a text longer than twelve bytes has the buffer's number and the offset in it.
    if distant:
        np.copyto(view[:, 2], text.start >> _REACH_BITS, where=far, casting="same_kind")
        np.copyto(view[:, 3], text.start & ((1 << _REACH_BITS) - 1), where=far, casting="same_kind")
    # Buffers overlap, so that a text of up to 1 GB, PostgreSQL's limit, is completely in the buffer where it begins.
    reach = range(0, len(text.data), 1 << _REACH_BITS)
    buffers = [pa.py_buffer(text.data[begin : begin + (2 << _REACH_BITS)]) for begin in reach]
    return pa.Array.from_buffers(type, count, [bitmap(text), pa.py_buffer(view), *buffers])


def contiguous(text: Slices) -> tuple[Bytes, Positions]:
    """The bytes of all texts joined, and the offsets between them."""
    array = views(text, pa.binary_view()).cast(pa.large_binary())
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, np.int64, len(array) + 1)
    return np.frombuffer(data, np.uint8, int(at[-1])) if at[-1] else np.empty(0, np.uint8), at


def bitmap(text: Slices) -> pa.Buffer | None:
    """The validity bitmap, in Arrow's format."""
    return None if text.valid is None else _bits(text.valid)


def booleans(text: Slices, true: Mask) -> pa.Array:
    """Which of the values are true."""
    return pa.Array.from_buffers(pa.bool_(), len(text), [bitmap(text), _bits(true)])


def _bits(mask: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def words(data: Bytes, at: Positions) -> npt.NDArray[np.uint64]:
    """The eight bytes at each position as one big-endian number."""
    window: npt.NDArray[np.uint64] = np.ndarray((len(data) - 7,), np.uint64, data, strides=(1,))
    word = window[at]
    # Reading in native order and swapping afterwards takes half the time of NumPy's swapped read.
    return word.byteswap(inplace=True) if sys.byteorder == "little" else word


def sixteens(data: Bytes, at: Positions) -> npt.NDArray[np.void]:
    """The sixteen bytes at each position."""
    window: npt.NDArray[np.void] = np.ndarray((len(data) - 15,), "V16", data, strides=(1,))
    return window[at]


def whole_numbers(values: Slices, size: int) -> Positions:
    """Signed big-endian integers of so many bytes."""
    require_size(values, size)
    return words(values.data, values.start).view(np.int64) >> (64 - 8 * size)


def require_size(values: Slices, size: int) -> None:
    """Raises ValueError if a value has another size."""
    fits = values.length == size
    if not (fits if values.valid is None else fits | ~values.valid).all():
        raise ValueError(f"a value does not have {size} bytes")


def array(values: Slices, numbers: npt.NDArray[np.generic], type: pa.DataType) -> pa.Array:
    """Numbers as an Arrow array with the NULLs of the values that they were read from."""
    return pa.Array.from_buffers(type, len(values), [bitmap(values), pa.py_buffer(numbers)])
