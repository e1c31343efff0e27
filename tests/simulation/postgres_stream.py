"""The stream of the scripted PostgreSQL: committed transactions as pgoutput writes them, inside XLogData."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from stream_encoder import UNCHANGED as ENCODED_UNCHANGED
from stream_encoder import Cell, begin, commit, delete, insert, relation_message, truncate, update
from wal2lake.decode import Messages, Relation
from wal2lake.errors import ConnectionFailed, SlotLost
from wal2lake.position import Lsn
from wal2lake.source.ports import Capabilities, StreamRequest

from .postgres_transactions import UNCHANGED, Change, Committed

if TYPE_CHECKING:
    from .postgres import ScriptedPostgres

Wait = Callable[[float, Sequence[int]], object]
"""Waits so many seconds, or until one of some file descriptors is readable."""


def unreachable(cause: str) -> ConnectionFailed:
    return ConnectionFailed(server="the scripted server", cause=cause)


class ScriptedStream:
    """Implements ChangeSource over the WAL of the model, by protocol 1 and with values as text."""

    capabilities = Capabilities()
    awaits_acknowledgement = False

    def __init__(self, server: ScriptedPostgres, request: StreamRequest, per_read: int, wait: Wait | None) -> None:
        self._server, self._request, self._per_read, self._wait = server, request, per_read, wait
        self._session = server.new_session()
        self._connection = server.connections
        slot = server.read_slot(request.slot, self._session)
        # As START_REPLICATION does, whatever it is asked for.
        start = max(request.start, slot.confirmed)
        self.acknowledged = self.received = self.keepalive_lsn = request.start
        self._encoder = Encoder(request.publications)
        self._next = next((n for n, done in enumerate(server.wal) if done.commit_lsn >= start), len(server.wal))
        self._messages: Iterator[bytes] = iter(())
        self._closed = False

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        self._require_open()
        if self._silent:
            self._sleep(timeout, wake)
            return Messages.of([])
        found: list[bytes] = []
        while len(found) < self._per_read and (message := self._following()) is not None:
            found.append(message)
        if found:
            (start,) = struct.unpack_from(">Q", found[-1], 1)
            self.received = max(self.received, Lsn(start))
        else:
            if self.keepalive_lsn == self._server.wal_end:
                self._sleep(timeout, wake)
            if self._next == len(self._server.wal):
                self.received = self.keepalive_lsn = max(self.keepalive_lsn, self._server.wal_end)
        return Messages.of(found)

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        self._require_open()
        self._sleep(timeout, wake)

    def _sleep(self, timeout: float, wake: Sequence[int]) -> None:
        if self._wait is not None:
            self._wait(timeout, wake)

    def ask(self) -> None:
        self._require_open()

    def acknowledge(self, lsn: Lsn) -> None:
        self._require_open()
        if lsn > self.acknowledged:
            self.acknowledged = lsn
            self.received = max(self.received, lsn)
            if not self._silent:
                self._server.acknowledged(self, lsn)
                slot = self._server.slots[self._request.slot]
                slot.confirmed = max(slot.confirmed, lsn)

    def finish(self, timeout: float = 2.0) -> None:
        self._release()

    def close(self) -> None:
        self._release()
        self._closed = True

    def __enter__(self) -> ScriptedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self) -> None:
        slot = self._server.slots.get(self._request.slot)
        if slot is not None and slot.reader == self._session and not self._silent:
            slot.reader = None

    @property
    def _silent(self) -> bool:
        """Whether what it sends does not arrive, and nothing that it is sent."""
        return self._session in self._server.silent

    def _require_open(self) -> None:
        if self._silent and self._session not in self._server.broken and not self._closed:
            return
        gone = self._connection != self._server.connections or not self._server.reachable
        if self._closed or gone or self._silent:
            raise unreachable("the server closed the connection")
        self._server.read_slot(self._request.slot, self._session)

    def _following(self) -> bytes | None:
        """The next message; of the next transaction that has one when this one is over."""
        while (message := next(self._messages, None)) is None:
            self._require_complete()
            if self._next == len(self._server.wal):
                return None
            self._messages = self._encoder.encoded(self._server.wal[self._next])
            self._next += 1
        self._require_complete()
        return message

    def _require_complete(self) -> None:
        if self._encoder.lacked is not None:
            raise SlotLost(slot=self._request.slot, cause=self._encoder.lacked, lsn=self.acknowledged)

    @property
    def slot(self) -> str:
        return self._request.slot

    def sends(self, done: Committed) -> bool:
        return self._encoder.sends(done)


class Encoder:
    """What an output plugin makes of transactions: it describes a table before its first change."""

    def __init__(self, publications: Sequence[str]) -> None:
        self._publications = publications
        self._described: dict[int, object] = {}
        self.lacked: str | None = None
        """a publication that did not exist when a change was made, which was left out then"""

    def encoded(self, done: Committed) -> Iterator[bytes]:
        """A transaction; one without a change of the publications' tables is left out, as servers from 15 on do."""
        begun = False
        for change in done.changes:
            missing = [name for name in self._publications if name not in change.publications]
            if missing:
                self.lacked = f"had no publication {missing[0]} for a while"
                continue
            parts = zip(change.relations, change.lines, change.definitions, strict=True)
            sent = [(one, defined) for one, line, defined in parts if self._sends(change, line)]
            if not sent:
                continue
            if not begun:
                begun = True
                yield _placed(begin(done.commit_lsn, done.time_us, done.xid), done.changes[0].lsn)
            for relation, definitions in sent:
                # Servers from 14 on describe it again after whatever may have changed it or what is published of it.
                facts = (definitions, change.publications)
                if self._described.get(relation.oid) != facts:
                    self._described[relation.oid] = facts
                    yield _placed(relation_message(relation), change.lsn)
            yield _placed(_change(change, [relation for relation, _ in sent]), change.lsn)
        if begun:
            yield _placed(commit(done.commit_lsn, done.end_lsn, done.time_us), done.end_lsn)

    def sends(self, done: Committed) -> bool:
        """Whether it gives anything of a transaction."""
        return any(self._sends(change, line) for change in done.changes for line in change.lines)

    def _sends(self, change: Change, line: tuple[int, ...]) -> bool:
        publications = [change.publications[name] for name in self._publications if name in change.publications]
        return any(one.holds(line) and not (one.append and change.kind in "UD") for one in publications)


def _change(change: Change, sent: Sequence[Relation]) -> bytes:
    oid = sent[0].oid
    match change.kind:
        case "I":
            return insert(oid, _cells(change.new))
        case "U":
            old = None if change.old is None else _cells(change.old)
            return update(oid, _cells(change.new), *((None, old) if change.whole else (old, None)))
        case "D":
            return delete(oid, row=_cells(change.old)) if change.whole else delete(oid, key=_cells(change.old))
        case _:
            return truncate(*(one.oid for one in sent))


def _cells(values: Sequence[object] | None) -> list[Cell]:
    return [ENCODED_UNCHANGED if value is UNCHANGED else value for value in values or ()]


def _placed(message: bytes, lsn: int) -> bytes:
    """A message with its position in the WAL: of a row, that of its record; of a commit, where it ends."""
    return message[:1] + struct.pack(">QQ", lsn, lsn) + message[17:]
