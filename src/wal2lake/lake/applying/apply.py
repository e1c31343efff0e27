"""Applies a batch of changes to a lake table in exactly one commit.

`commit_plan.plan` decides the kind of commit; here its query is built and the commit is made.
"""

# ruff: noqa: S608 - all names in the statements are constant or quoted
from __future__ import annotations

from typing import TYPE_CHECKING

from ...schema import TableSchema
from ..format import Merge, TableFormat
from ..model import Batch
from ..names import quoted
from ..spark.java_errors import inconsistent
from . import collapse, key_pruning, toast
from .collapse import column_names, key_names, refusal
from .commit_plan import CommitPlan, How

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def apply(
    session: SparkSession, tables: TableFormat, schema: TableSchema, batch: Batch, plan: CommitPlan, table_rows: int
) -> None:
    """Make the commit of a plan other than `NOTHING`. `table_rows`: approximate number of rows in the table."""
    collapse.open_segments(session, schema, batch)
    rows = collapse.changes(schema, batch)
    name = tables.sql_name(schema.id)
    match plan.how:
        case How.APPEND:
            tables.append(session, session.sql(_own_columns(rows, schema)), schema.id)
        case How.REPLACE:
            left = _survivors(session, rows, schema, plan)
            tables.overwrite(session, session.sql(_own_columns(left, schema)), schema.id)
        case How.MERGE:
            source = _collapsed(session, rows, schema, plan, name)
            near = key_pruning.condition(schema, batch, plan, table_rows)
            tables.merge(session, schema.id, by_key(source, schema, plan, near))
        case How.MATCH:
            near = key_pruning.condition(schema, batch, plan, table_rows)
            matched = _matched(tables, rows, schema, plan, near)
            tables.merge(session, schema.id, by_address(tables, matched, schema, near))
    toast.close(session, plan)


def apply_once(
    session: SparkSession, tables: TableFormat, schema: TableSchema, batch: Batch, plan: CommitPlan, table_rows: int,
    staged: str,
) -> bool:  # fmt: skip
    """Match whole rows in one pass over the table, which deletes all copies of a row.

    Returns whether the result is right: each row was to be deleted once, and was in the table once. If not, discard
    what was written under `staged` and use `apply`.
    """
    collapse.open_segments(session, schema, batch)
    rows = collapse.changes(schema, batch)
    near = key_pruning.condition(schema, batch, plan, table_rows)
    try:
        tables.merge(session, schema.id, by_row(collapse.net(rows, schema, plan), schema, near))
    except Exception as error:
        if inconsistent(error):
            return False
        raise
    # Every row to delete was found, so a row that was found twice shows in the number of rows.
    return tables.gained(session, schema.id, staged) == _gain(session, rows, batch)


def _gain(session: SparkSession, rows: str, batch: Batch) -> int:
    """By how many rows a batch changes the table, if rows are matched as a whole."""
    if batch.complete:
        return sum(segment.inserts - segment.deletes for _, segment in batch.segments)
    (gain,) = session.sql(f"SELECT coalesce(sum({collapse.STEP}), 0) FROM ({rows})").first() or (0,)
    return int(gain)


def by_key(source: str, schema: TableSchema, plan: CommitPlan, near: str = "") -> Merge:
    """Match by key; `near` limits the search to files that can match.

    Without inserts in the batch it is an inner join, which does not need to shuffle the table.
    """
    on = " AND ".join(f"t.{quoted(key)} = s.k{i}" for i, key in enumerate(schema.key))
    sets = ", ".join(f"t.{quoted(column)} = s.c{i}" for i, column in enumerate(schema.names))
    clauses = [
        "WHEN MATCHED AND s.op = 'D' THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {sets}",
    ]
    if plan.may_insert:
        clauses.append(f"WHEN NOT MATCHED AND s.op <> 'D' THEN {_insert(schema)}")
    if plan.gone:
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND ({' OR '.join(plan.gone)}) THEN DELETE")
    return Merge(source, on + near, tuple(clauses))


def by_row(net: str, schema: TableSchema, near: str = "") -> Merge:
    """Match whole rows: join by their hash, then compare.

    A row that is to be deleted several times fails the commit, and so does one that is missing.
    """
    positions = collapse.telling(schema)
    stored = [collapse.identity(schema, i, f"t.{quoted(schema.names[i])}") for i in positions]
    # In a plain comparison Spark would sort by each column, too.
    same = ", ".join(
        f"{value} <=> {collapse.identity(schema, i, f's.c{i}')}" for i, value in zip(positions, stored, strict=True)
    )
    times = f"CASE WHEN n > 0 THEN CAST(n AS int) WHEN n = -1 THEN 1 ELSE {refusal('int')} END"
    source = (
        f"SELECT IF(n > 0, 'I', 'D') AS op, h, {', '.join(column_names(schema))} "
        f"FROM (SELECT *, explode(sequence(1, {times})) AS copy FROM ({net}))"
    )
    on = f"{collapse.row_hash(stored)} = s.h AND s.op = 'D' AND least(true, {same}){near}"
    return Merge(source, on, ("WHEN MATCHED THEN DELETE", _insert_or_refuse(schema)))


def by_address(tables: TableFormat, source: str, schema: TableSchema, near: str = "") -> Merge:
    """Match by the address of the stored row. An address that does not exist fails the commit."""
    file, position = map(quoted, tables.row_address)
    on = f"t.{file} = s.file AND t.{position} = s.position{near}"
    return Merge(source, on, ("WHEN MATCHED THEN DELETE", _insert_or_refuse(schema)))


def _insert_or_refuse(schema: TableSchema) -> str:
    return f"WHEN NOT MATCHED AND (CASE WHEN s.op = 'I' THEN true ELSE {refusal('boolean')} END) THEN {_insert(schema)}"


def _insert(schema: TableSchema) -> str:
    names = ", ".join(map(quoted, schema.names))
    values = ", ".join(f"s.{name}" for name in column_names(schema))
    return f"INSERT ({names}) VALUES ({values})"


def _own_columns(rows: str, schema: TableSchema) -> str:
    columns = ", ".join(f"c{i} AS {quoted(name)}" for i, name in enumerate(schema.names))
    return f"SELECT {columns} FROM ({rows})"


def _survivors(session: SparkSession, rows: str, schema: TableSchema, plan: CommitPlan) -> str:
    """What remains of a batch after a truncation of the whole table."""
    rows = collapse.counted(rows, plan)
    if plan.only_inserts:
        return f"SELECT * FROM ({rows}) WHERE NOT {collapse.overtaken(plan)}" if plan.emptied else rows
    if schema.key:
        return f"SELECT * FROM ({_collapsed(session, rows, schema, plan, None)}) WHERE op <> 'D'"
    return _repeated(collapse.net(rows, schema, plan))


def _collapsed(session: SparkSession, rows: str, schema: TableSchema, plan: CommitPlan, target: str | None) -> str:
    events = collapse.events(rows, schema, plan)
    if plan.unchanged:
        last = toast.filled(session, events, schema, plan, target)
    else:
        last = collapse.last_per_key(events, schema)
    return f"SELECT {', '.join(['op', *key_names(schema), *column_names(schema)])} FROM ({last})"


def _repeated(net: str) -> str:
    """Each row as often as it is to be inserted. The table was empty, so a negative count is an error."""
    times = f"CASE WHEN n < 0 THEN {refusal('int')} ELSE CAST(n AS int) END"
    return f"SELECT *, explode(sequence(1, {times})) AS copy FROM ({net})"


def _matched(tables: TableFormat, rows: str, schema: TableSchema, plan: CommitPlan, near: str) -> str:
    """Addresses of rows to delete and rows to insert, for tables without a key."""
    net = collapse.net(rows, schema, plan)
    values = ", ".join(column_names(schema))
    inserted = _repeated(f"SELECT * FROM ({net}) WHERE n > 0")
    # No stored row has such an address. It is not NULL, because then one task would get all inserts.
    parts = [f"SELECT 'I' AS op, '' AS file, h AS position, {values} FROM ({inserted})"]
    nothing = ", ".join(
        f"CAST(NULL AS {column.lake.spark}) AS {name}"
        for name, column in zip(column_names(schema), schema.columns, strict=True)
    )
    deleted = []
    if plan.may_delete:
        deleted.append(_deletes(tables, f"SELECT * FROM ({net}) WHERE n < 0", schema, plan, near))
    if plan.gone:
        file, position = map(quoted, tables.row_address)
        deleted.append(f"SELECT {file} AS file, {position} AS position FROM {tables.sql_name(schema.id)} "
                       f"WHERE {' OR '.join(plan.gone)}")  # fmt: skip
    parts += [f"SELECT 'D' AS op, file, position, {nothing} FROM ({part})" for part in deleted]
    return " UNION ALL ".join(parts)


def _deletes(tables: TableFormat, net: str, schema: TableSchema, plan: CommitPlan, near: str) -> str:
    """As many stored copies of each row as are to be deleted. It is an error if fewer are stored.

    The table is searched by the rows' hashes, however large the rows are: few hashes are sent to all tasks.
    """
    positions = collapse.telling(schema)
    groups = ", ".join(["h", *(f"g{i}" for i in positions)])
    file, position = map(quoted, tables.row_address)
    values = ", ".join(f"{collapse.identity(schema, i, 't.' + quoted(schema.names[i]))} AS t{i}" for i in positions)
    rows = f"SELECT {values}, t.{file} AS file, t.{position} AS position FROM {tables.sql_name(schema.id)} AS t"
    if near:
        rows += f" WHERE true{near}"
    hashed = f"SELECT *, {collapse.row_hash(f't{i}' for i in positions)} AS th FROM ({rows})"
    found = (
        f"SELECT /*+ {plan.join_hint}(hashes) */ stored.* FROM ({hashed}) AS stored "
        f"LEFT SEMI JOIN (SELECT h FROM ({net})) AS hashes ON th = h"
    )
    same = " AND ".join(f"t{i} <=> g{i}" for i in positions)
    # Joined by the hash only, then compared; a row without a stored copy stays in the result, so that it is detected.
    joined = (
        f"SELECT /*+ MERGE(found) */ n, {groups}, CASE WHEN {same} THEN file END AS file, position "
        f"FROM (SELECT n, {groups} FROM ({net})) AS wanted LEFT JOIN ({found}) AS found ON th = h"
    )
    ranked = (
        f"SELECT *, row_number() OVER (PARTITION BY {groups} ORDER BY file ASC NULLS LAST, position) AS nth, "
        f"count(file) OVER (PARTITION BY {groups}) AS stored FROM ({joined})"
    )
    enough = f"CASE WHEN stored < -n THEN {refusal('boolean')} ELSE nth <= -n END"
    return f"SELECT file, position FROM ({ranked}) WHERE {enough}"
