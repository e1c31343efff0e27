"""The wire of any connection, through libpq, message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import psycopg
from psycopg import pq

from ....decode import Messages
from .contract import Arrived, Broken, Refused, Said

_KEEPALIVE, _KEEPALIVE_BYTES = ord("k"), 18


class Libpq:
    def __init__(self, pgconn: pq.abc.PGconn, notice: Callable[[Said], None]) -> None:
        self._pgconn = pgconn
        pgconn.notice_handler = lambda result: notice(_said(result))
        pgconn.nonblocking = 1
        self.gathered = 0
        self._views: list[memoryview] = []
        self._lengths: list[int] = []
        self._keepalives: list[bytes] = []

    @property
    def fileno(self) -> int:
        return self._pgconn.socket

    def ask(self, command: bytes) -> None:
        with _explained():
            self._pgconn.send_query(command)
        self.flush()

    def agreed(self) -> bool:
        with _explained():
            self._pgconn.consume_input()
            if self._pgconn.is_busy():
                return False
            result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            _ended(result)
        return True

    def gather(self) -> bool:
        before, known = self.gathered, len(self._lengths)
        get, keep, note = self._pgconn.get_copy_data, self._views.append, self._lengths.append
        with _explained():
            self._pgconn.consume_input()
            while True:
                length, data = get(1)
                if length <= 0:
                    break
                if length == _KEEPALIVE_BYTES and data[0] == _KEEPALIVE:
                    self._keepalives.append(bytes(data))
                    self.gathered += length
                    continue
                keep(data)
                note(length)
            if length < 0:
                _ended(self._pgconn.get_result())
        self.gathered += sum(self._lengths[known:])
        return self.gathered > before

    def take(self) -> Arrived:
        data = np.frombuffer(b"".join(self._views), np.uint8)
        arrived = Arrived(Messages(data, np.array(self._lengths, np.int64)), self._keepalives)
        self._views, self._lengths, self._keepalives, self.gathered = [], [], [], 0
        return arrived

    def send(self, message: bytes) -> None:
        with _explained():
            self._pgconn.put_copy_data(message)
        self.flush()

    def end(self) -> None:
        with _explained():
            self._pgconn.put_copy_end()
        self.flush()

    def flush(self) -> bool:
        with _explained():
            return not self._pgconn.flush()

    def close(self) -> None:
        self._pgconn.finish()


def _ended(result: pq.abc.PGresult | None) -> NoReturn:
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        raise Broken("the server ended the stream")
    raise Refused(_said(result))


def _said(result: pq.abc.PGresult) -> Said:
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return Said(state.decode(), text.decode(errors="replace"))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise Broken(str(error)) from error
