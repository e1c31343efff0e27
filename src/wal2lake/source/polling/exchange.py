"""One statement on a connection, taken in as its answer comes: rows of text, or rows of a COPY.

Never waits: whoever holds it waits on the socket, for as long as he likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psycopg
from psycopg import pq

from ...decode import Messages
from ..streaming.wire.contract import Broken, Refused, Said

PADDING = "'\\x000000'::bytea"
"""a column of three bytes"""
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_FILE_HEADER = len(_SIGNATURE) + 8
_TRAILER_BYTES = 2
_XLOG_DATA = ord("w")
_LSN_AT = 6


class Exchange:
    """Begins when it is made. Any method may raise Broken or Refused; the connection is of no use then."""

    def __init__(self, pgconn: pq.abc.PGconn, statement: str) -> None:
        self._pgconn = pgconn
        self.over = False
        self.rows: list[tuple[str | None, ...]] = []
        """of statements that are no COPY"""
        self.copied = 0
        """rows of the COPY so far"""
        self._copying = False
        # In one buffer: an object for each row would cost more than all else that is done with it.
        self._data = bytearray()
        self._lengths: list[int] = []
        with explained():
            pgconn.send_query(statement.encode())

    def gather(self, most: int) -> None:
        """Take in what has come, up to so many bytes of the COPY."""
        with explained():
            self._pgconn.flush()
            self._pgconn.consume_input()
            while not self.over:
                if self._copying:
                    if not self._gather_rows(most):
                        return
                elif self._pgconn.is_busy():
                    return
                else:
                    self._result(self._pgconn.get_result())

    def _gather_rows(self, most: int) -> bool:
        """Take in rows of the COPY; whether it has ended."""
        get, data, note = self._pgconn.get_copy_data, self._data, self._lengths.append
        while len(data) < most:
            length, row = get(1)
            if length <= 0:
                if length < 0:
                    self._copying = False
                return length < 0
            if not self.copied:
                # The first row comes with the header of the file.
                row = row[_FILE_HEADER:]
                length -= _FILE_HEADER
            if length == _TRAILER_BYTES:
                continue
            self.copied += 1
            data += row
            note(length)
        return False

    def _result(self, result: pq.abc.PGresult | None) -> None:
        if result is None:
            self.over = True
        elif result.status == pq.ExecStatus.COPY_OUT:
            self._copying = True
        elif result.status == pq.ExecStatus.TUPLES_OK:
            for row in range(result.ntuples):
                values = (result.get_value(row, column) for column in range(result.nfields))
                self.rows.append(tuple(None if value is None else value.decode() for value in values))
        elif result.status != pq.ExecStatus.COMMAND_OK:
            raise Refused(said(result))

    @property
    def size(self) -> int:
        """Bytes of the COPY that have not been taken."""
        return len(self._data)

    @property
    def pending(self) -> int:
        """Rows of the COPY that have not been taken."""
        return len(self._lengths)

    def take(self) -> Messages:
        """The rows of the COPY that have come, each as XLogData. They have the columns lsn, PADDING and data.

        In the binary format these take 25 bytes up to the data: as many as the header of XLogData.
        """
        if not self._lengths:
            return Messages.of([])
        data, lengths = np.frombuffer(self._data, np.uint8), np.array(self._lengths, np.int64)
        self._data, self._lengths = bytearray(), []
        start = np.cumsum(lengths) - lengths
        data[start] = _XLOG_DATA
        for byte in range(8):
            data[start + 1 + byte] = data[start + _LSN_AT + byte]
        return Messages(data, lengths)


def said(result: pq.abc.PGresult) -> Said:
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return Said(state.decode(), text.decode(errors="replace").strip())


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise Broken(str(error)) from error
