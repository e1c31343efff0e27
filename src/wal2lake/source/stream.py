"""The replication stream: raw pgoutput messages in, acknowledgements out. The only place that waits on its socket.

    read()         what libpq has buffered, in one go; keepalives are answered inside
    stay()         the same without reading: what the server would send waits there, and it knows that we live
    acknowledge()  the position that is durable here; repeated every few seconds so that the server knows we live

A peer that has gone silent is noticed: the server is asked for a sign of life, and given up if none comes.
"""

from __future__ import annotations

import re
import select
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from .. import quoting
from ..config import SourceConfig
from ..decode import Messages
from ..errors import ConnectionFailed, SlotInUse, SlotLost, SourceError
from ..position import Lsn
from . import wire
from .connect import replication_connect, server_name

STREAMING_SINCE = 140000
"""servers from this version on can send a transaction while it runs (protocol version 2)"""
BINARY_SINCE = 140000
_POSTGRES_EPOCH = 946_684_800
_DRAIN_BYTES = 4 * 1024 * 1024
_DRAIN_SECONDS = 0.2
_LINGER_SECONDS = 0.05
"""how long more is waited for, while there is more every moment"""
_PAUSE_SECONDS = 0.01
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
        patience: Patience | None = None, binary: bool = False, also: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`binary`: values are wanted in binary form, as far as their types have one. `also`: further publications."""
        self._source, self._slot, self._publications = source, slot, (publication, *also)
        self._patience = patience or Patience()
        self.acknowledged = start
        """the position that the server has been told"""
        self.received = start
        self.keepalive_lsn = start
        """the server has sent every transaction that committed below this"""
        self._lost: str | None = None
        pgconn = replication_connect(source, group)
        self.streaming = source.streaming and pgconn.server_version >= STREAMING_SINCE
        """whether transactions may come in blocks before they commit"""
        self.binary = binary and pgconn.server_version >= BINARY_SINCE
        """whether values have their binary form"""
        try:
            self._wire = wire.over(pgconn, self._notice)
        except BaseException:
            pgconn.finish()
            raise
        try:
            self._start(start)
        except BaseException:
            self._wire.close()
            raise
        self._heard = self._told = time.monotonic()
        self._asked: float | None = None

    def _start(self, start: Lsn) -> None:
        names = ",".join(map(quoting.plain, self._publications))
        version = "proto_version '2', streaming 'on'" if self.streaming else "proto_version '1'"
        if self.binary:
            version += ", binary 'true'"
        options = f"{version}, publication_names '{names.replace(chr(39), chr(39) * 2)}'"
        command = f'START_REPLICATION SLOT "{self._slot}" LOGICAL {start} ({options})'
        with self._explained():
            self._wire.ask(command.encode())
            while not self._wire.agreed():
                self._wait(None, ())

    def _notice(self, said: wire.Said) -> None:
        # Servers from 18 on skip a publication that did not exist when a change was made, with no more than a warning.
        for name in self._publications if said.state == "55000" else ():
            # The words around the name, and its quotes, are in the server's language.
            if names(said.text, name):
                self._lost = f"had no publication {name} for a while"

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        """Raw XLogData messages, header included; none if time is up, a keepalive came or a `wake` fd is readable."""
        deadline = time.monotonic() + timeout
        while True:
            self._keep_up()
            messages, heard = self._drain(wake)
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
            self._wire.end()
            while (left := deadline - time.monotonic()) > 0:
                if not self._wire.gather():
                    self._wait(left, ())
                self._wire.take()
        except (wire.Broken, wire.Refused, ConnectionFailed):
            return  # the server has ended its side, or the connection is gone, and with it the need to end it

    def close(self) -> None:
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drain(self, wake: Sequence[int]) -> tuple[Messages, bool]:
        with self._explained():
            self._gather(wake)
            arrived = self._wire.take()
        if self._lost:
            raise SlotLost(slot=self._slot, cause=self._lost, lsn=self.acknowledged)
        for sign in arrived.keepalives:
            self._keepalive(sign)
        if arrived.messages:
            (start,) = _DATA_START.unpack_from(arrived.messages.data.data, int(arrived.messages.start[-1]))
            self.received = max(self.received, Lsn(start))
        return arrived.messages, bool(arrived.keepalives)

    def _gather(self, wake: Sequence[int]) -> None:
        began, lingered = time.monotonic(), False
        while True:
            came = self._wire.gather()
            now = time.monotonic()
            if came:
                self._heard, self._asked, lingered = now, None, False
            elif lingered or not self._wire.gathered or now - began > _LINGER_SECONDS:
                return
            else:
                # The server sends each message by itself. Who takes them one by one is busy with that alone, and keeps
                # the server's process from its work each time.
                lingered = True
                if _readable(wake, _PAUSE_SECONDS):
                    return
            if self._wire.gathered >= _DRAIN_BYTES or now - began > _DRAIN_SECONDS:
                return

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

    def _wait(self, timeout: float | None, wake: Sequence[int], reading: bool = True) -> bool:
        with self._explained():
            sent = self._wire.flush()
        wanted = (select.POLLIN if reading else 0) | (0 if sent else select.POLLOUT)
        return _readable(wake, timeout, (self._wire.fileno, wanted) if wanted else None)

    def _tell(self, reply: bool = False) -> None:
        clock = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
        durable = int(self.acknowledged)
        message = _STATUS.pack(b"r", max(self.received, self.acknowledged), durable, durable, clock, reply)
        with self._explained():
            self._wire.send(message)
        self._told = time.monotonic()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except wire.Broken as error:
            self._connection_failed(str(error))
        except wire.Refused as error:
            self._refused(error.said)

    def _connection_failed(self, message: str) -> NoReturn:
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        raise ConnectionFailed(server=server_name(self._source), cause=lines[0] if lines else "connection lost")

    def _refused(self, said: wire.Said) -> NoReturn:
        match said.state:
            case "55006":
                pid = "".join(char for char in said.text.rpartition(" ")[2] if char.isdigit())
                raise SlotInUse(slot=self._slot, holder=f"server process {pid or '?'}", pid=pid or "?")
            case "42704":
                # The slot is missing, or the publication was when a change was made: lost either way.
                raise SlotLost(slot=self._slot, cause=f"can't be read ({said.text})", lsn=self.acknowledged)
            case "58P01":
                raise SlotLost(slot=self._slot, cause=f"needs WAL that is gone ({said.text})", lsn=self.acknowledged)
            case "55000":
                raise SlotLost(slot=self._slot, cause=f"was invalidated ({said.text})", lsn=self.acknowledged)
        if not said.state or said.state[:2] in ("08", "57"):
            self._connection_failed(said.text)
        raise SourceError(operation=f"streaming from slot {self._slot}", cause=said.text)


def names(text: str, name: str) -> bool:
    """Whether a text has a name in it that is not part of a longer one."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _readable(fds: Sequence[int], timeout: float | None, other: tuple[int, int] | None = None) -> bool:
    """Wait until one of `fds` can be read, or an event of another one comes; whether it is the former."""
    poll = select.poll()
    if other is not None:
        poll.register(*other)
    for fd in fds:
        poll.register(fd, select.POLLIN)
    ready = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)}
    return not ready.isdisjoint(fds)
