"""The wire of an unencrypted connection: reads the socket directly, without libpq.

    kind | length | body
     1       4      length - 4

libpq returns one message at a time, which is most of the cost of reading. Here a message costs a step over its length;
the bytes of all messages are copied at once.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator

import numpy as np
from psycopg import pq

from ....decode import Messages, picked
from .contract import Arrived, Broken, Refused, Said

BUFFER_BYTES = 4 * 1024 * 1024
_LONGEST = 1 << 30
"""PostgreSQL has no longer messages"""
_STEP = struct.Struct(">xI")
_HEAD = _STEP.size
_COPY_DATA, _COPY_BOTH, _ERROR, _NOTICE = b"dWEN"
_ENDINGS = b"cCZ"
_PASSED_OVER = b"SA"
"""ParameterStatus and NotificationResponse"""
_KEEPALIVE = ord("k")


class Line:
    def __init__(self, pgconn: pq.abc.PGconn, notice: Callable[[Said], None], buffer_bytes: int = BUFFER_BYTES) -> None:
        self._pgconn, self._notice = pgconn, notice
        self._socket = socket.socket(fileno=os.dup(pgconn.socket))
        self._socket.setblocking(False)
        self.gathered = 0
        self._buffer_bytes = buffer_bytes
        self._buffer = bytearray(buffer_bytes)
        self._filled = 0
        self._closed = False
        self._unsent = b""

    @property
    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, command: bytes) -> None:
        self._put(b"Q", command + b"\0")

    def agreed(self) -> bool:
        self.gather()
        done = 0
        for kind, at, done in self._frames():
            if kind == _COPY_BOTH:
                self._drop(done)
                return True
            self._handle(kind, at, done)
        self._drop(done)
        self._require_open()
        return False

    def gather(self) -> bool:
        before = self._filled
        try:
            with memoryview(self._buffer) as room:
                while self._filled < len(room) and not self._closed:
                    came = self._socket.recv_into(room[self._filled :])
                    self._filled += came
                    self._closed = not came
        except BlockingIOError:
            pass
        except OSError as error:
            raise _broken(error) from error
        self.gathered += self._filled - before
        return self._filled > before

    def take(self) -> Arrived:
        self.gathered = 0
        ends = self._ends()
        if not ends:
            self._require_open()
            self._make_room()
            return Arrived(Messages.of([]), [])
        end = np.array(ends, np.int64)
        start = np.concatenate([[0], end[:-1]]) + _HEAD
        data = np.frombuffer(self._buffer, np.uint8)
        if (data[start - _HEAD] != _COPY_DATA).any() or (end <= start).any():
            arrived = self._taken_singly()
        else:
            signs = data[start] == _KEEPALIVE
            keepalives = [data[start[each] : end[each]].tobytes() for each in np.flatnonzero(signs).tolist()]
            rows = ~signs
            arrived = Arrived(picked(data, start[rows], (end - start)[rows]), keepalives)
        del data
        self._drop(ends[-1])
        return arrived

    def send(self, message: bytes) -> None:
        self._put(b"d", message)

    def end(self) -> None:
        self._put(b"c", b"")

    def flush(self) -> bool:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise _broken(error) from error
        return not self._unsent

    def close(self) -> None:
        self._socket.close()
        self._pgconn.finish()

    def _put(self, kind: bytes, body: bytes) -> None:
        self._unsent += kind + struct.pack(">I", len(body) + 4) + body
        self.flush()

    def _ends(self) -> list[int]:
        """The ends of the whole messages. The first begins at the start of the buffer."""
        ends: list[int] = []
        note, step, at = ends.append, _STEP.unpack_from, 0
        with memoryview(self._buffer) as buffer, buffer[: self._filled] as filled:
            try:
                # This loop runs for every message; the exception at the buffer's end is cheaper than a check.
                while True:
                    at += step(filled, at)[0] + 1
                    note(at)
            except struct.error:
                pass
        if at > self._filled:
            ends.pop()
        return ends

    def _frames(self) -> Iterator[tuple[int, int, int]]:
        """The kind of each whole message, and the bounds of its body."""
        at = 0
        for end in self._ends():
            yield self._buffer[at], at + _HEAD, end
            at = end

    def _taken_singly(self) -> Arrived:
        """The slow path, if messages other than WAL are in between, which is rare."""
        messages: list[bytes] = []
        keepalives: list[bytes] = []
        for kind, at, end in self._frames():
            body = bytes(self._buffer[at:end])
            if kind != _COPY_DATA or not body:
                self._handle(kind, at, end)
            else:
                (keepalives if body[0] == _KEEPALIVE else messages).append(body)
        return Arrived(Messages.of(messages), keepalives)

    def _handle(self, kind: int, at: int, end: int) -> None:
        if kind in (_ERROR, _NOTICE):
            said = _said(bytes(self._buffer[at:end]))
            if kind == _ERROR:
                raise Refused(said)
            self._notice(said)
        elif kind in _ENDINGS:
            raise Broken("the server ended the stream")
        elif kind not in _PASSED_OVER:
            raise Broken("received a message that PostgreSQL does not send")

    def _require_open(self) -> None:
        if self._closed:
            raise Broken("server closed the connection unexpectedly")

    def _drop(self, end: int) -> None:
        rest = self._buffer[end : self._filled]
        if len(self._buffer) > self._buffer_bytes >= len(rest):
            self._buffer = bytearray(self._buffer_bytes)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)

    def _make_room(self) -> None:
        """Enlarge the buffer for a message that is longer."""
        if self._filled == len(self._buffer):
            size = _STEP.unpack_from(self._buffer)[0] + 1
            if size > _LONGEST:
                raise Broken("received a message that PostgreSQL does not send")
            self._buffer += bytes(size - self._filled)


def _said(body: bytes) -> Said:
    """The fields of an error or a notice: each is a letter and a zero-terminated text."""
    fields = {each[:1]: each[1:].decode(errors="replace") for each in body.split(b"\0") if each}
    return Said(fields.get(b"C", ""), fields.get(b"M", ""))


def _broken(error: OSError) -> Broken:
    return Broken(error.strerror or "connection lost")
