"""The replication stream: raw pgoutput messages in, acknowledgements out. The only place that waits on its socket.

    read()         what libpq has buffered, in one go; keepalives are answered inside
    stay()         the same without reading: what the server would send waits there, and it knows that we live
    acknowledge()  the position that is durable here; repeated every few seconds so that the server knows we live

A peer that has gone silent is noticed: the server is asked for a sign of life, and given up if none comes.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

import numpy as np
import psycopg
from psycopg import pq

from ..config import SourceConfig
from ..decode import Messages
from ..errors import ConnectionFailed, SlotInUse, SlotLost, SourceError
from ..position import Lsn
from .connect import replication_connect, server_name

STREAMING_SINCE = 140000
"""servers from this version on can send a transaction while it runs (protocol version 2)"""
BINARY_SINCE = 140000
_KEEPALIVE = ord("k")
_POSTGRES_EPOCH = 946_684_800
_DRAIN_BYTES = 4 * 1024 * 1024
_DRAIN_SECONDS = 0.2
_LINGER_SECONDS = 0.05
"""how long more is waited for, while there is more every moment"""
_PAUSE_SECONDS = 0.01
_NOTHING = Messages.of([])
_KEEPALIVE_BODY = struct.Struct(">xQqB")
_DATA_START = struct.Struct(">xQ")
_STATUS = struct.Struct(">cQQQqB")


@dataclass(frozen=True)
class Patience:
    """How often we speak, and how long silence is borne. Seconds."""

    status: float = 10.0
    """at least one status update in this time"""
    ask: float = 20.0
    """after this much silence the server is asked to answer"""
    give_up: float = 60.0
    """after this much more the connection is taken for dead"""
    staying: float = 0.5
    """at least one status update in this time while nothing is read: nor is the server's wish for one"""


class ReplicationStream:
    """One START_REPLICATION. Positions only grow; `close` ends it."""

    def __init__(
        self, source: SourceConfig, slot: str, publication: str, start: Lsn, *, group: str,
        patience: Patience | None = None, binary: bool = False,
    ) -> None:  # fmt: skip
        """`binary`: values are wanted in binary form, as far as their types have one."""
        self._source, self._slot, self._publication = source, slot, publication
        self._patience = patience or Patience()
        self.acknowledged = start
        """the position that the server has been told"""
        self.received = start
        self.keepalive_lsn = start
        """the server has sent every transaction that committed below this"""
        self._lost: str | None = None
        self._unsent = False
        self._pgconn = replication_connect(source, group)
        self.streaming = source.streaming and self._pgconn.server_version >= STREAMING_SINCE
        """whether transactions may come in blocks before they commit"""
        self.binary = binary and self._pgconn.server_version >= BINARY_SINCE
        """whether values have their binary form"""
        try:
            self._start(start)
        except BaseException:
            self._pgconn.finish()
            raise
        self._heard = self._told = time.monotonic()
        self._asked: float | None = None

    def _start(self, start: Lsn) -> None:
        self._pgconn.notice_handler = self._notice
        names = '"' + self._publication.replace('"', '""') + '"'
        version = "proto_version '2', streaming 'on'" if self.streaming else "proto_version '1'"
        if self.binary:
            version += ", binary 'true'"
        options = f"{version}, publication_names '{names.replace(chr(39), chr(39) * 2)}'"
        command = f'START_REPLICATION SLOT "{self._slot}" LOGICAL {start} ({options})'
        result = self._pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            self._fail(result)
        self._pgconn.nonblocking = 1

    def _notice(self, result: pq.abc.PGresult) -> None:
        # Servers from 18 on skip a publication that did not exist when a change was made, with no more than a warning.
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        if state == b"55000" and f'"{self._publication}"' in message:
            self._lost = f"had no publication {self._publication} for a while"

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        """Raw XLogData messages, header included; none if time is up, a keepalive came or a `wake` fd is readable."""
        deadline = time.monotonic() + timeout
        while True:
            self._keep_up()
            messages, heard = self._drain()
            if messages or heard:
                return messages
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._wait(min(remaining, self._next_duty()), wake):
                return messages

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        """Read nothing until time is up or a `wake` fd is readable, but keep telling the server where we are."""
        deadline = time.monotonic() + timeout
        while True:
            # Its silence means nothing while nobody listens.
            self._heard, self._asked = time.monotonic(), None
            if time.monotonic() - self._told >= self._patience.staying:
                self._tell()
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._wait(min(remaining, self._patience.staying), wake, reading=False):
                return

    def acknowledge(self, lsn: Lsn) -> None:
        """Tell the server that everything below `lsn` is durable here; it may forget the WAL before."""
        if lsn > self.acknowledged:
            self.acknowledged = lsn
            self.received = max(self.received, lsn)
            self._tell()

    def ask(self) -> None:
        """Have the server say how far it is; the answer is a keepalive."""
        self._tell(reply=True)

    def finish(self, timeout: float = 2.0) -> None:
        """End the stream in good order: the server has taken the last acknowledgement when it ends its side."""
        deadline = time.monotonic() + timeout
        try:
            self._pgconn.put_copy_end()
            self._flush()
            while (left := deadline - time.monotonic()) > 0:
                self._pgconn.consume_input()
                length, _ = self._pgconn.get_copy_data(1)
                if length < 0:
                    return
                if length == 0:
                    self._wait(left, ())
        except (psycopg.Error, ConnectionFailed):
            return  # the connection is gone, and with it the need to end it

    def close(self) -> None:
        self._pgconn.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drain(self) -> tuple[Messages, bool]:
        views: list[memoryview] = []
        lengths: list[int] = []
        size, heard = 0, False
        began, lingered = time.monotonic(), False
        get, keep, note = self._pgconn.get_copy_data, views.append, lengths.append
        while True:
            before = len(views)
            try:
                self._pgconn.consume_input()
                while True:
                    length, data = get(1)
                    if length <= 0:
                        break
                    if length == _KEEPALIVE_BODY.size and data[0] == _KEEPALIVE:
                        self._keepalive(bytes(data))
                        heard = True
                        continue
                    keep(data)
                    note(length)
            except psycopg.Error as error:
                self._connection_failed(str(error))
            if length < 0:
                self._ended()
            if self._lost:
                raise SlotLost(slot=self._slot, cause=self._lost, lsn=self.acknowledged)
            size += sum(lengths[before:])
            elapsed = time.monotonic() - began
            if size >= _DRAIN_BYTES or elapsed > _DRAIN_SECONDS:
                break
            if len(views) > before:
                lingered = False
            elif lingered or not views or elapsed > _LINGER_SECONDS:
                break
            else:
                # The server sends each message by itself. Who takes them one by one is busy with that alone, and keeps
                # the server's process from its work each time.
                lingered = True
                time.sleep(_PAUSE_SECONDS)
        if views or heard:
            self._heard, self._asked = time.monotonic(), None
        return self._joined(views, lengths) if views else _NOTHING, heard

    def _joined(self, views: list[memoryview], lengths: list[int]) -> Messages:
        (start,) = _DATA_START.unpack_from(views[-1])
        self.received = max(self.received, Lsn(start))
        return Messages(np.frombuffer(b"".join(views), np.uint8), np.array(lengths, np.int64))

    def _keepalive(self, data: bytes) -> None:
        wal_end, _, reply = _KEEPALIVE_BODY.unpack(data)
        self.keepalive_lsn = max(self.keepalive_lsn, Lsn(wal_end))
        self.received = max(self.received, self.keepalive_lsn)
        if reply:
            self._tell()

    def _keep_up(self) -> None:
        now = time.monotonic()
        if self._asked is not None and now - self._asked > self._patience.give_up:
            self._connection_failed(f"no sign of life for {now - self._heard:.0f} s")
        if self._asked is None and now - self._heard > self._patience.ask:
            self._asked = now
            self._tell(reply=True)
        elif now - self._told > self._patience.status:
            self._tell()

    def _next_duty(self) -> float:
        silence = self._heard + self._patience.ask if self._asked is None else self._asked + self._patience.give_up
        return max(0.01, min(self._told + self._patience.status, silence) - time.monotonic() + 0.01)

    def _wait(self, timeout: float, wake: Sequence[int], reading: bool = True) -> bool:
        poll = select.poll()
        if wanted := (select.POLLIN if reading else 0) | (select.POLLOUT if self._unsent else 0):
            poll.register(self._pgconn.socket, wanted)
        for fd in wake:
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(timeout * 1000)}
        if self._unsent:
            self._flush()
        return not ready.isdisjoint(wake)

    def _tell(self, reply: bool = False) -> None:
        clock = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
        durable = int(self.acknowledged)
        message = _STATUS.pack(b"r", max(self.received, self.acknowledged), durable, durable, clock, reply)
        try:
            self._pgconn.put_copy_data(message)
        except psycopg.Error as error:
            self._connection_failed(str(error))
        self._told = time.monotonic()
        self._flush()

    def _flush(self) -> None:
        try:
            self._unsent = bool(self._pgconn.flush())
        except psycopg.Error as error:
            self._connection_failed(str(error))

    def _ended(self) -> NoReturn:
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            self._fail(result)
        self._connection_failed("the server ended the stream")

    def _connection_failed(self, message: str) -> NoReturn:
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        raise ConnectionFailed(server=server_name(self._source), cause=lines[0] if lines else "connection lost")

    def _fail(self, result: pq.abc.PGresult) -> NoReturn:
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        cause = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        match state:
            case "55006":
                pid = "".join(char for char in cause.rpartition(" ")[2] if char.isdigit())
                raise SlotInUse(slot=self._slot, holder=f"server process {pid or '?'}", pid=pid or "?")
            case "42704":
                # The slot is missing, or the publication was when a change was made: lost either way.
                raise SlotLost(slot=self._slot, cause=f"can't be read ({cause})", lsn=self.acknowledged)
            case "58P01":
                raise SlotLost(slot=self._slot, cause=f"needs WAL that is gone ({cause})", lsn=self.acknowledged)
            case "55000":
                raise SlotLost(slot=self._slot, cause=f"was invalidated ({cause})", lsn=self.acknowledged)
        if not state or state[:2] in ("08", "57"):
            self._connection_failed(cause or result.get_error_message())
        raise SourceError(operation=f"streaming from slot {self._slot}", cause=cause)
