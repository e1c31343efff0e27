"""The bytes of pgoutput (protocol 1) inside XLogData, and the messages that are parsed one by one.

    'w' | start LSN | end LSN | server clock | kind | body
     1       8          8           8           1

Rows are read column by column in columns.py; only relations and truncations, which are few, are parsed here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from ..schema import ReplicaIdentity
from ..types import PADDING, POSTGRES_EPOCH_US, Bytes, Mask, Positions, Slices, contiguous, words
from .model import Relation, RelationColumn

KIND_AT = 25
STREAM_EPOCH_US = POSTGRES_EPOCH_US
"""epoch of timestamps in messages (2000-01-01), in microseconds since 1970"""
BEGIN, COMMIT, RELATION, TRUNCATE = b"BCRT"
INSERT, UPDATE, DELETE = b"IUD"
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = b"SEcA"
REFUSED = ord("X")
"""not PostgreSQL's own: a change that the source can't tell, and why; see `protocol.refused`"""
IGNORED = b"YOM"
OLD_KEY, OLD_ROW, NEW_ROW = b"KON"
TEXT, BINARY, NULL, UNCHANGED = b"tbnu"

_BODY = KIND_AT + 1
_COMMIT = struct.Struct(">Bqqq")
_TRUNCATE = struct.Struct(">IB")
_OID = struct.Struct(">I")
_COLUMN_TAIL = struct.Struct(">Ii")


def among(kinds: bytes) -> Mask:
    """A look-up table by kind byte: whether it is one of `kinds`."""
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table


@dataclass(frozen=True, eq=False)
class Messages(Sequence[bytes]):
    """Consecutive XLogData messages in one buffer, without an object for each."""

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
        # Implemented in C: there may be millions.
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


def picked(data: Bytes, start: Positions, length: Positions) -> Messages:
    """The messages at these positions, without the bytes between them."""
    return Messages(contiguous(Slices(data, start, length))[0], length)


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
        # The xid is the upper half of what was read, unsigned.
        np.concatenate([[first.xid], (xid >> 32) & 0xFFFFFFFF]),
    )


def parse_commit(message: bytes) -> Commit:
    _, commit_lsn, end_lsn, commit_us = _COMMIT.unpack_from(message, _BODY)
    return Commit(commit_lsn, end_lsn, commit_us)


def parse_truncate(message: bytes) -> tuple[int, ...]:
    """The relations of a Truncate message. CASCADE can be ignored: PostgreSQL lists every truncated table."""
    count, _options = _TRUNCATE.unpack_from(message, _BODY)
    return struct.unpack_from(f">{count}I", message, _BODY + _TRUNCATE.size)


def parse_refused(message: bytes) -> tuple[int, str, dict[str, str]]:
    """A relation, and the error, with its fields, that says why a change of it can't be represented."""
    (oid,) = _OID.unpack_from(message, _BODY)
    error, fields = json.loads(message[_BODY + _OID.size :])
    return oid, error, fields


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
    return Relation(oid, namespace or "pg_catalog", name, ReplicaIdentity(identity.decode()), tuple(columns))


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
