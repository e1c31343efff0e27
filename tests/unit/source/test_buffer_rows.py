"""Rows that COPY sends of a buffer, as messages: what was sent, with the kinds of values between."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from wal2lake.errors import SourceError
from wal2lake.source.sessions.copy_out import Portion
from wal2lake.source.triggers.tuples import Rows, head

OID = 16399
Row = tuple[str, Sequence[bytes | None]]


def copied(rows: Sequence[Row]) -> Portion:
    sent = [
        struct.pack(">h", 1 + len(values)) + b"".join(map(field, [head(kind, OID, len(values)), *values]))
        for kind, values in rows
    ]
    return Portion(bytearray(b"".join(sent)), list(map(len, sent)))


def field(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def message(row: Row, form: bytes) -> bytes:
    kind, values = row
    told = b"".join(b"n" if value is None else form + struct.pack(">i", len(value)) + value for value in values)
    return kind.encode() + struct.pack(">I", OID) + {"I": b"N", "D": b"O"}[kind] + struct.pack(">H", len(values)) + told


def test_rows_become_messages() -> None:
    chosen = random.Random(3)
    values = [None, b"", b"1", b"two", bytes(range(9))]
    for _ in range(300):
        rows: list[Row] = [(chosen.choice("ID"), chosen.choices(values, k=3)) for _ in range(chosen.randint(1, 6))]
        first = chosen.randrange(len(rows))
        last = chosen.randint(first + 1, len(rows))
        binary = chosen.random() < 0.5
        found = Rows(copied(rows)).messages(3, first, last, binary)
        assert all(one.startswith(b"w") for one in found)
        assert [one[25:] for one in found] == [message(row, b"b" if binary else b"t") for row in rows[first:last]]


def test_marks_are_found_among_rows() -> None:
    rows = Rows(copied([("I", [b"1"]), ("T", [None]), ("D", [b"2"]), ("X", [None])]))
    assert rows.marks() == [1, 3] and rows.kinds.tobytes() == b"ITDX"
    assert [one[25:] for one in rows.messages(1, 2, 3, False)] == [message(("D", [b"2"]), b"t")]


def test_a_table_without_columns() -> None:
    assert [one[25:] for one in Rows(copied([("I", ())] * 2)).messages(0, 0, 2, True)] == [message(("I", ()), b"b")] * 2


def test_a_row_with_other_columns_is_refused() -> None:
    with pytest.raises(SourceError, match="columns"):
        Rows(copied([("I", [b"1", b"2"])])).messages(1, 0, 1, False)
