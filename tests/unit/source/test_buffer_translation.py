"""Rows of published buffers as changes of their tables: the same as a drain makes of the same rows."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest
from test_buffer_rows import Row, copied

from wal2lake.decode import Messages
from wal2lake.decode.messages import parse_relation
from wal2lake.schema import TableId
from wal2lake.source.triggers import draining
from wal2lake.source.triggers.definition import Buffer, BufferColumn
from wal2lake.source.triggers.translation import BufferTranslator, Captured, buffer_of
from wal2lake.source.triggers.tuples import Rows

TABLE, BUFFER, NEXT, OTHER = 16399, 20001, 20002, 16500
HEADER = b"w" + struct.pack(">QQQ", 11, 22, 33)
COLUMNS = tuple(BufferColumn(name, 25, -1, "text", "textout") for name in ("a", "b", "c"))
VALUES = [None, b"", b"1", b"two", bytes(range(9)), b"x" * 300]


def message(body: bytes, xid: int | None = None) -> bytes:
    """`xid`: it is in a block of a streamed transaction."""
    return HEADER + body[:1] + (b"" if xid is None else struct.pack(">I", xid)) + body[1:]


def described(oid: int, namespace: str, name: str, xid: int | None = None) -> bytes:
    body = b"R" + struct.pack(">I", oid) + f"{namespace}\0{name}\0".encode() + b"d" + struct.pack(">H", 1)
    return message(body + b"\1id\0" + struct.pack(">Ii", 23, -1), xid)


def buffer(oid: int = BUFFER, generation: int = 0, xid: int | None = None) -> bytes:
    name = f"changes_{TABLE}" + (f"_{generation}" if generation else "")
    return described(oid, "wal2lake_changes", name, xid)


def row(
    kind: str, values: Sequence[bytes | None], form: bytes = b"t", oid: int = BUFFER, xid: int | None = None
) -> bytes:
    """An Insert into a buffer."""
    number = (b"77", b"9876") if form == b"t" else (struct.pack(">q", 77), struct.pack(">q", 9876))
    cells = [*number, *values, kind.encode()]
    body = b"".join(b"n" if cell is None else form + struct.pack(">i", len(cell)) + cell for cell in cells)
    return message(b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", len(cells)) + body, xid)


def plain(kind: bytes, oid: int, xid: int | None = None) -> bytes:
    """A change of a table itself."""
    return message(
        kind + struct.pack(">I", oid) + b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">i", 1) + b"1", xid
    )


def find(relid: int, generation: int) -> Captured | None:
    return Captured(relid, TableId("public", "t"), COLUMNS[: 3 - generation]) if relid == TABLE else None


def translated(*messages: bytes, cut: random.Random | None = None) -> list[bytes]:
    """What comes of messages, which arrive in portions that chance decides."""
    translator, given, rest = BufferTranslator(find), list[bytes](), list(messages)
    while rest:
        count = len(rest) if cut is None else cut.randint(1, len(rest))
        given += translator.translate(Messages.of(rest[:count]))
        rest = rest[count:]
    return given


def kinds(messages: Sequence[bytes]) -> str:
    return "".join(chr(one[25]) for one in messages)


def drained(rows: Sequence[Row], binary: bool) -> list[bytes]:
    made = Buffer(TABLE, 0, COLUMNS, "")
    return [one for some in draining._messages(made, Rows(copied(rows)), binary) for one in some]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("xid", [None, 4711])
def test_rows_become_what_a_drain_makes_of_them(binary: bool, xid: int | None) -> None:
    chance = random.Random(7)
    form = b"b" if binary else b"t"
    for _ in range(300):
        rows: list[Row] = [
            (kind, [None] * 3 if kind in "TX" else chance.choices(VALUES, k=3))
            for kind in chance.choices("IIIDDDTX", k=chance.randint(1, 12))
        ]
        around = () if xid is None else (HEADER + b"S" + struct.pack(">IB", xid, 1),)
        sent = [*around, buffer(xid=xid), *(row(kind, values, form, xid=xid) for kind, values in rows)]
        given = translated(*sent, cut=chance)[len(around) :]
        inside = b"" if xid is None else struct.pack(">I", xid)
        assert all(one[26 : 26 + len(inside)] == inside for one in given)
        bare = [one[25:26] + one[26 + len(inside) :] for one in given]
        assert bare[1:] == [one[25:] for one in drained(rows, binary)]
        told = parse_relation(HEADER + bare[0])
        assert (told.oid, told.namespace, told.name, told.identity.value) == (TABLE, "public", "t", "f")
        assert [(column.name, column.key) for column in told.columns] == [("a", True), ("b", True), ("c", True)]


def test_what_is_not_of_a_buffer_stays_as_it_is() -> None:
    others = [described(OTHER, "public", "o"), plain(b"I", OTHER), message(b"C" + bytes(25)), plain(b"U", OTHER)]
    assert translated(*others) == others
    mixed = [others[0], buffer(), others[1], row("I", [b"1", None, b""]), *others[2:]]
    given = translated(*mixed)
    assert [one for one in given if one in others] == others
    assert kinds(given) == "RIRICU"


def test_a_table_is_described_again_when_its_rows_come_in_another_form() -> None:
    given = translated(
        buffer(), row("I", VALUES[:3]), described(TABLE, "public", "t"), plain(b"I", TABLE), buffer(NEXT, 1),
        row("I", VALUES[:2], oid=NEXT), row("D", VALUES[:3]), plain(b"U", TABLE), plain(b"D", TABLE),
    )  # fmt: skip
    assert kinds(given) == "RIRIRIRDRUD"
    relations = [parse_relation(one) for one in given if one[25:26] == b"R"]
    assert [(len(one.columns), one.identity.value) for one in relations] == [
        (3, "f"), (1, "d"), (2, "f"), (3, "f"), (1, "d"),
    ]  # fmt: skip


def start(xid: int) -> bytes:
    return HEADER + b"S" + struct.pack(">IB", xid, 1)


STOP = HEADER + b"E"


def test_each_streamed_transaction_has_the_table_described_and_so_has_what_follows_it() -> None:
    commit = HEADER + b"c" + struct.pack(">IBqqq", 5, 0, 1, 2, 3)
    given = translated(
        buffer(), row("I", VALUES[:3]), start(5), row("I", VALUES[:3], xid=5), STOP, row("D", VALUES[:3]), start(5),
        row("I", VALUES[:3], xid=5), STOP, commit, row("I", VALUES[:3]),
    )  # fmt: skip
    assert kinds(given) == "RISRIEDSIEcRI"


def test_after_a_part_of_a_streamed_transaction_was_rolled_back_the_table_is_described_again() -> None:
    abort = HEADER + b"A" + struct.pack(">II", 5, 6)
    given = translated(
        start(5), buffer(xid=6), row("I", VALUES[:3], xid=6), STOP, abort, start(5), row("I", VALUES[:3], xid=7), STOP
    )
    assert kinds(given) == "SRIEASRIE"
    assert given[6][26:30] == struct.pack(">I", 7)


def test_truncating_a_buffer_truncates_no_table() -> None:
    alone = message(b"T" + struct.pack(">IBI", 1, 0, BUFFER))
    both = message(b"T" + struct.pack(">IBII", 2, 0, BUFFER, OTHER))
    given = translated(buffer(), row("T", [None] * 3), alone, both)
    assert kinds(given) == "RTT"
    assert given[-1][25:] == b"T" + struct.pack(">IBI", 1, 0, OTHER)
    assert given[1][25:] == b"T" + struct.pack(">IBI", 1, 0, TABLE)


def test_rows_of_a_buffer_that_is_gone_are_left_out() -> None:
    gone = described(BUFFER, "wal2lake_changes", "changes_99")
    assert kinds(translated(gone, row("I", VALUES[:3]), plain(b"I", OTHER))) == "I"


def test_a_table_without_columns() -> None:
    translator = BufferTranslator(lambda relid, _: Captured(relid, TableId("public", "t"), ()))
    given = list(translator.translate(Messages.of([buffer(), row("I", []), row("D", [])])))
    assert [one[25:26] for one in given] == [b"R", b"I", b"D"]
    assert given[1][26:] == struct.pack(">I", TABLE) + b"N\0\0"


def test_names_of_buffers() -> None:
    assert buffer_of("wal2lake_changes", "changes_12") == (12, 0)
    assert buffer_of("wal2lake_changes", "changes_12_3") == (12, 3)
    assert buffer_of("public", "changes_12") is None
    assert buffer_of("wal2lake_changes", "lanes") is None
