"""PostgreSQL is the oracle: a lake table is right when pyiceberg reads from it the rows that PostgreSQL has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from servers import Database
from wal2lake.demo.compare import compare_tables, open_catalog

TableName = str | tuple[str, str]


def assert_equal_tables(database: Database, lake_path: Path | str, tables: Iterable[TableName]) -> None:
    """Compare tables as multisets of rows, both ways. A name without a schema is in public."""
    named = [_split(table) for table in tables]
    assert named, "no table to compare"
    compared = compare_tables(database.dsn, Path(lake_path), named)
    wrong = [str(one) for one in compared if not one.equal]
    assert not wrong, "the lake differs from PostgreSQL\n" + "\n".join(wrong)


def table_directory(lake: Path, table: TableName) -> Path:
    """Where the files of a lake table are."""
    with open_catalog(lake) as catalog:
        return Path(str(catalog.load_table(_split(table)).location()).removeprefix("file:"))


def _split(table: TableName) -> tuple[str, str]:
    """`orders`, `sales.orders`, or (schema, name) for names that have dots in them."""
    if isinstance(table, tuple):
        return table
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else ("public", schema)
