"""Bringing a batch of changes into a lake table, in exactly one commit.

Which commit that is has been planned by `plan.plan`; here its query is put together and the commit is made.
"""

# ruff: noqa: S608 - every name in these texts is ours or quoted
from __future__ import annotations

from typing import TYPE_CHECKING

from ..schema import TableSchema
from . import collapse, key_pruning, toast
from .collapse import column_names, key_names, refusal
from .commit_plan import How, Plan
from .format import TableFormat
from .java_errors import inconsistent
from .model import Batch
from .names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def apply(
    session: SparkSession, tables: TableFormat, schema: TableSchema, batch: Batch, plan: Plan, table_rows: int
) -> None:
    """Make the commit of a plan that is not `NOTHING`. `table_rows`: about how many rows the table has."""
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
            session.sql(merge_statement(name, source, schema, plan, near))
        case How.MATCH:
            near = key_pruning.condition(schema, batch, plan, table_rows)
            session.sql(match_statement(tables, _matched(tables, rows, schema, plan, near), schema, near))
    toast.close(session, plan)


def apply_once(
    session: SparkSession, tables: TableFormat, schema: TableSchema, batch: Batch, plan: Plan, table_rows: int,
    staged: str,
) -> bool:  # fmt: skip
    """Make the commit of a plan to match whole rows in one pass over the table, which deletes all copies of a row.

    Whether it is right: each of the rows was to go once, and the table had it once. If not, what is kept aside under
    `staged` is to be thrown away, and only `apply` can do it.
    """
    collapse.open_segments(session, schema, batch)
    rows = collapse.changes(schema, batch)
    near = key_pruning.condition(schema, batch, plan, table_rows)
    try:
        session.sql(once_statement(tables.sql_name(schema.id), collapse.net(rows, schema, plan), schema, near))
    except Exception as error:
        if inconsistent(error):
            return False
        raise
    # Every row that was to go was found, so one that was found twice shows in the number of rows.
    return tables.gained(session, schema.id, staged) == _gain(session, rows, batch)


def _gain(session: SparkSession, rows: str, batch: Batch) -> int:
    """How many rows more the changes of a batch make, where rows are told apart as a whole."""
    if batch.complete:
        return sum(segment.inserts - segment.deletes for _, segment in batch.segments)
    (gain,) = session.sql(f"SELECT coalesce(sum({collapse.STEP}), 0) FROM ({rows})").first() or (0,)
    return int(gain)


def merge_statement(name: str, source: str, schema: TableSchema, plan: Plan, near: str = "") -> str:
    """Matched by key; `near` narrows down where to look.

    Without inserts in the batch it is an inner join, which need not shuffle the table.
    """
    on = " AND ".join(f"t.{quoted(key)} = s.k{i}" for i, key in enumerate(schema.key))
    sets = ", ".join(f"t.{quoted(column)} = s.c{i}" for i, column in enumerate(schema.names))
    clauses = [
        f"MERGE INTO {name} AS t USING ({source}) AS s ON {on}{near}",
        "WHEN MATCHED AND s.op = 'D' THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {sets}",
    ]
    if plan.may_insert:
        clauses.append(f"WHEN NOT MATCHED AND s.op <> 'D' THEN {_insert(schema)}")
    if plan.gone:
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND ({' OR '.join(plan.gone)}) THEN DELETE")
    return "\n".join(clauses)


def once_statement(name: str, net: str, schema: TableSchema, near: str = "") -> str:
    """Matched by whole rows: joined by their hash alone, and then compared.

    A row that was to go several times fails the commit, as does one that is not there.
    """
    positions = collapse.telling(schema)
    stored = [collapse.identity(schema, i, f"t.{quoted(schema.names[i])}") for i in positions]
    # Spark would sort by each column of a plain comparison, too.
    same = ", ".join(
        f"{value} <=> {collapse.identity(schema, i, f's.c{i}')}" for i, value in zip(positions, stored, strict=True)
    )
    times = f"CASE WHEN n > 0 THEN CAST(n AS int) WHEN n = -1 THEN 1 ELSE {refusal('int')} END"
    source = (
        f"SELECT IF(n > 0, 'I', 'D') AS op, h, {', '.join(column_names(schema))} "
        f"FROM (SELECT *, explode(sequence(1, {times})) AS copy FROM ({net}))"
    )
    return "\n".join([
        f"MERGE INTO {name} AS t USING ({source}) AS s",
        f"ON {collapse.row_hash(stored)} = s.h AND s.op = 'D' AND least(true, {same}){near}",
        "WHEN MATCHED THEN DELETE",
        _insert_or_refuse(schema),
    ])  # fmt: skip


def match_statement(tables: TableFormat, source: str, schema: TableSchema, near: str = "") -> str:
    """Matched by the address of the stored row. An address that is not there any more fails the commit."""
    file, position = map(quoted, tables.row_address)
    return "\n".join([
        f"MERGE INTO {tables.sql_name(schema.id)} AS t USING ({source}) AS s",
        f"ON t.{file} = s.file AND t.{position} = s.position{near}",
        "WHEN MATCHED THEN DELETE",
        _insert_or_refuse(schema),
    ])  # fmt: skip


def _insert_or_refuse(schema: TableSchema) -> str:
    return f"WHEN NOT MATCHED AND (CASE WHEN s.op = 'I' THEN true ELSE {refusal('boolean')} END) THEN {_insert(schema)}"


def _insert(schema: TableSchema) -> str:
    names = ", ".join(map(quoted, schema.names))
    values = ", ".join(f"s.{name}" for name in column_names(schema))
    return f"INSERT ({names}) VALUES ({values})"


def _own_columns(rows: str, schema: TableSchema) -> str:
    columns = ", ".join(f"c{i} AS {quoted(name)}" for i, name in enumerate(schema.names))
    return f"SELECT {columns} FROM ({rows})"


def _survivors(session: SparkSession, rows: str, schema: TableSchema, plan: Plan) -> str:
    """What is left of a batch after a truncation of the whole table."""
    rows = collapse.counted(rows, plan)
    if plan.only_inserts:
        return f"SELECT * FROM ({rows}) WHERE NOT {collapse.overtaken(plan)}" if plan.emptied else rows
    if schema.key:
        return f"SELECT * FROM ({_collapsed(session, rows, schema, plan, None)}) WHERE op <> 'D'"
    return _repeated(collapse.net(rows, schema, plan))


def _collapsed(session: SparkSession, rows: str, schema: TableSchema, plan: Plan, target: str | None) -> str:
    events = collapse.events(rows, schema, plan)
    if plan.unchanged:
        last = toast.filled(session, events, schema, plan, target)
    else:
        last = collapse.last_per_key(events, schema)
    return f"SELECT {', '.join(['op', *key_names(schema), *column_names(schema)])} FROM ({last})"


def _repeated(net: str) -> str:
    """Each row as often as it is to be inserted. Fewer than none can't be where the table was empty."""
    times = f"CASE WHEN n < 0 THEN {refusal('int')} ELSE CAST(n AS int) END"
    return f"SELECT *, explode(sequence(1, {times})) AS copy FROM ({net})"


def _matched(tables: TableFormat, rows: str, schema: TableSchema, plan: Plan, near: str) -> str:
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


def _deletes(tables: TableFormat, net: str, schema: TableSchema, plan: Plan, near: str) -> str:
    """As many stored copies of each row as are to go. Fewer stored than that is an error.

    The table is searched by the rows' hashes, whatever the rows' own size: they travel to it where they are few.
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
    # Joined by the hash alone, and then compared; a row without any stored copy stays in it, so that it is noticed too.
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
