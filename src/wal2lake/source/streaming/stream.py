"""The replication stream: raw pgoutput messages in, acknowledgements out. The only place that waits on its socket.

    read()         returns what has arrived; answers keepalives
    stay()         waits without reading: the server holds its messages back, and still gets status updates
    acknowledge()  reports the durable position; repeated every few seconds as a status update

A dead peer is detected: after a silence the server is asked for a reply, and without one the connection is closed.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, Self

from ... import quoting
from ...config import PGOUTPUT, SourceConfig
from ...decode import Messages, plugin_options
from ...errors import ConnectionFailed, SlotLost
from ...position import Lsn
from ..ports import Capabilities, StreamRequest
from ..sessions.closing import Closing
from ..sessions.connect import replication_connect
from . import wire
from .refusals import broken, refused, skipped

STREAMING_SINCE = 140000
"""server version from which transactions can be streamed before their commit (protocol 2)"""
BINARY_SINCE = 140000
_POSTGRES_EPOCH = 946_684_800
_DRAIN_BYTES = 4 * 1024 * 1024
_DRAIN_SECONDS = 0.2
_LINGER_SECONDS = 0.05
"""limit for collecting further messages while they keep arriving"""
_PAUSE_SECONDS = 0.01
_KEEPALIVE_BODY = struct.Struct(">xQqB")
DATA_START = struct.Struct(">xQ")
_STATUS = struct.Struct(">cQQQqB")


@dataclass(frozen=True)
class StreamTimeouts:
    """Intervals of status updates and limits of silence, in seconds."""

    status: float = 10.0
    """at least one status update in this time"""
    ask: float = 20.0
    """after this much silence the server is asked to reply"""
    give_up: float = 60.0
    """after this much more the connection is considered dead"""
    staying: float = 0.5
    """interval of status updates while nothing is read, when keepalives of the server are not seen"""


class ReplicationStream(Closing):
    """START_REPLICATION: the ChangeSource of a replication slot. Positions only grow; `close` ends it."""

    def __init__(
        self, source: SourceConfig, slot: str, publication: str, start: Lsn, *, group: str,
        patience: StreamTimeouts | None = None, binary: bool = False, also: Sequence[str] = (), exact: bool = True,
    ) -> None:  # fmt: skip
        """`binary`: request values in binary form where their types have one. `also`: further publications.

        With another plugin than pgoutput the messages are in its form. `exact`: request also what only newer versions
        of it know; SourceRefused is raised if the server's does not.
        """
        self._source, self._slot, self._publications, self._exact = source, slot, (publication, *also), exact
        self._patience = patience or StreamTimeouts()
        self.acknowledged = start
        """the position that was last sent to the server"""
        self.received = start
        self.keepalive_lsn = start
        """the server has sent every transaction that committed below this"""
        self._lost: str | None = None
        pgconn = replication_connect(source, group)
        self.server_version = pgconn.server_version
        ours = source.plugin == PGOUTPUT
        self.capabilities = Capabilities(
            streamed=ours and source.streaming and pgconn.server_version >= STREAMING_SINCE,
            binary=ours and binary and pgconn.server_version >= BINARY_SINCE,
        )
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

    awaits_acknowledgement = False

    @classmethod
    def of(
        cls, source: SourceConfig, request: StreamRequest, group: str, patience: StreamTimeouts | None = None,
        exact: bool = True,
    ) -> Self:  # fmt: skip
        """Open the requested stream."""
        main, *also = request.publications
        if not request.streamed:
            source = source.model_copy(update={"streaming": False})
        return cls(
            source, request.slot, main, request.start, group=group, patience=patience, binary=request.binary,
            also=also, exact=exact,
        )  # fmt: skip

    def _start(self, start: Lsn) -> None:
        command = f"START_REPLICATION SLOT {quoting.plain(self._slot)} LOGICAL {start} ({self._options()})"
        with self._explained():
            self._wire.ask(command.encode())
            while not self._wire.agreed():
                self._wait(None, ())

    def _options(self) -> str:
        if self._source.plugin != PGOUTPUT:
            options = plugin_options(self._source.plugin, self._exact)
            return ", ".join(f"{quoting.plain(name)} {quoting.plain_literal(value)}" for name, value in options.items())
        names = ",".join(map(quoting.plain, self._publications))
        version = "proto_version '2', streaming 'on'" if self.capabilities.streamed else "proto_version '1'"
        if self.capabilities.binary:
            version += ", binary 'true'"
        return f"{version}, publication_names {quoting.plain_literal(names)}"

    def _notice(self, said: wire.Said) -> None:
        self._lost = skipped(said, self._publications) or self._lost

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        """Raw XLogData messages with their header; none if time is up, a keepalive came or a `wake` fd is readable."""
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
        """Read nothing until time is up or a `wake` fd is readable, but send status updates."""
        deadline = time.monotonic() + timeout
        while True:
            # Silence is not counted while nothing is read.
            self._heard, self._asked = time.monotonic(), None
            if time.monotonic() - self._told >= self._patience.staying:
                self._tell()
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._wait(min(remaining, self._patience.staying), wake, reading=False):
                return

    def acknowledge(self, lsn: Lsn) -> None:
        """Report that everything below `lsn` is durable; the server may remove the WAL before it."""
        if lsn > self.acknowledged:
            self.acknowledged = lsn
            self.received = max(self.received, lsn)
            self._tell()

    def ask(self) -> None:
        """Ask the server for a keepalive with its position."""
        self._tell(reply=True)

    def finish(self, timeout: float = 2.0) -> None:
        """End the stream cleanly: when the server ends its side it has the last acknowledgement."""
        deadline = time.monotonic() + timeout
        try:
            self._wire.end()
            while (left := deadline - time.monotonic()) > 0:
                if not self._wire.gather():
                    self._wait(left, ())
                self._wire.take()
        except (wire.Broken, wire.Refused, ConnectionFailed):
            return  # the server has ended its side, or the connection is lost, so there is nothing left to end

    def close(self) -> None:
        self._wire.close()

    def _drain(self, wake: Sequence[int]) -> tuple[Messages, bool]:
        with self._explained():
            self._gather(wake)
            arrived = self._wire.take()
        if self._lost:
            raise SlotLost(slot=self._slot, cause=self._lost, lsn=self.acknowledged)
        for sign in arrived.keepalives:
            self._keepalive(sign)
        if arrived.messages:
            (start,) = DATA_START.unpack_from(arrived.messages.data.data, int(arrived.messages.start[-1]))
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
                # The server sends messages one by one. Reading each at once would keep both sides busy with single
                # messages.
                lingered = True
                if readable(wake, _PAUSE_SECONDS):
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
        return readable(wake, timeout, (self._wire.fileno, wanted) if wanted else None)

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
        raise broken(self._source, message)

    def _refused(self, said: wire.Said) -> NoReturn:
        raise refused(self._source, self._slot, self.acknowledged, said)


def readable(fds: Sequence[int], timeout: float | None, other: tuple[int, int] | None = None) -> bool:
    """Wait until one of `fds` is readable, or another descriptor has an event; return whether it is the former."""
    poll = select.poll()
    if other is not None:
        poll.register(*other)
    for fd in fds:
        poll.register(fd, select.POLLIN)
    ready = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)}
    return not ready.isdisjoint(fds)
