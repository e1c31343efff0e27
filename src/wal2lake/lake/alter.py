"""Giving a lake table other columns, in exactly one commit: nobody sees some of the change.

Dropped, renamed and widened columns, and new ones that are NULL in every row, are a matter of metadata. Where rows that
are there get a value, they are rewritten from the lake table itself, with the position that it has.
"""

# ruff: noqa: S608 - every name in these texts is ours or quoted
from __future__ import annotations

from typing import TYPE_CHECKING

from ..evolution import changes, source_of
from ..schema import TableSchema
from .collapse import older_value
from .format import Record, TableFormat
from .names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rewrites(before: TableSchema, after: TableSchema, rows: int) -> bool:
    """Whether rows have to be rewritten."""
    return rows > 0 and changes(before, after).of_rows


def rewrite(
    session: SparkSession,
    tables: TableFormat,
    before: TableSchema,
    after: TableSchema,
    source: str,
    parent: Record | None,
) -> None:
    """Put the table's rows with their new columns in the place of the old ones."""
    rows = session.sql(selection(tables.sql_name(before.id), before, after))
    tables.replace(session, rows, after, source, parent)


def selection(name: str, before: TableSchema, after: TableSchema) -> str:
    """The rows of a table in its next columns."""
    values = []
    for column in after.columns:
        own = source_of(column, before)
        value = older_value(column) if own is None else f"CAST({quoted(own.name)} AS {column.lake.spark})"
        values.append(f"{value} AS {quoted(column.name)}")
    return f"SELECT {', '.join(values)} FROM {name}"
