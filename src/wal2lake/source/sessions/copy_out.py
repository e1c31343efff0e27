"""Rows of COPY TO STDOUT (FORMAT binary), in portions of one buffer each, without an object for each row."""

from __future__ import annotations

import select
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import pq

from .connect import Connection

FILE_HEADER = 19
"""bytes before the first row: signature, flags and the length of an extension"""
TRAILER_BYTES = 2
"""a row has more: the number of its fields takes as many"""


@dataclass(frozen=True)
class Portion:
    """Some rows, one after the other."""

    data: bytearray
    lengths: list[int]


def copied_out(conn: Connection, statement: str, most: int) -> Iterator[Portion]:
    """The rows of a COPY, about `most` bytes at a time. Raises psycopg's errors.

    Other threads run while the server is waited for. Whoever takes not all of it has to close the connection.
    """
    pgconn = conn.pgconn
    pgconn.send_query(statement.encode())
    first = True
    while (result := _result(pgconn)) is not None:
        if result.status == pq.ExecStatus.COPY_OUT:
            for data, lengths in _portions(pgconn, most):
                if first:
                    del data[:FILE_HEADER]
                    lengths[0] -= FILE_HEADER
                    first = False
                if lengths[-1] == TRAILER_BYTES:
                    del data[-TRAILER_BYTES:], lengths[-1]
                if lengths:
                    yield Portion(data, lengths)
        elif result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result, encoding="utf-8")


def _portions(pgconn: pq.abc.PGconn, most: int) -> Iterator[tuple[bytearray, list[int]]]:
    get = pgconn.get_copy_data
    data, lengths = bytearray(), list[int]()
    note = lengths.append
    while True:
        length, row = get(1)
        if length > 0:
            data += row
            note(length)
            if len(data) < most:
                continue
        elif length == 0:
            _wait(pgconn)
            continue
        if lengths:
            yield data, lengths
        if length < 0:
            return
        data, lengths = bytearray(), []
        note = lengths.append


def _result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult | None:
    while pgconn.is_busy():
        _wait(pgconn)
    return pgconn.get_result()


def _wait(pgconn: pq.abc.PGconn) -> None:
    select.select([pgconn.socket], [], [])
    pgconn.consume_input()
