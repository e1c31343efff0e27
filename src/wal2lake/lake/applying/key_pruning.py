"""A condition on the rows of a large table that a small batch can match, so that Spark skips all other files.

    500 changes, 100 thousand rows:   … ON t.id = s.k0 AND t.id IN (17, 4711, …)

Without it a MERGE with inserts shuffles every row of the table to find the few that match. The condition follows from
the match by key, so it never changes the result; files and row groups without such keys are not read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ...evolution import source_of
from ...schema import Column, TableSchema
from ...types import TYPES
from ..model import Batch
from ..names import quoted
from .commit_plan import CommitPlan, How

MOST_CHANGES = 5_000
"""maximum number of changes whose keys are written into the statement"""
_TRIED = 4
LARGE = 50
"""minimum ratio of rows to changes for which it is worth listing the keys"""
# Texts without special characters in any dialect of string literals.
_PLAIN = re.compile(r"[A-Za-z0-9_ .:/@+-]*")


def condition(schema: TableSchema, batch: Batch, plan: CommitPlan, rows: int) -> str:
    """The condition to add to the match by key of a MERGE into `t`; '' if it would not help."""
    # If a partition was truncated, rows without a match are looked up as well.
    # With whole rows, only deletes are matched.
    sought = batch.rows if plan.how is How.MERGE else sum(segment.deletes for _, segment in batch.segments)
    if plan.gone or sought > MOST_CHANGES or rows < sought * LARGE:
        return ""
    if plan.how is How.MERGE:
        found = [(column, _values(schema, column, batch, plan)) for column in schema.key_columns if _listed(column)]
        # A key column is never NULL.
        texts = [_any_of(column, values - {None}) for column, values in found]
    elif plan.how is How.MATCH:
        texts = [_most_telling(schema, batch, plan)]
    else:
        return ""
    return "".join(f" AND {text}" for text in texts if text)


def _most_telling(schema: TableSchema, batch: Batch, plan: CommitPlan) -> str:
    """Rows that are equal are equal in each column: use the column with the most distinct values."""
    columns = [column for column in schema.source_columns if _listed(column)]
    columns = [column for column in columns if column.name in schema.catalog_key] or columns[:_TRIED]
    found = [(column, _values(schema, column, batch, plan)) for column in columns]
    found = [(column, values) for column, values in found if None not in values]
    return _any_of(*max(found, key=lambda each: len(each[1]))) if found else ""


def _listed(column: Column) -> bool:
    return TYPES.carrier(column.lake).listed is not None and not column.lake.is_list


def _values(schema: TableSchema, column: Column, batch: Batch, plan: CommitPlan) -> set[Any]:
    """Every value of a column in a matched change, before or after it; empty if it is unknown."""
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
    listed = TYPES.carrier(column.lake).listed
    if listed is None or any(isinstance(value, str) and not _PLAIN.fullmatch(value) for value in values):
        return ""
    # Spark would turn a single value into a comparison and compile code for each new value.
    spare = [next(other for other in listed.spare if other not in values)] if len(values) == 1 else []
    texts = [listed.form.format(value) for value in [*sorted(values), *spare]]
    return f"t.{quoted(column.name)} IN ({', '.join(texts)})" if texts else ""
