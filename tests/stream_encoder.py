"""Writes pgoutput messages as a walsender does, and gives tables to decode them into."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from inline_decoder import Cut, InlineDecoder
from wal2lake.decode import DecodedTable, Relation, RelationColumn, Target
from wal2lake.position import ZERO, Lsn
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType

UNCHANGED = object()
Cell = str | bytes | None | object

OIDS = {
    "boolean": 16, "int": 23, "long": 20, "float": 700, "double": 701, "string": 25, "binary": 17, "date": 1082,
    "timestamp": 1114, "timestamptz": 1184, "decimal": 1700,
}  # fmt: skip


def table(
    columns: dict[str, str], key: Sequence[str] = ("id",), identity: ReplicaIdentity = ReplicaIdentity.DEFAULT, oid: int = 1000,
    name: str = "t", partitioned: bool = False,
) -> TableSchema:  # fmt: skip
    """A table from `{name: lake type}`."""
    made = []
    for column, text in columns.items():
        lake = LakeType.parse(text)
        type_oid = OIDS[lake.kind.value] + (100_000 if lake.is_list else 0)
        made.append(Column(column, type_oid, -1, lake.kind.value + "[]" * lake.is_list, lake))
    return TableSchema(oid, TableId("public", name), tuple(made), tuple(key), identity, partitioned)


def _message(body: bytes) -> bytes:
    return b"w" + struct.pack(">QQQ", 0, 0, 0) + body


def begin(commit_lsn: int, us: int = 0, xid: int = 1) -> bytes:
    return _message(b"B" + struct.pack(">QqI", commit_lsn, us, xid))


def commit(commit_lsn: int, end_lsn: int | None = None, us: int = 0) -> bytes:
    return _message(b"C\0" + struct.pack(">QQq", commit_lsn, commit_lsn + 10 if end_lsn is None else end_lsn, us))


def relation(schema: TableSchema, oid: int | None = None, columns: Sequence[str] | None = None) -> bytes:
    """The Relation message of a table, or of a partition of it with another oid and order of columns."""
    names = schema.names if columns is None else columns
    sent = tuple(
        RelationColumn(
            name,
            schema.column(name).type_oid if name in schema.names else 25,
            -1,
            schema.identity is ReplicaIdentity.FULL or name in schema.key,
        )
        for name in names
    )
    return relation_message(Relation(schema.oid if oid is None else oid, "public", "t", schema.identity, sent))


def relation_message(described: Relation) -> bytes:
    """The Relation message that describes a relation so."""
    body = b"R" + struct.pack(">I", described.oid) + f"{described.namespace}\0{described.name}\0".encode()
    body += described.identity.encode() + struct.pack(">H", len(described.columns))
    for column in described.columns:
        body += bytes([column.key]) + column.name.encode() + b"\0"
        body += struct.pack(">Ii", column.type_oid, column.typmod)
    return _message(body)


def _tuple(marker: bytes, cells: Sequence[Cell]) -> bytes:
    body = marker + struct.pack(">H", len(cells))
    for cell in cells:
        if cell is None:
            body += b"n"
        elif cell is UNCHANGED:
            body += b"u"
        else:
            assert isinstance(cell, str | bytes)
            value = cell.encode() if isinstance(cell, str) else cell
            body += b"t" + struct.pack(">I", len(value)) + value
    return body


def insert(oid: int, cells: Sequence[Cell]) -> bytes:
    return _message(b"I" + struct.pack(">I", oid) + _tuple(b"N", cells))


def update(
    oid: int, cells: Sequence[Cell], old_key: Sequence[Cell] | None = None, old_row: Sequence[Cell] | None = None
) -> bytes:
    body = b"U" + struct.pack(">I", oid)
    if old_key is not None:
        body += _tuple(b"K", old_key)
    if old_row is not None:
        body += _tuple(b"O", old_row)
    return _message(body + _tuple(b"N", cells))


def delete(oid: int, key: Sequence[Cell] | None = None, row: Sequence[Cell] | None = None) -> bytes:
    old = _tuple(b"K", key) if key is not None else _tuple(b"O", row or ())
    return _message(b"D" + struct.pack(">I", oid) + old)


def truncate(*oids: int) -> bytes:
    return _message(b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 3, *oids))


def other(kind: bytes) -> bytes:
    return _message(kind + b"\0" * 12)


def decoder(*schemas: TableSchema, position: Lsn = ZERO) -> InlineDecoder:
    """A decoder that mirrors these tables, each at version 1."""
    targets = {schema.oid: Target(schema, 1) for schema in schemas}

    def resolve(described: Relation) -> Target | None:
        return targets.get(described.oid)

    return InlineDecoder(resolve, position)


def decode(schema: TableSchema, *changes: bytes) -> Cut:
    """One transaction with these changes of one table."""
    made = decoder(schema)
    made.feed([begin(100), relation(schema), *changes, commit(100)])
    return made.cut()


def rows(tables: Sequence[DecodedTable], *columns: str) -> list[tuple[Any, ...]]:
    """The rows of the batches, as tuples of some columns."""
    found: list[tuple[Any, ...]] = []
    for decoded in tables:
        decoded.batch.validate(full=True)
        batch = pa.Table.from_batches([decoded.batch])
        found += zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    return found
