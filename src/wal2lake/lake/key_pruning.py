"""Which rows of a large table a small batch can meet, as a condition that lets Spark leave all others where they are.

    500 changes, 100 thousand rows:   … ON t.id = s.k0 AND t.id IN (17, 4711, …)

Without it a MERGE with inserts moves every row of the table through a shuffle to find the few that match. The condition
follows from the match by key, so it never changes what is matched; files and row groups without such keys are not read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ..evolution import source_of
from ..pgtypes import Kind
from ..schema import Column, TableSchema
from .commit_plan import How, Plan
from .model import Batch
from .names import literal, quoted

MOST_CHANGES = 5_000
"""changes whose keys are written into the statement at most"""
_TRIED = 4
LARGE = 50
"""how many times as many rows as changes make it worth to name the keys; with fewer, the statement costs more"""
# Texts that mean themselves in every dialect of a string literal.
_PLAIN = re.compile(r"[A-Za-z0-9_ .:/@+-]*")


def condition(schema: TableSchema, batch: Batch, plan: Plan, rows: int) -> str:
    """The condition, to be added to the match by key of a MERGE into `t`; '' where it would not help."""
    # Rows that are matched by nothing are looked for too where a partition was emptied.
    # Whole rows are matched by deletes alone.
    sought = batch.rows if plan.how is How.MERGE else sum(segment.deletes for _, segment in batch.segments)
    if plan.gone or sought > MOST_CHANGES or rows < sought * LARGE:
        return ""
    if plan.how is How.MERGE:
        found = [(column, _values(schema, column, batch, plan)) for column in schema.key_columns if _listed(column)]
        # No row has a key that is NULL.
        texts = [_any_of(column, values - {None}) for column, values in found]
    elif plan.how is How.MATCH:
        texts = [_most_telling(schema, batch, plan)]
    else:
        return ""
    return "".join(f" AND {text}" for text in texts if text)


def _most_telling(schema: TableSchema, batch: Batch, plan: Plan) -> str:
    """Rows that are the same as a whole are the same in each column: the one with the most values tells the most."""
    columns = [column for column in schema.source_columns if _listed(column)]
    columns = [column for column in columns if column.name in schema.catalog_key] or columns[:_TRIED]
    found = [(column, _values(schema, column, batch, plan)) for column in columns]
    found = [(column, values) for column, values in found if None not in values]
    return _any_of(*max(found, key=lambda each: len(each[1]))) if found else ""


def _listed(column: Column) -> bool:
    return column.lake.kind in (Kind.INT, Kind.LONG, Kind.STRING) and not column.lake.is_list


def _values(schema: TableSchema, column: Column, batch: Batch, plan: Plan) -> set[Any]:
    """Every value that a column has in a change that is matched, before or after it; none if that is unknown."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found: set[Any] = set()
    deleted = plan.how is How.MATCH
    for path, segment in batch.segments:
        written = batch.shape(segment, schema)
        own = source_of(column, written)
        if own is None:
            return set()
        names = [own.name, *([written.meta.old(own.name)] if plan.key_changes and own.name in written.key else [])]
        op = [written.meta.op] if deleted else []
        with pq.ParquetFile(path) as file:
            table = file.read(columns=[*names, *op])
        if deleted:
            table = table.filter(pc.equal(table.column(written.meta.op), "D"))
        for name in names:
            found.update(table.column(name).to_pylist())
    return found


def _any_of(column: Column, values: Collection[Any]) -> str:
    if column.lake.kind is Kind.STRING:
        if not all(_PLAIN.fullmatch(value) for value in values):
            return ""
        # Spark would turn a single value into a comparison, and compile code again for each.
        texts = [literal(value) for value in sorted(values)] + ["''"] * (len(values) == 1)
    else:
        spare = [-1 if 0 in values else 0] if len(values) == 1 else []
        suffix = "L" if column.lake.kind is Kind.LONG else ""
        texts = [f"{value}{suffix}" for value in [*sorted(values), *spare]]
    return f"t.{quoted(column.name)} IN ({', '.join(texts)})" if texts else ""
