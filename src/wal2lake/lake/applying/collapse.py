"""Reduces the changes of a batch to their result, as SQL text: one text is one analysis and one call into the JVM.

    segments ── changes ──► c0 c1 … op lsn seq …  ── events, last_per_key ──► one row per key: last state, or deleted
                                                  └─ net ───────────────────► per distinct row: inserts minus deletes

All queries use positional column names, so that names of the table never conflict with ours: c<i> the table's columns,
k<i> the key of a change, o<i> the old key.
"""

# ruff: noqa: S608 - all names in the statements are constant or quoted
from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...evolution import source_of
from ...schema import Column, TableSchema
from ...types import TYPES, LakeType
from ..model import Batch
from ..names import literal, quoted
from ..spark.java_errors import INCONSISTENT
from .commit_plan import CommitPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A session serves one piece of work at a time, so its views have no other user.
SEGMENTS = "wal2lake_segments"
VERIFIED = ("parquet.page.verify-checksum.enabled", "true")
"""option of a read: verify the checksums of Parquet pages"""
_GLOB = re.compile(r"[][*?{}\\,]")


def open_segments(session: SparkSession, schema: TableSchema, batch: Batch) -> None:
    """Define the session's views on the files of the batch. The schema is given, because inferring it is a job."""
    for number, (written, paths) in enumerate(_files(schema, batch)):
        columns = ", ".join(f"{quoted(name)} {type}" for name, type, _ in _fields(written))
        reader = session.read.option(*VERIFIED)
        reader.schema(columns).parquet(*paths).createOrReplaceTempView(f"{SEGMENTS}_{number}")


def changes(schema: TableSchema, batch: Batch) -> str:
    """The changes of a batch with positional names, in the table's schema."""
    if not batch.segments:
        nulls = ", ".join(f"CAST(NULL AS {type}) AS {alias}" for _, type, alias in _fields(schema))
        return f"SELECT {nulls} FROM range(0)"
    parts = []
    for number, (written, _) in enumerate(_files(schema, batch)):
        parts.append(
            f"SELECT {', '.join(_mapped(written, schema))} FROM {SEGMENTS}_{number}{_counting(written, batch)}"
        )
    return " UNION ALL ".join(parts)


def _counting(written: TableSchema, batch: Batch) -> str:
    """The condition for changes of its segments that belong to the batch."""
    lsn, relation = quoted(written.meta.commit_lsn), quoted(written.meta.relation)
    conditions = []
    if batch.skip_before:
        conditions.append(f"{lsn} >= {int(batch.skip_before)}L")
    if batch.end_before:
        conditions.append(f"{lsn} < {int(batch.end_before)}L")
    if batch.visibility is not None:
        conditions.append(f"NOT {batch.visibility.sql(lsn, quoted(written.meta.xid))}")
    if batch.left_out:
        leaves = ", ".join(f"{leaf}L" for leaf in sorted(batch.left_out))
        conditions.append(f"({relation} IS NULL OR {relation} NOT IN ({leaves}))")
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _files(schema: TableSchema, batch: Batch) -> list[tuple[TableSchema, list[str]]]:
    """Paths by the schema that they were written with; those with equivalent schemas are read together."""
    groups: dict[str, tuple[TableSchema, list[str]]] = {}
    for path, segment in batch.segments:
        written = batch.shape(segment, schema)
        reading = "\0".join(_mapped(written, schema))
        groups.setdefault(reading, (written, []))[1].append(glob_escaped(str(path)))
    return list(groups.values())


def _mapped(written: TableSchema, schema: TableSchema) -> list[str]:
    """The columns of a segment as those of the table: by attribute number, cast to the wider type, with the default for
    rows that are older than a column."""
    if written is schema:
        return [f"{quoted(name)} AS {alias}" for name, _, alias in _fields(schema)]
    columns = []
    for position, column in enumerate(schema.columns):
        own = source_of(column, written)
        value = older_value(column) if own is None else _cast(quoted(own.name), own, column)
        columns.append(f"{value} AS c{position}")
    for name, _, alias in _fields(written)[len(written.columns) :]:
        if alias == "unchanged":
            columns.append(f"{_moved(quoted(name), written, schema)} AS unchanged")
        elif not alias.startswith("o") or alias == "op":
            columns.append(f"{quoted(name)} AS {alias}")
    for position, column in enumerate(schema.key_columns):
        own = source_of(column, written)
        old = own is not None and own.name in written.key
        value = _cast(quoted(written.meta.old(own.name)), own, column) if old and own else _nothing(column)
        columns.append(f"{value} AS o{position}")
    return columns


def older_value(column: Column) -> str:
    """The value of a column in rows that are older than the column."""
    return _nothing(column) if column.missing is None else constant(column.missing, column.lake)


def _nothing(column: Column) -> str:
    return f"CAST(NULL AS {column.lake.spark})"


def _cast(name: str, own: Column, column: Column) -> str:
    return name if own.lake == column.lake else f"CAST({name} AS {column.lake.spark})"


def _moved(unchanged: str, written: TableSchema, schema: TableSchema) -> str:
    """Column indexes of one schema as indexes in another; dropped columns are left out."""
    places = {column.name: place for place, column in enumerate(written.columns)}
    found = [(place, source_of(column, written)) for place, column in enumerate(schema.columns)]
    to = {places[own.name]: place for place, own in found if own is not None}
    if all(to.get(place) == place for place in range(len(written.columns))):
        return unchanged
    if not to:
        return f"filter({unchanged}, p -> false)"
    cases = " ".join(f"WHEN {place} THEN {now}" for place, now in to.items())
    return f"filter(transform({unchanged}, p -> CASE p {cases} ELSE -1 END), p -> p >= 0)"


def _fields(schema: TableSchema) -> list[tuple[str, str, str]]:
    """For each column of a segment that is read: name, type and positional name."""
    meta = schema.meta
    own = [(column.name, column.lake.spark, f"c{i}") for i, column in enumerate(schema.columns)]
    plain = [
        (meta.op, "string", "op"), (meta.commit_lsn, "bigint", "lsn"), (meta.seq, "bigint", "seq"),
        (meta.unchanged, "array<int>", "unchanged"), (meta.relation, "bigint", "relation"),
        (meta.key_changed, "boolean", "key_changed"), (meta.xid, "bigint", "xid"),
    ]  # fmt: skip
    olds = [(meta.old(column.name), column.lake.spark, f"o{i}") for i, column in enumerate(schema.key_columns)]
    return [*own, *plain, *olds]


def glob_escaped(path: str) -> str:
    """A path as a pattern that matches only it. (With globbing off, Spark reads such files once per path given.)"""
    return _GLOB.sub(r"\\\g<0>", path)


def counted(rows: str, plan: CommitPlan) -> str:
    """Only the changes after the last truncation of the whole table."""
    return rows if plan.after is None else f"SELECT * FROM ({rows}) WHERE {_later(*plan.after)}"


def _later(lsn: int, seq: int) -> str:
    return f"(lsn > {int(lsn)}L OR (lsn = {int(lsn)}L AND seq > {int(seq)}L))"


def overtaken(plan: CommitPlan) -> str:
    """Whether a change is in a partition that was truncated after it."""
    conditions = [f"(relation = {t.relation}L AND NOT {_later(t.commit_lsn, t.seq)})" for t in plan.emptied]
    return f"coalesce({' OR '.join(conditions) or 'false'}, false)"


def events(rows: str, schema: TableSchema, plan: CommitPlan) -> str:
    """One row per key that a change affects: a key change is a delete (half 0) and an arrival (half 1)."""
    positions = [schema.names.index(name) for name in schema.key]
    if plan.key_changes:
        half = "explode(CASE WHEN key_changed THEN array(0, 1) ELSE array(1) END)"
        rows = f"SELECT *, {half} AS half FROM ({rows})"
        keys = [f"CASE WHEN half = 0 THEN o{i} ELSE c{p} END AS k{i}" for i, p in enumerate(positions)]
        op = "CASE WHEN half = 0 THEN 'D' ELSE op END"
    else:
        rows = f"SELECT *, 1 AS half FROM ({rows})"
        keys = [f"c{p} AS k{i}" for i, p in enumerate(positions)]
        op = "op"
    if plan.emptied:
        op = f"CASE WHEN {overtaken(plan)} THEN 'D' ELSE {op} END"
    kept = [alias for _, _, alias in _fields(schema) if alias != "op"]
    return f"SELECT {', '.join([*kept, 'half', *keys])}, {op} AS op FROM ({rows})"


def last_per_key(events: str, schema: TableSchema) -> str:
    newest = f"OVER (PARTITION BY {', '.join(key_names(schema))} ORDER BY lsn DESC, seq DESC, half DESC)"
    return f"SELECT * FROM (SELECT *, row_number() {newest} AS nth FROM ({events})) WHERE nth = 1"


def key_names(schema: TableSchema) -> list[str]:
    return [f"k{i}" for i in range(len(schema.key))]


def column_names(schema: TableSchema) -> list[str]:
    return [f"c{i}" for i in range(len(schema.columns))]


def toastable(schema: TableSchema) -> list[int]:
    """Indexes of columns whose unchanged TOAST values PostgreSQL may leave out of an update."""
    return [
        position for position, column in enumerate(schema.columns)
        if column.lake.is_list or TYPES.carrier(column.lake).toasted
    ]  # fmt: skip


def net(rows: str, schema: TableSchema, plan: CommitPlan) -> str:
    """For each distinct row the number `n` of inserts minus deletes; rows with n = 0 are left out.

    g<i> are the compared values and h is their hash. Values are restored from g<i>, because sums need no sort.
    """
    alive = f" WHERE NOT {overtaken(plan)}" if plan.emptied else ""
    positions = telling(schema)
    same = ", ".join(f"{identity(schema, i, f'c{i}')} AS g{i}" for i in positions)
    groups = ", ".join(["h", *(f"g{i}" for i in positions)])
    kept = [f"first(c{i}) AS k{i}" for i in range(len(schema.columns)) if i not in positions]
    values = [f"{_original(schema, i) if i in positions else f'k{i}'} AS c{i}" for i in range(len(schema.columns))]
    marked = f"SELECT *, {same}, {STEP} AS step FROM ({rows}){alive}"
    # A sum and a join by the hash follow: distributed by it once, rows are in the right place for both.
    marked = f"SELECT *, {row_hash(f'g{i}' for i in positions)} AS h FROM ({marked}) DISTRIBUTE BY h"
    sums = f"SELECT {', '.join([groups, 'sum(step) AS n', *kept])} FROM ({marked}) GROUP BY {groups}"
    return f"SELECT n, {groups}, {', '.join(values)} FROM ({sums}) WHERE n <> 0"


def row_hash(values: Iterable[str]) -> str:
    """Equal rows have equal hashes; different rows nearly always have different ones."""
    return f"xxhash64({', '.join(values)})"


def telling(schema: TableSchema) -> list[int]:
    """Indexes of the columns that identify whole rows: those that the source has, too."""
    return [position for position, column in enumerate(schema.columns) if not column.kept]


def identity(schema: TableSchema, position: int, value: str) -> str:
    """The value to compare: 0 and -0 are different floats, and NaN equals NaN."""
    lake = schema.columns[position].lake
    if not TYPES.carrier(lake).equal_as_text:
        return value
    return f"transform({value}, e -> CAST(e AS string))" if lake.is_list else f"CAST({value} AS string)"


def _original(schema: TableSchema, position: int) -> str:
    """A column's value from the compared value."""
    lake, value = schema.columns[position].lake, f"g{position}"
    return f"CAST({value} AS {lake.spark})" if TYPES.carrier(lake).equal_as_text else value


def refusal(type: str) -> str:
    """An expression that fails the commit: the lake table lacks rows that the changes refer to."""
    return f"CAST(raise_error({literal(INCONSISTENT)}) AS {type})"


STEP = f"CASE op WHEN 'I' THEN 1 WHEN 'D' THEN -1 ELSE {refusal('int')} END"
"""by how many rows a change increases the table, if rows are matched as a whole"""


def constant(text: str, lake: LakeType) -> str:
    """A value in PostgreSQL's text as a constant of Spark SQL."""
    if lake.is_list:
        return f"CAST(array() AS {lake.spark})"
    return TYPES.carrier(lake).from_text.format(literal(text), lake.spark)
