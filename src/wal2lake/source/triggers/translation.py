"""Rows of published buffers as changes of the tables that they were captured of. Pure.

    Relation of a buffer  ──► Relation of its table, as under REPLICA IDENTITY FULL
    Insert into a buffer  ──► Insert, Delete with the whole old row, Truncate, or the mark that asks for a re-copy
    everything else       ──► as it is

A decoder knows one Relation of a table at a time. So the translator tells of a table again when its rows come from
another buffer than before, or from the table itself; and in each streamed transaction anew, because a part of that
may be rolled back with the Relations in it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...decode import KIND_AT, RELATION, STREAM_ABORT, STREAM_COMMIT, STREAM_START, STREAM_STOP, Messages, among
from ...schema import TableId
from ...types import PADDING, words
from . import messages as written
from .definition import SCHEMA, BufferColumn

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

_BODY = KIND_AT + 1
_XID = struct.Struct(">I")
_OID = struct.Struct(">I")
_TRUNCATED = struct.Struct(">IB")
_TRUNCATE = ord("T")
_INSERT, _UPDATE, _DELETE, _NEW, _OLD = b"IUDNO"
_CONTROL = among(bytes([RELATION, STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT, _TRUNCATE]))
_ROWS = among(bytes([_INSERT, _UPDATE, _DELETE]))
_NAME = re.compile(r"changes_(\d+)(?:_(\d+))?")
_OP_BYTES = 6
"""of the last column: its kind, its length, and the letter"""
_OWN_COLUMNS = 3
"""number, transaction id and operation"""
_OUTSIDE = 0
"""the scope of what is in no block of a streamed transaction"""


@dataclass(frozen=True)
class Captured:
    """What a buffer holds rows of."""

    relid: int
    id: TableId
    columns: tuple[BufferColumn, ...]


def buffer_of(namespace: str, name: str) -> tuple[int, int] | None:
    """The table and the generation of a buffer, by its name; None if it is none."""
    found = _NAME.fullmatch(name) if namespace == SCHEMA else None
    return None if found is None else (int(found[1]), int(found[2] or 0))


class BufferTranslator:
    def __init__(self, find: Callable[[int, int], Captured | None]) -> None:
        """`find`: what the buffer of a table and a generation holds; None if its rows are to be left out."""
        self._find = find
        self._buffers: dict[int, Captured | None] = {}
        """by the buffer's own oid"""
        self._relations: dict[int, bytes] = {}
        """the last Relation of each table itself, without header, kind and transaction"""
        self._told: dict[int, dict[int, int]] = {_OUTSIDE: {}}
        """for each transaction that is being streamed, what a table was last described by: a buffer, or itself"""
        self._scope = _OUTSIDE
        self._oids = np.zeros(0, np.int64)

    def translate(self, messages: Messages) -> Messages:
        places = np.flatnonzero(_CONTROL[messages.kinds]).tolist()
        if not places and not self._buffers:
            return messages
        parts: list[Messages] = []
        first = 0
        for place in places:
            parts += self._rows(messages[first:place])
            parts += self._control(messages[place])
            first = place + 1
        parts += self._rows(messages[first:])
        return _joined(parts)

    @property
    def _skip(self) -> int:
        """Bytes between the kind and the body: blocks of streamed transactions name the transaction there."""
        return _XID.size if self._scope != _OUTSIDE else 0

    def _control(self, message: bytes) -> Iterator[Messages]:
        kind = message[KIND_AT]
        if kind == RELATION:
            yield from self._relation(message)
        elif kind == _TRUNCATE:
            yield from self._truncate(message)
        else:
            if kind == STREAM_START:
                (self._scope,) = _XID.unpack_from(message, _BODY)
                self._told.setdefault(self._scope, {})
            elif kind == STREAM_STOP:
                self._scope = _OUTSIDE
            else:
                self._end_of_streamed(message)
            yield Messages.of([message])

    def _end_of_streamed(self, message: bytes) -> None:
        (xid,) = _XID.unpack_from(message, _BODY)
        told = self._told.pop(xid, {})
        if message[KIND_AT] == STREAM_COMMIT:
            # It is decoded after what came before it, with the Relations in it.
            for relid in told:
                self._told[_OUTSIDE].pop(relid, None)
        elif _XID.unpack_from(message, _BODY + _XID.size)[0] != xid:
            self._told[xid] = {}

    def _relation(self, message: bytes) -> Iterator[Messages]:
        body = message[_BODY + self._skip :]
        (oid,) = _OID.unpack_from(body)
        namespace, name, _ = body[_OID.size :].split(b"\0", 2)
        named = buffer_of(namespace.decode(), name.decode())
        if named is None:
            self._relations[oid] = body
            self._told[self._scope][oid] = oid
            yield Messages.of([message])
        elif self._buffers.get(oid) is None:
            self._buffers[oid] = self._find(*named)
            tables = [captured.relid for captured in self._buffers.values() if captured is not None]
            self._oids = np.array([*self._buffers, *tables], np.int64)

    def _truncate(self, message: bytes) -> Iterator[Messages]:
        """Nobody empties a buffer; should it happen, the table was not emptied with it."""
        at = _BODY + self._skip
        count, options = _TRUNCATED.unpack_from(message, at)
        oids = struct.unpack_from(f">{count}I", message, at + _TRUNCATED.size)
        kept = [oid for oid in oids if oid not in self._buffers]
        if len(kept) == len(oids):
            yield Messages.of([message])
        elif kept:
            yield Messages.of([message[:at] + struct.pack(f">IB{len(kept)}I", len(kept), options, *kept)])

    def _rows(self, messages: Messages) -> Iterator[Messages]:
        """Messages that all belong to one scope, without control messages."""
        if not len(messages) or not self._buffers:
            yield messages
            return
        oids = np.zeros(len(messages), np.int64)
        rows = np.flatnonzero(_ROWS[messages.kinds])
        oids[rows] = _numbers(messages.data, messages.start[rows] + _BODY + self._skip)
        oids[~np.isin(oids, self._oids)] = 0
        starts = [0, *(np.flatnonzero(np.diff(oids)) + 1).tolist(), len(oids)]
        for first, last in pairwise(starts):
            some, oid = messages[first:last], int(oids[first])
            if oid not in self._buffers:
                yield from self._told_again(oid, some)
                yield some
            elif (captured := self._buffers[oid]) is not None:
                yield from self._captured(some, oid, captured)

    def _told_again(self, relid: int, rows: Messages) -> Iterator[Messages]:
        """The table's own Relation, unless it was the last one of the table."""
        told = self._told[self._scope]
        if relid in self._relations and told.get(relid) != relid:
            told[relid] = relid
            yield Messages.of([self._said(rows, b"R" + self._relations[relid])])

    def _captured(self, rows: Messages, oid: int, captured: Captured) -> Iterator[Messages]:
        """Rows of one buffer."""
        told = self._told[self._scope]
        if told.get(captured.relid) != oid:
            told[captured.relid] = oid
            yield Messages.of([self._said(rows, written.relation(captured.relid, captured.id, captured.columns))])
        ops = rows.data[rows.end - 1]
        first = 0
        for place in np.flatnonzero((ops != _INSERT) & (ops != _DELETE)).tolist():
            if place > first:
                yield self._changes(rows[first:place], captured)
            truncated = ops[place] == _TRUNCATE
            relid = captured.relid
            mark = written.truncate(relid) if truncated else written.copy_needed(relid)
            yield Messages.of([self._said(rows[place : place + 1], mark)])
            first = place + 1
        if len(rows) > first:
            yield self._changes(rows[first:], captured)

    def _changes(self, rows: Messages, captured: Captured) -> Messages:
        data = np.concatenate([rows.data, np.frombuffer(PADDING, np.uint8)])
        ends, base = rows.end, rows.start + _BODY + self._skip
        ops = data[ends - 1]
        data[rows.start + KIND_AT] = ops
        for byte, value in enumerate(_OID.pack(captured.relid)):
            data[base + byte] = value
        data[base + 4] = np.where(ops == _INSERT, np.uint8(_NEW), np.uint8(_OLD))
        count = len(captured.columns)
        data[base + 5], data[base + 6] = divmod(count, 256)
        number = base + 7
        xid = _after(data, number)
        begin = _after(data, xid)
        # Each row loses what stands before its values, and the letter behind them.
        lost = np.zeros(len(data) + 1, np.int8)
        for places, step in ((number, 1), (begin, -1), (ends - _OP_BYTES, 1), (ends, -1)):
            lost[places] += np.int8(step)
        kept = np.cumsum(lost[: rows.size], dtype=np.int8) == 0
        return Messages(data[: rows.size][kept], rows.lengths - (begin - number) - _OP_BYTES)

    def _said(self, rows: Messages, message: bytes) -> bytes:
        """A message of ours where rows are, in the transaction of the first of them."""
        first = rows[0]
        body = message[KIND_AT:] if message[:1] == b"w" else message
        return first[:KIND_AT] + body[:1] + first[_BODY : _BODY + self._skip] + body[1:]


def _numbers(data: npt.NDArray[np.uint8], at: Numbers) -> Numbers:
    found = np.zeros(len(at), np.int64)
    for byte in range(4):
        found = (found << 8) | data[at + byte]
    return found


def _after(data: npt.NDArray[np.uint8], field: Numbers) -> Numbers:
    """Where the next value begins: a value is its kind, its length and its bytes."""
    length: Numbers = (words(data, field + 1) >> np.uint64(32)).astype(np.int64)
    return field + 5 + length


def _joined(parts: list[Messages]) -> Messages:
    some = [part for part in parts if len(part)]
    if len(some) == 1:
        return some[0]
    if not some:
        return Messages.of([])
    return Messages(np.concatenate([one.data for one in some]), np.concatenate([one.lengths for one in some]))
