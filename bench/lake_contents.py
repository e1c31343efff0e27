"""What a lake part ends in: does the lake, read without wal2lake and Spark, hold what PostgreSQL holds?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from wal2lake.demo.compare import compare_tables

from .model import WrongData


def require_same_tables(dsn: str, lake: Path, tables: Iterable[str], who: str = "wal2lake") -> None:
    """Compare tables of the schema `public`, row by row. The database must be at rest."""
    for comparison in compare_tables(dsn, lake, [("public", table) for table in tables]):
        if not comparison.equal:
            raise WrongData(f"{who}: {comparison}")
