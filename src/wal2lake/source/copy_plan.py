"""What the initial copy of a table asks PostgreSQL for, and which of its values no lake type can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import sql

from .. import quoting
from ..config import SourceConfig
from ..errors import ValueRefused
from ..pgtypes import (
    Kind,
    LakeType,
    PgType,
    Wire,
    masked_wire,
    sha256_sql,
    unfit_sql,
    wire,
)
from ..schema import Column, TableSchema
from .catalog import tables, types
from .connect import Connection, explained, jdbc, query
from .locking import wait_briefly
from .model import CopySource, Heap, filtered

_FALLBACK_ROW_BYTES = 128


def copy_source(conn: Connection, source: SourceConfig, schema: TableSchema) -> CopySource:
    """All that the initial copy needs. ONLY stands in each heap's name: inheriting tables are tables of their own."""
    parts = [heap.oid for heap in schema.heaps]
    # Who waits to alter the table waits for the copy, and whoever comes later, like this question, would wait for both.
    with explained("measuring", str(schema.id)), conn.transaction():
        wait_briefly(conn)
        rows = conn.execute(query("heaps"), {"oids": parts}).fetchall()
    heaps = tuple(
        Heap(f"ONLY {quoting.plain(namespace)}.{quoting.plain(name)}", pages, max(1, width or _FALLBACK_ROW_BYTES))
        for namespace, name, pages, width in rows
    )
    dims = {column.name: column.dims for column in tables(conn, [schema.oid])[schema.oid].columns}
    known = types(conn, [column.type_oid for column in schema.columns])
    wires = tuple(_wire(column, dims[column.name], known) for column in schema.columns)
    url, properties = jdbc(source)
    return CopySource(schema, heaps, wires, url, properties)


def _wire(column: Column, dims: int, known: Mapping[int, PgType]) -> Wire:
    name, spark_name = quoting.plain(column.name), "`" + column.name.replace("`", "``") + "`"
    if column.mask is not None:
        return masked_wire(name, spark_name, column.mask)
    return wire(name, spark_name, column.type_oid, column.typmod, dims, known, column.lake)


def find_unfit(conn: Connection, schema: TableSchema, snapshot: str | None = None) -> ValueRefused | None:
    """The first value of a table that its lake type can't hold, as the error that names it; None if all fit."""
    conditions = [(c, unfit_sql(quoting.plain(c.name), c.lake)) for c in schema.columns if c.mask is None]
    checked = [(column, condition) for column, condition in conditions if condition]
    if not checked:
        return None
    labels: list[sql.Composable] = [
        sql.SQL("concat({}, '=', {})").format(sql.Literal(c.name), sql.SQL(sha256_sql(name) if c.mask else name))
        for c, name in ((column, quoting.plain(column.name)) for column in schema.naming_columns)
    ]
    # unfit_sql quotes what it is given; it holds no text from elsewhere.
    flags = [sql.SQL("coalesce(({}), false)").format(sql.SQL(condition)) for _, condition in checked]
    statement = sql.SQL("SELECT concat_ws(', ', {}), {} FROM {}{} WHERE ({}) AND {} LIMIT 1").format(
        sql.SQL(", ").join(labels or [sql.SQL("concat('ctid=', ctid)")]),
        sql.SQL(", ").join(flags),
        sql.SQL("" if schema.partitioned else "ONLY "),
        sql.Identifier(schema.id.schema, schema.id.name),
        sql.SQL(" OR ").join(flags),
        sql.SQL(filtered(schema.where)),
    )
    with explained("searching", str(schema.id)), conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if snapshot is not None:
            conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        row = conn.execute(statement).fetchone()
    if row is None:
        return None
    column = next(column for (column, _), unfit in zip(checked, row[1:], strict=True) if unfit)
    return _refused(schema, column, row[0])


def _refused(schema: TableSchema, column: Column, key: str) -> ValueRefused:
    return ValueRefused(
        table=str(schema.id), column=column.name, key=key, what=_what(column.lake), lake_type=str(column.lake),
        carrier="string",
    )  # fmt: skip


def _what(lake: LakeType) -> str:
    words: dict[Kind, Any] = {
        Kind.DECIMAL: "NaN or more digits",
        Kind.DATE: "infinity or a date outside the years 1 to 9999",
        Kind.TIMESTAMP: "infinity or a time outside the years 1 to 9999",
        Kind.TIMESTAMPTZ: "infinity or a time outside the years 1 to 9999",
    }
    inner = words.get(lake.kind)
    if not lake.is_list:
        return str(inner)
    shape = "an array of more than one dimension or with other bounds than 1"
    return f"{shape}, or {inner} in an element" if inner else shape
