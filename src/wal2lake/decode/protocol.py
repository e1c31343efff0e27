"""Messages of pgoutput, written: for sources whose changes come in another form."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from enum import Enum

from .model import Relation

_UNCHANGED = b"u"
_NULL = b"n"
_LENGTH = struct.Struct(">ci")
_OID = struct.Struct(">cI")
_COLUMNS = struct.Struct(">H")
_TYPE = struct.Struct(">Ii")
_XID = struct.Struct(">I")


class Untold(Enum):
    """A value that a row does not have."""

    UNCHANGED = "unchanged TOAST"


Field = bytes | None | Untold


def begin(commit_lsn: int, commit_us: int, xid: int) -> bytes:
    return struct.pack(">cqqI", b"B", commit_lsn, commit_us, xid)


def commit(commit_lsn: int, end_lsn: int, commit_us: int) -> bytes:
    return struct.pack(">cBqqq", b"C", 0, commit_lsn, end_lsn, commit_us)


def relation(described: Relation) -> bytes:
    parts = [_OID.pack(b"R", described.oid), _text(described.namespace), _text(described.name)]
    parts += [described.identity.value.encode(), _COLUMNS.pack(len(described.columns))]
    for column in described.columns:
        parts += [bytes([column.key]), _text(column.name), _TYPE.pack(column.type_oid, column.typmod)]
    return b"".join(parts)


def insert(oid: int, row: Sequence[Field]) -> bytes:
    return _OID.pack(b"I", oid) + b"N" + _tuple(row)


def update(oid: int, row: Sequence[Field], old: Sequence[Field] | None, old_kind: bytes) -> bytes:
    """`old_kind`: K if only the key is known, O for the whole row."""
    before = b"" if old is None else old_kind + _tuple(old)
    return _OID.pack(b"U", oid) + before + b"N" + _tuple(row)


def delete(oid: int, old: Sequence[Field], old_kind: bytes) -> bytes:
    return _OID.pack(b"D", oid) + old_kind + _tuple(old)


def truncate(oids: Sequence[int]) -> bytes:
    return struct.pack(f">cIB{len(oids)}I", b"T", len(oids), 0, *oids)


def refused(oid: int, error: str, **fields: str) -> bytes:
    """Not PostgreSQL's own: a change that the source can't represent, with the name and the fields of an error.

    The field `table` is filled in by who knows the table's name.
    """
    return _OID.pack(b"X", oid) + json.dumps([error, fields]).encode()


def stream_start(xid: int) -> bytes:
    """Protocol 2: the one block of a transaction begins."""
    return struct.pack(">cIB", b"S", xid, 1)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, commit_us: int) -> bytes:
    return struct.pack(">cIBqqq", b"c", xid, 0, commit_lsn, end_lsn, commit_us)


def in_block(message: bytes, xid: int) -> bytes:
    """A change or a description as it stands in a block."""
    return message[:1] + _XID.pack(xid) + message[1:]


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _tuple(fields: Iterable[Field]) -> bytes:
    parts = [_field(field) for field in fields]
    return _COLUMNS.pack(len(parts)) + b"".join(parts)


def _field(field: Field) -> bytes:
    if field is None:
        return _NULL
    if isinstance(field, Untold):
        return _UNCHANGED
    return _LENGTH.pack(b"t", len(field)) + field
