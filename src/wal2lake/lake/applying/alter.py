"""Changes the columns of a lake table in exactly one commit, so that readers see all of the change or none.

Dropping, renaming and widening columns, and adding columns that are NULL in every row, changes metadata only. If
existing rows get a value, they are rewritten from the lake table itself, with its present position.
"""

# ruff: noqa: S608 - all names in the statements are constant or quoted
from __future__ import annotations

from typing import TYPE_CHECKING

from ...evolution import changes, source_of
from ...schema import TableSchema
from ..format import Record, TableFormat
from ..names import quoted
from .collapse import older_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rewrites(before: TableSchema, after: TableSchema, rows: int) -> bool:
    """Whether rows must be rewritten."""
    return rows > 0 and changes(before, after).of_rows


def rewrite(
    session: SparkSession,
    tables: TableFormat,
    before: TableSchema,
    after: TableSchema,
    source: str,
    parent: Record | None,
) -> None:
    """Replace the table's rows by the same rows with the new columns."""
    rows = session.sql(selection(tables.sql_name(before.id), before, after))
    tables.replace(session, rows, after, source, parent)


def selection(name: str, before: TableSchema, after: TableSchema) -> str:
    """A query for the rows of a table with its next columns."""
    values = []
    for column in after.columns:
        own = source_of(column, before)
        value = older_value(column) if own is None else f"CAST({quoted(own.name)} AS {column.lake.spark})"
        values.append(f"{value} AS {quoted(column.name)}")
    return f"SELECT {', '.join(values)} FROM {name}"
