"""The bytes of pgoutput (protocol version 1) inside XLogData, and the messages that are read one by one.

    'w' | start LSN | end LSN | server clock | kind | body
     1       8          8           8           1

Rows are read column by column in columns.py; only relations and truncations, which are few, are parsed here.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from ..schema import Identity
from .model import Relation, RelationColumn

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

KIND_AT = 25
STREAM_EPOCH_US = 946_684_800_000_000
"""when the clock of PostgreSQL's values and messages begins, in microseconds since 1970"""
BEGIN, COMMIT, RELATION, TRUNCATE = b"BCRT"
INSERT, UPDATE, DELETE = b"IUD"
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = b"SEcA"
IGNORED = b"YOM"
OLD_KEY, OLD_ROW, NEW_ROW = b"KON"
TEXT, BINARY, NULL, UNCHANGED = b"tbnu"

_BODY = KIND_AT + 1
_COMMIT = struct.Struct(">Bqqq")
_TRUNCATE = struct.Struct(">IB")
_COLUMN_TAIL = struct.Struct(">Ii")
# Reads of a few bytes beyond the last value stay inside the buffer.
PADDING = bytes(32)


def among(kinds: bytes) -> Mask:
    """For each possible kind byte whether it is one of these: indexed with many kinds, it answers for all at once."""
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table


@dataclass(frozen=True, eq=False)
class Messages(Sequence[bytes]):
    """XLogData messages one after the other in one buffer: no object for each, so millions cost only their bytes."""

    data: Bytes
    lengths: Positions

    @classmethod
    def of(cls, messages: Iterable[bytes]) -> Messages:
        some = list(messages)
        return cls(np.frombuffer(b"".join(some), np.uint8), np.fromiter(map(len, some), np.int64, len(some)))

    @cached_property
    def end(self) -> Positions:
        return np.cumsum(self.lengths, dtype=np.int64)

    @cached_property
    def start(self) -> Positions:
        return self.end - self.lengths

    @cached_property
    def kinds(self) -> Bytes:
        return self.data[self.start + KIND_AT]

    @property
    def size(self) -> int:
        """in bytes"""
        return len(self.data)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        # In C all the way: somebody may ask for millions.
        return map(self.data.tobytes().__getitem__, map(slice, self.start.tolist(), self.end.tolist()))

    @overload
    def __getitem__(self, which: int) -> bytes: ...
    @overload
    def __getitem__(self, which: slice) -> Messages: ...
    def __getitem__(self, which: int | slice) -> bytes | Messages:
        if isinstance(which, int):
            return self.data[self.start[which] : self.end[which]].tobytes()
        first, last, step = which.indices(len(self))
        if step != 1:
            raise ValueError("messages are taken in their order")
        begin, end = (int(self.end[place - 1]) if place else 0 for place in (first, max(first, last)))
        return Messages(self.data[begin:end], self.lengths[first:last])


class Raw:
    """Many messages in one buffer."""

    def __init__(self, parts: Sequence[Messages]) -> None:
        self.data = b"".join([*(part.data.data for part in parts), PADDING])
        self.bytes: Bytes = np.frombuffer(self.data, np.uint8)

    def words(self, at: Positions) -> npt.NDArray[np.uint64]:
        return words(self.bytes, at)


def words(data: Bytes, at: Positions) -> npt.NDArray[np.uint64]:
    """The eight bytes at each position as one number, the first byte the highest."""
    window: npt.NDArray[np.uint64] = np.ndarray((len(data) - 7,), np.uint64, data, strides=(1,))
    word = window[at]
    # Picked in the machine's order and turned round after, they cost half of what NumPy takes to pick them turned.
    return word.byteswap(inplace=True) if sys.byteorder == "little" else word


def sixteens(data: Bytes, at: Positions) -> npt.NDArray[np.void]:
    """The sixteen bytes at each position."""
    window: npt.NDArray[np.void] = np.ndarray((len(data) - 15,), "V16", data, strides=(1,))
    return window[at]


@dataclass(frozen=True)
class Begin:
    commit_lsn: int
    commit_us: int
    """microseconds since 2000-01-01 UTC"""
    xid: int


@dataclass(frozen=True)
class Begins:
    """Begin messages, as columns."""

    commit_lsn: Positions
    commit_us: Positions
    xid: Positions

    def __getitem__(self, number: int) -> Begin:
        return Begin(int(self.commit_lsn[number]), int(self.commit_us[number]), int(self.xid[number]))

    def take(self, numbers: Positions) -> Begins:
        return Begins(self.commit_lsn[numbers], self.commit_us[numbers], self.xid[numbers])


@dataclass(frozen=True)
class Commit:
    commit_lsn: int
    end_lsn: int
    commit_us: int


def parse_begins(raw: Raw, at: Positions, first: Begin) -> Begins:
    """The Begin messages whose kind bytes are at these positions, after one that came before them."""
    lsn, us, xid = (raw.words(at + skip).view(np.int64) for skip in (1, 9, 17))
    return Begins(
        np.concatenate([[first.commit_lsn], lsn]),
        np.concatenate([[first.commit_us], us]),
        # The xid is the upper half of what was read; it has no sign.
        np.concatenate([[first.xid], (xid >> 32) & 0xFFFFFFFF]),
    )


def parse_commit(message: bytes) -> Commit:
    _, commit_lsn, end_lsn, commit_us = _COMMIT.unpack_from(message, _BODY)
    return Commit(commit_lsn, end_lsn, commit_us)


def parse_truncate(message: bytes) -> tuple[int, ...]:
    """The relations of a Truncate message. CASCADE needs no care: PostgreSQL lists every table that was emptied."""
    count, _options = _TRUNCATE.unpack_from(message, _BODY)
    return struct.unpack_from(f">{count}I", message, _BODY + _TRUNCATE.size)


def parse_relation(message: bytes) -> Relation:
    (oid,) = struct.unpack_from(">I", message, _BODY)
    namespace, at = _string(message, _BODY + 4)
    name, at = _string(message, at)
    identity, count = struct.unpack_from(">cH", message, at)
    at += 3
    columns = []
    for _ in range(count):
        key = bool(message[at] & 1)
        column, at = _string(message, at + 1)
        type_oid, typmod = _COLUMN_TAIL.unpack_from(message, at)
        at += _COLUMN_TAIL.size
        columns.append(RelationColumn(column, type_oid, typmod, key))
    # pgoutput sends an empty namespace for pg_catalog.
    return Relation(oid, namespace or "pg_catalog", name, Identity(identity.decode()), tuple(columns))


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
