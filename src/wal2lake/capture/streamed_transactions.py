"""From protocol 2 to protocol 1: puts transactions that are streamed before their commit into commit order.

    plain messages ────────────────────────────────────────────────► unchanged
    blocks  S xid … E ──► one spool per transaction ── c (commit) ──► Streamed: BEGIN, its messages, COMMIT
                                         │ └─ A (abort) ──► removed
                                         └─ A of a subtransaction ──► truncated to where that began

PostgreSQL's own subscriber does the same. Runs of messages are handled together; only the messages between them and
relation messages, which are few, are handled one by one. For speculative decoding blocks are passed on as they come.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..decode import (
    BEGIN,
    COMMIT,
    KIND_AT,
    RELATION,
    STREAM_ABORT,
    STREAM_COMMIT,
    STREAM_START,
    STREAM_STOP,
    Commit,
    Messages,
    among,
    picked,
)
from ..errors import SourceError
from ..types import Bytes, Positions
from .spool import Piece, Spool, Spools

_BODY = KIND_AT + 1
_XID_BYTES = 4
_STREAM_START = struct.Struct(">IB")
_STREAM_ABORT = struct.Struct(">II")
_STREAM_COMMIT = struct.Struct(">IBqqq")
_OID = struct.Struct(">I")
_BEGIN = struct.Struct(">cqqqBqqI")
_COMMIT = struct.Struct(">cqqqBBqqq")


_IS_MARK = among(bytes([STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT]))
_IS_NOTED = among(bytes([STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT, RELATION]))
# Inside a block these carry the xid of their (sub)transaction; Origin does not.
_HAS_XID = among(b"RYIUDTMX")


@dataclass(frozen=True)
class Streamed:
    """A streamed transaction that has committed, as if it had been sent whole."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_us: int
    """microseconds since 2000-01-01 UTC"""
    _spool: Spool

    @property
    def bytes(self) -> int:
        return self._spool.size

    @property
    def messages(self) -> int:
        """without BEGIN and COMMIT"""
        return self._spool.messages

    @property
    def commit(self) -> Commit:
        return Commit(self.commit_lsn, self.end_lsn, self.commit_us)

    def chunks(self, most_bytes: int) -> Iterator[Messages]:
        """Protocol 1 messages in XLogData, in portions of about that many bytes. Any thread may call it."""
        envelope = b"w", self.commit_lsn, self.end_lsn, self.commit_us
        yield Messages.of([_BEGIN.pack(*envelope, BEGIN, self.commit_lsn, self.commit_us, self.xid)])
        for piece in self._spool.pieces(most_bytes):
            yield _without_xids(piece.data, piece.lengths.astype(np.int64))
        yield Messages.of([_COMMIT.pack(*envelope, COMMIT, 0, self.commit_lsn, self.end_lsn, self.commit_us)])

    def remove(self) -> None:
        """Delete its spool; it can't be read afterwards."""
        self._spool.remove()


class Speculation(Protocol):
    """Receives changes of open transactions. They may be rolled back later."""

    def begin(self, xid: int) -> None: ...
    def take(self, xid: int, messages: Messages) -> None:
        """The next messages of a transaction, as they are in a block."""

    def forget(self, xid: int) -> None:
        """A transaction was aborted, or a part of it that was passed on."""


class Demultiplexer:
    """Takes the messages of a protocol 2 stream in order, and keeps those of open transactions in spools."""

    def __init__(self, spools: Spools, speculative: Speculation | None = None) -> None:
        self._spools, self._speculative = spools, speculative
        self._running: dict[int, _Running] = {}
        self._block: _Running | None = None
        self._arrived = 0
        self._described: dict[int, _Description] = {}
        """for each table the last description that is valid for later transactions"""

    @property
    def running(self) -> int:
        """Number of streamed transactions that have neither committed nor aborted."""
        return len(self._running)

    def feed(self, messages: Sequence[bytes]) -> list[Sequence[bytes] | Streamed]:
        """Take CopyData payloads of XLogData; return what is complete, in the order of the stream."""
        some = messages if isinstance(messages, Messages) else Messages.of(messages)
        noted = np.flatnonzero(_IS_NOTED[some.kinds]).tolist()
        if self._block is None and not _IS_MARK[some.kinds[noted]].any():
            for number in noted:
                self._describe(some[number])
            return [messages]
        return self._split(some, noted)

    def close(self) -> None:
        """Delete the spools of open transactions; the server sends them again to the next stream."""
        for transaction in self._running.values():
            transaction.spool.remove()
        self._running, self._block = {}, None

    def _split(self, messages: Messages, noted: list[int]) -> list[Sequence[bytes] | Streamed]:
        items: list[Sequence[bytes] | Streamed] = []
        plain: list[Messages] = []
        done = 0
        for number in noted:
            kind = int(messages.kinds[number])
            if kind == RELATION:
                if self._block is None:
                    self._describe(messages[number])
                continue
            self._run(messages[done:number], plain)
            done = number + 1
            if kind == STREAM_COMMIT:
                streamed, again = self._commit(messages[number])
                items += [*_joined(plain), streamed]
                plain = [Messages.of(again)] if again else []
            else:
                self._mark(kind, messages[number])
        self._run(messages[done:], plain)
        return [*items, *_joined(plain)]

    def _run(self, messages: Messages, plain: list[Messages]) -> None:
        if not messages:
            return
        if self._block is None:
            plain.append(messages)
        else:
            self._arrived = self._block.take(messages, self._arrived)
            if self._speculative is not None:
                self._speculative.take(self._block.xid, messages)

    def _describe(self, message: bytes) -> None:
        (oid,) = _OID.unpack_from(message, _BODY)
        self._arrived += 1
        self._described[oid] = _Description(self._arrived, message)

    def _mark(self, kind: int, message: bytes) -> None:
        if kind == STREAM_STOP:
            if self._block is None:
                raise _disorder("a block ends that has not begun")
            self._block = None
            return
        self._require_no_block()
        if kind == STREAM_ABORT:
            self._abort(*_STREAM_ABORT.unpack_from(message, _BODY))
            return
        xid, first = _STREAM_START.unpack_from(message, _BODY)
        if (xid in self._running) == bool(first):
            raise _disorder(f"transaction {xid} begins twice, or continues without a beginning")
        if first:
            self._running[xid] = _Running(xid, self._spools.open())
            if self._speculative is not None:
                self._speculative.begin(xid)
        self._block = self._running[xid]

    def _require_no_block(self) -> None:
        if self._block is not None:
            raise _disorder(f"the block of transaction {self._block.xid} has no end")

    def _abort(self, xid: int, subxid: int) -> None:
        # Transactions without a streamed change may be named here, too; they have no spool.
        transaction = self._running.get(xid)
        if transaction is None:
            return
        if subxid == xid:
            del self._running[xid]
            transaction.spool.remove()
        elif not transaction.roll_back(subxid):
            return
        if self._speculative is not None:
            self._speculative.forget(xid)

    def _commit(self, message: bytes) -> tuple[Streamed, list[bytes]]:
        """The transaction, and the relation messages that must follow it.

        The messages of a streamed transaction are read at its commit. A relation message that arrived between them and
        the commit is newer, and the server does not send it again.
        """
        self._require_no_block()
        xid, _flags, commit_lsn, end_lsn, commit_us = _STREAM_COMMIT.unpack_from(message, _BODY)
        transaction = self._running.pop(xid, None)
        if transaction is None:
            raise _disorder(f"transaction {xid} commits that has not begun")
        transaction.spool.finish()
        again = []
        for oid, place in transaction.described.items():
            known = self._described.get(oid)
            if place.description is not None and (known is None or known.arrived < place.description.arrived):
                self._described[oid] = place.description
            elif known is not None:
                again.append(known.message)
        return Streamed(xid, commit_lsn, end_lsn, commit_us, transaction.spool), again


@dataclass(frozen=True)
class _Description:
    """A Relation message of protocol 1, and its number among all relation messages."""

    arrived: int
    message: bytes


@dataclass(frozen=True)
class _DescribedAt:
    """The last description of a table in a transaction; none if it was rolled back, so that an earlier one is valid."""

    offset: int
    description: _Description | None


class _Running:
    """A streamed transaction that has not ended."""

    def __init__(self, xid: int, spool: Spool) -> None:
        self.xid = xid
        self.spool = spool
        self.described: dict[int, _DescribedAt] = {}
        self._subtransactions = _Subtransactions()
        self._last = xid

    def take(self, messages: Messages, arrived: int) -> int:
        """Keep messages of a block; `arrived` relation messages came before. Return how many came by its end."""
        has_xid = _HAS_XID[messages.kinds]
        _require_transactional(messages.kinds, messages.lengths[has_xid])
        at, start = messages.start[has_xid], self.spool.size
        self._note_subtransactions(_xids(messages.data, at), at + start)
        for number in np.flatnonzero(messages.kinds == RELATION).tolist():
            arrived += 1
            message = messages[number]
            (oid,) = _OID.unpack_from(message, _BODY + _XID_BYTES)
            description = _Description(arrived, message[:_BODY] + message[_BODY + _XID_BYTES :])
            self.described[oid] = _DescribedAt(start + int(messages.start[number]), description)
        self.spool.append(Piece(messages.data, messages.lengths.astype(np.uint32)))
        return arrived

    def _note_subtransactions(self, xids: npt.NDArray[np.uint32], offsets: Positions) -> None:
        if not len(xids):
            return
        if not xids.all():
            raise _disorder("a change in a block has no transaction")
        another = xids != np.concatenate([[self._last], xids[:-1]])
        self._last = int(xids[-1])
        if another.any():
            # Changes of the top-level transaction are rolled back only with all of it.
            another &= xids != self.xid
            self._subtransactions.add(xids[another], offsets[another])

    def roll_back(self, subxid: int) -> bool:
        """Roll back a subtransaction; return whether it had changes.

        Subtransactions nest: everything since its first change belongs to it or to its children.
        """
        offset = self._subtransactions.begin(subxid)
        if offset is None:
            return False
        self._subtransactions.truncate(offset)
        self.spool.truncate(offset)
        self._last = self.xid
        for oid, place in self.described.items():
            if place.offset >= offset:
                self.described[oid] = _DescribedAt(0, None)
        return True


@dataclass
class _Subtransactions:
    """Offsets at which the subtransaction changes, in twelve bytes each: there may be millions.

    A subtransaction may occur more than once, with children between its changes; the first offset is used.
    """

    _xids: array[int] = field(default_factory=lambda: array("I"))
    _offsets: array[int] = field(default_factory=lambda: array("Q"))
    _least: int = 0xFFFFFFFF
    _most: int = 0

    def add(self, xids: npt.NDArray[np.uint32], offsets: Positions) -> None:
        if len(xids):
            self._least, self._most = min(self._least, int(xids.min())), max(self._most, int(xids.max()))
            self._xids.frombytes(xids.tobytes())
            self._offsets.frombytes(offsets.astype(np.uint64).tobytes())

    def begin(self, xid: int) -> int | None:
        if not self._xids or not self._least <= xid <= self._most:
            return None
        found = np.frombuffer(self._xids, np.uint32) == xid
        first = int(found.argmax())
        return self._offsets[first] if found[first] else None

    def truncate(self, offset: int) -> None:
        first = bisect_left(self._offsets, offset)
        del self._xids[first:], self._offsets[first:]


def _require_transactional(kinds: Bytes, lengths: Positions) -> None:
    if (kinds == BEGIN).any() or (kinds == COMMIT).any():
        raise _disorder("a transaction stands inside the block of another")
    if len(lengths) and lengths.min() < _BODY + _XID_BYTES:
        raise _disorder("a change in a block has no transaction")


def _xids(data: Bytes, at: Positions) -> npt.NDArray[np.uint32]:
    words: npt.NDArray[Any] = np.ndarray((len(data) - _XID_BYTES + 1,), ">u4", data, strides=(1,))
    return words[at + _BODY].astype(np.uint32)


def plain(messages: Messages) -> Messages:
    """Messages of a block in the format of protocol 1."""
    return _without_xids(messages.data.copy(), messages.lengths)


def _without_xids(data: Bytes, lengths: Positions) -> Messages:
    """Modifies the data in place."""
    at = np.cumsum(lengths) - lengths
    has_xid = _HAS_XID[data[at + KIND_AT]]
    # Envelope and kind move up over the xid, so that each message is contiguous; then the messages are joined.
    head: npt.NDArray[Any] = np.ndarray((len(data) - KIND_AT,), f"V{_BODY}", data, strides=(1,))
    moved = at[has_xid]
    head[moved + _XID_BYTES] = head[moved]
    gap = _XID_BYTES * has_xid
    start = at + gap
    if not gap[0]:
        # `Slices` needs some bytes before the first value.
        data, start = np.concatenate([np.zeros(_XID_BYTES, np.uint8), data]), start + _XID_BYTES
    return picked(data, start, lengths - gap)


def _joined(parts: list[Messages]) -> list[Messages]:
    if len(parts) < 2:
        return parts
    data = np.concatenate([part.data for part in parts])
    return [Messages(data, np.concatenate([part.lengths for part in parts]))]


def _disorder(cause: str) -> SourceError:
    return SourceError(operation="reading the stream", cause=cause)
