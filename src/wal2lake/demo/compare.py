"""Compares a lake table with a PostgreSQL table as multisets of rows, without Spark and without our types.

PostgreSQL's values are read as text (COPY), the lake's through pyiceberg. The text is parsed into the type of the lake
column, so that 1.50 equals 1.5 in a double and differs in a string. Then one Arrow aggregation counts each row of
PostgreSQL as +1 and each row of the lake as -1; every sum other than zero is a difference.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from psycopg import sql

SIDE = "\0side"
SHOWN = 5
# These settings determine how PostgreSQL writes a value.
SETTINGS = """
    SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET bytea_output = 'hex';
    SET extra_float_digits = 1; SET client_encoding = 'UTF8'; SET lc_monetary = 'C'; SET xmlbinary = 'base64'
"""
COLUMNS = """
    SELECT a.attname, coalesce(a.attnum = ANY (i.indkey), false), c.relkind = 'p'
      FROM pg_attribute a
      JOIN pg_class c ON c.oid = a.attrelid
      JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
     WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum
"""
ARRAY_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"\\]+)', re.DOTALL)


@dataclass(frozen=True)
class Comparison:
    """Row counts of both sides, and their differences."""

    table: str
    source_rows: int
    lake_rows: int
    missing: int = 0
    """rows that are only in PostgreSQL"""
    extra: int = 0
    """rows that are only in the lake"""
    examples: tuple[str, ...] = ()
    """keys of some of them, with the columns that differ"""
    columns_only_in_source: tuple[str, ...] = ()
    columns_only_in_lake: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.columns_only_in_source or self.columns_only_in_lake)

    def __str__(self) -> str:
        if self.equal:
            return f"{self.table}: equal, {self.source_rows} rows"
        parts = [f"{self.table}: {self.source_rows} rows in PostgreSQL, {self.lake_rows} in the lake"]
        if self.columns_only_in_source or self.columns_only_in_lake:
            parts.append(f"columns only in PostgreSQL {self.columns_only_in_source}, only in the lake "
                         f"{self.columns_only_in_lake}")  # fmt: skip
        if self.missing or self.extra:
            parts.append(f"{self.missing} missing in the lake, {self.extra} not in PostgreSQL")
        return "; ".join(parts) + "".join(f"\n    {example}" for example in self.examples)


@contextmanager
def open_catalog(lake: Path) -> Iterator[Any]:
    """The lake's default catalog, opened with pyiceberg."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.exc import OperationalError

    opened = partial(SqlCatalog, "lake", uri=f"sqlite:///{lake / 'catalog.db'}", warehouse=str(lake))
    try:
        catalog = opened()
    except OperationalError:
        # Spark has created the catalog's own tables between the look for them and their creation.
        catalog = opened()
    try:
        yield catalog
    finally:
        catalog.close()


def compare_tables(dsn: str, lake: Path, tables: Iterable[tuple[str, str]]) -> list[Comparison]:
    """Compare tables, given as (schema, name), one after the other. The source should be at rest."""
    with open_catalog(lake) as catalog, psycopg.connect(dsn, autocommit=True) as connection:
        for setting in SETTINGS.split(";"):
            connection.execute(setting.encode())
        return [_compare(connection, catalog, schema, name) for schema, name in tables]


def _compare(connection: psycopg.Connection[Any], catalog: Any, schema: str, name: str) -> Comparison:
    found = connection.execute(COLUMNS, (schema, name)).fetchall()
    names = [row[0] for row in found]
    key = [row[0] for row in found if row[1]]
    lake = catalog.load_table((schema, name)).scan().to_arrow()
    common = [column for column in names if column in lake.column_names]
    source = _read_source(connection, schema, name, common, partitioned=bool(found) and found[0][2])
    source_rows = source.num_rows if common else _count(connection, schema, name)
    left = pa.table({c: _source_column(source[c], lake.schema.field(c).type) for c in common})
    right = pa.table({c: _lake_column(lake[c]) for c in common})
    different = _difference(left, right) if common else None
    sides = different[SIDE].to_pylist() if different is not None else []
    return Comparison(
        table=f"{schema}.{name}",
        source_rows=source_rows,
        lake_rows=lake.num_rows,
        missing=sum(side for side in sides if side > 0) if common else max(source_rows - lake.num_rows, 0),
        extra=-sum(side for side in sides if side < 0) if common else max(lake.num_rows - source_rows, 0),
        examples=_examples(different, key) if different is not None else (),
        columns_only_in_source=tuple(c for c in names if c not in common),
        columns_only_in_lake=tuple(c for c in lake.column_names if c not in common),
    )


def _count(connection: psycopg.Connection[Any], schema: str, name: str) -> int:
    query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, name))
    (rows,) = connection.execute(query).fetchone() or (0,)
    return int(rows)


def _read_source(
    connection: psycopg.Connection[Any], schema: str, name: str, columns: list[str], *, partitioned: bool
) -> Any:
    """The table as columns of text. Values are quoted, so that NULL differs from the empty string."""
    if not columns:
        return pa.table({})
    copy = sql.SQL("COPY (SELECT {} FROM {} {}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL("" if partitioned else "ONLY"),
        sql.Identifier(schema, name),
    )
    text = io.BytesIO()
    with connection.cursor().copy(copy) as rows:
        for block in rows:
            text.write(block)
    # Arrow's reader needs names; numbers will do.
    numbers = [str(number) for number in range(len(columns))]
    if not text.getbuffer().nbytes:
        return pa.table({column: pa.array([], pa.string()) for column in columns})
    table = pyarrow.csv.read_csv(
        pa.py_buffer(text.getbuffer()),
        read_options=pyarrow.csv.ReadOptions(column_names=numbers, block_size=1 << 28),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(numbers, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return table.rename_columns(columns)


def _source_column(text: Any, lake_type: Any) -> Any:
    text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    if not (pa.types.is_list(lake_type) or pa.types.is_large_list(lake_type)):
        return _comparable(_parse(text, lake_type))
    offsets: list[int] = [0]
    elements: list[str | None] = []
    for value in text.to_pylist():
        elements.extend(_array_elements(value) if value is not None else ())
        offsets.append(len(elements))
    flat = _comparable(_parse(pa.array(elements, pa.string()), lake_type.value_type)).to_pylist()
    nulls = text.is_null().to_pylist()
    return pa.array(
        [
            None if null else repr(flat[start:end])
            for null, start, end in zip(nulls, offsets, offsets[1:], strict=False)
        ],
        pa.string(),
    )


def _lake_column(column: Any) -> Any:
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ChunkedArray):  # no chunk at all
        column = pa.array([], column.type)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return _comparable(column)
    flat = _comparable(column.flatten()).to_pylist()
    shown, start = [], 0
    for length in pc.list_value_length(column).to_pylist():
        shown.append(None if length is None else repr(flat[start : start + length]))
        start += length or 0
    return pa.array(shown, pa.string())


def _parse(text: Any, lake_type: Any) -> Any:
    """Parse PostgreSQL's text as values of a lake type; raise if a value does not fit."""
    if pa.types.is_boolean(lake_type):
        return pc.equal(text, "t")
    if pa.types.is_binary(lake_type) or pa.types.is_large_binary(lake_type):
        return pa.array([None if v is None else bytes.fromhex(v[2:]) for v in text.to_pylist()], pa.binary())
    if pa.types.is_timestamp(lake_type) and lake_type.tz is not None:
        return pc.replace_substring_regex(text, r"\+00$", "").cast(pa.timestamp("us"))
    if pa.types.is_timestamp(lake_type):
        return text.cast(pa.timestamp("us"))
    if pa.types.is_large_string(lake_type):
        return text
    return text.cast(lake_type)


def _comparable(values: Any) -> Any:
    """Values in a type that Arrow can group by and that distinguishes -0 from 0 and equates NaN with NaN."""
    kind = values.type
    if pa.types.is_floating(kind):
        canonical = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), kind), values)
        bits = pa.int32() if kind == pa.float32() else pa.int64()
        return pa.Array.from_buffers(bits, len(canonical), canonical.buffers(), offset=canonical.offset)
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us")).cast(pa.int64())
    if pa.types.is_large_string(kind):
        return values.cast(pa.string())
    if pa.types.is_large_binary(kind):
        return values.cast(pa.binary())
    return values


def _difference(left: Any, right: Any) -> Any:
    """Distinct rows that occur more often on one side, with the number: positive for the left."""
    both = pa.concat_tables(
        [
            left.append_column(SIDE, pa.repeat(pa.scalar(1, pa.int64()), left.num_rows)),
            right.append_column(SIDE, pa.repeat(pa.scalar(-1, pa.int64()), right.num_rows)),
        ]
    )
    # On one thread groups come in the order of the rows, so that the result is deterministic.
    sums = both.group_by(left.column_names, use_threads=False).aggregate([(SIDE, "sum")])
    sums = sums.filter(pc.not_equal(sums[f"{SIDE}_sum"], 0))
    return sums.rename_columns([SIDE if name == f"{SIDE}_sum" else name for name in sums.column_names])


def _examples(different: Any, key: list[str]) -> tuple[str, ...]:
    """Keys of some differences with the kind of difference; without a key, the number of the row among them."""
    rows = different.slice(0, 10_000).to_pylist()
    by_key: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        name = tuple(row[c] for c in key) if key else (f"row {number}",)
        by_key.setdefault(name, {})[1 if row[SIDE] > 0 else -1] = row
    shown = []
    for name, sides in list(by_key.items())[:SHOWN]:
        if len(sides) == 2:
            columns = [c for c in different.column_names if c != SIDE and sides[1][c] != sides[-1][c]]
            what = f"differs in {', '.join(columns)}"
        else:
            what = "missing in the lake" if 1 in sides else "not in PostgreSQL"
        shown.append(f"{', '.join(map(str, name))}: {what}")
    return tuple(shown)


def _array_elements(text: str) -> list[str | None]:
    """Parse a one-dimensional array literal: {a,"b ""c",NULL}."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("not a plain one-dimensional array")
    inner = text[1:-1]
    if not inner:
        return []
    if '"' not in inner and "\\" not in inner:
        return [None if part == "NULL" else part for part in inner.split(",")]
    elements: list[str | None] = []
    for match in ARRAY_ELEMENT.finditer(inner):
        quoted, plain = match.groups()
        if quoted is not None:
            elements.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        else:
            elements.append(None if plain == "NULL" else plain)
    return elements
