"""The text of test_decoding.

    BEGIN 754
    table public.t: INSERT: id[integer]:1 v[text]:'it''s'
    table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 v[text]:unchanged-toast-datum
    table public.t: DELETE: id[integer]:2
    table public.a, public.b: TRUNCATE: restart_seqs cascade
    COMMIT 754 (at 2026-11-18 20:17:10.123456+00)

A string is in quotes, and doubles those inside it; it may hold the end of a line. Names are quoted as in SQL. Of an old
row the columns that are NULL are left out.
"""

from __future__ import annotations

import re

from .told import Began, Cell, Ended, NotUnderstood, RowTold, TableName, Told, Truncated, Unchanged, Value, microseconds

OPTIONS = {"include-xids": "true", "include-timestamp": "true", "skip-empty-xacts": "false"}

_IDENTIFIER = rb'(?:"(?:[^"]|"")*"|[^\s".:,\[\]]+)'
_NAME = re.compile(rb"(%s)\.(%s)" % (_IDENTIFIER, _IDENTIFIER))
_COLUMN = re.compile(
    rb" (?P<name>%s)\[(?P<type>(?:[^\[\]\"]|\"(?:[^\"]|\"\")*\"|\[\])*)\]:"
    rb"(?:'(?P<text>[^']*(?:''[^']*)*)'|B'(?P<bits>[01]*)'|(?P<plain>[^\s']+))" % _IDENTIFIER
)
_BEGIN = re.compile(rb"BEGIN (\d+)")
_COMMIT = re.compile(rb"COMMIT (\d+) \(at ([^)]+)\)")
_KIND = re.compile(rb": (INSERT|UPDATE|DELETE|TRUNCATE):")
_OLD, _NEW, _NOTHING = b" old-key:", b" new-tuple:", b" (no-tuple-data)"
_FLAGS = re.compile(rb" \(no-flags\)|(?: restart_seqs)?(?: cascade)?")
_PLAIN: dict[bytes, Value] = {
    b"null": None, b"true": b"t", b"false": b"f", b"unchanged-toast-datum": Unchanged.TOAST,
}  # fmt: skip


def parse(message: bytes) -> Told | None:
    """What a message tells; None if it is nothing of a table. Raises NotUnderstood."""
    if message.startswith(b"table "):
        return _change(message)
    if found := _BEGIN.fullmatch(message):
        return Began(int(found[1]), None)
    if found := _COMMIT.fullmatch(message):
        return Ended(int(found[1]), microseconds(found[2].decode()), None)
    if message.startswith(b"message: "):
        return None
    raise NotUnderstood


def _change(message: bytes) -> Told:
    tables, at = [], len(b"table ")
    while True:
        found = _NAME.match(message, at)
        if found is None:
            raise NotUnderstood
        tables.append(TableName(_identifier(found[1]), _identifier(found[2])))
        at = found.end()
        if not message.startswith(b", ", at):
            break
        at += 2
    found = _KIND.match(message, at)
    if found is None:
        raise NotUnderstood
    at = found.end()
    if found[1] == b"TRUNCATE":
        if not _FLAGS.fullmatch(message, at):
            raise NotUnderstood
        return Truncated(tuple(tables))
    if len(tables) > 1:
        raise NotUnderstood
    return _row(found[1][:1].decode(), tables[0], message, at)


def _row(kind: str, table: TableName, message: bytes, at: int) -> RowTold:
    if message.startswith(_NOTHING, at):
        if kind != "D" or at + len(_NOTHING) != len(message):
            raise NotUnderstood
        return RowTold(kind, table, (), None, complete=False)
    old: tuple[Cell, ...] | None = None
    if kind == "U" and message.startswith(_OLD, at):
        old, at = _cells(message, at + len(_OLD))
        if not message.startswith(_NEW, at):
            raise NotUnderstood
        at += len(_NEW)
    cells, at = _cells(message, at)
    if at != len(message):
        raise NotUnderstood
    if kind == "D":
        return RowTold(kind, table, (), cells, complete=False)
    return RowTold(kind, table, cells, old, complete=True)


def _cells(message: bytes, at: int) -> tuple[tuple[Cell, ...], int]:
    cells = []
    while found := _COLUMN.match(message, at):
        name, type_name, text, bits, plain = found.groups()
        value: Value
        if text is not None:
            value = text.replace(b"''", b"'")
        elif bits is not None:
            value = bits
        else:
            value = _PLAIN.get(plain, plain)
        cells.append(Cell(_identifier(name), type_name.decode(), value))
        at = found.end()
    return tuple(cells), at


def _identifier(text: bytes) -> str:
    return (text[1:-1].replace(b'""', b'"') if text.startswith(b'"') else text).decode()
