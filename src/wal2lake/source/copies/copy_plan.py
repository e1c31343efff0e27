"""What the initial copy of a table selects, and a search for values that no lake type can hold."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import sql

from ... import quoting
from ...config import SourceConfig
from ...errors import ValueRefused
from ...schema import Column, TableSchema
from ...types import CopyColumn, PgType, copy_column, masked_copy_column, sha256_sql, unfit_sql, unfit_words
from ..model import CopySource, Heap, filtered
from ..sessions.connect import Connection, explained, jdbc, query
from ..sessions.locking import wait_briefly
from ..tables.catalog import tables, types

_FALLBACK_ROW_BYTES = 128


def copy_source(conn: Connection, source: SourceConfig, schema: TableSchema) -> CopySource:
    """The inputs of the initial copy. Heaps have ONLY in their names: tables that inherit are separate tables."""
    parts = [heap.oid for heap in schema.heaps]
    # An ALTER TABLE waits for the copy's lock, and later readers, such as this query, would wait behind it.
    with explained("measuring", str(schema.id)), conn.transaction():
        wait_briefly(conn)
        rows = conn.execute(query("heaps"), {"oids": parts}).fetchall()
    heaps = tuple(
        Heap(f"ONLY {quoting.plain(namespace)}.{quoting.plain(name)}", pages, max(1, width or _FALLBACK_ROW_BYTES))
        for namespace, name, pages, width in rows
    )
    dims = {column.name: column.dims for column in tables(conn, [schema.oid])[schema.oid].columns}
    known = types(conn, [column.type_oid for column in schema.columns])
    url, properties = jdbc(source)
    return CopySource(schema, heaps, copy_columns(schema, dims, known), url, properties)


def copy_columns(schema: TableSchema, dims: Mapping[str, int], known: Mapping[int, PgType]) -> tuple[CopyColumn, ...]:
    """How the values of each column are read over JDBC."""
    return tuple(_copy_column(column, dims[column.name], known) for column in schema.columns)


def _copy_column(column: Column, dims: int, known: Mapping[int, PgType]) -> CopyColumn:
    name, spark_name = quoting.plain(column.name), "`" + column.name.replace("`", "``") + "`"
    if column.mask is not None:
        return masked_copy_column(name, spark_name, column.mask)
    return copy_column(name, spark_name, column.type_oid, column.typmod, dims, known, column.lake)


def find_unfit(conn: Connection, schema: TableSchema, snapshot: str | None = None) -> ValueRefused | None:
    """The first value of a table that does not fit its lake type, as an error that names it; None if all fit."""
    conditions = [(c, unfit_sql(quoting.plain(c.name), c.lake)) for c in schema.columns if c.mask is None]
    checked = [(column, condition) for column, condition in conditions if condition]
    if not checked:
        return None
    labels: list[sql.Composable] = [
        sql.SQL("concat({}, '=', {})").format(sql.Literal(c.name), sql.SQL(sha256_sql(name) if c.mask else name))
        for c, name in ((column, quoting.plain(column.name)) for column in schema.naming_columns)
    ]
    # unfit_sql quotes its argument and contains no other external text.
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
        table=str(schema.id), column=column.name, key=key, what=unfit_words(column.lake), lake_type=str(column.lake),
        carrier="string",
    )  # fmt: skip
