"""Bringing a batch of changes into a lake table, in exactly one commit.

Which commit that is has been planned by `plan.plan`; here the frames are put together and the commit is made.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from ..schema import TableId, TableSchema
from . import collapse, toast
from .failure import INCONSISTENT
from .model import Batch
from .names import literal, quoted
from .plan import How, Plan
from .table import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Each session serves one piece of work at a time, so its view has no other user.
_VIEW = "wal2lake_changes"


def apply(session: SparkSession, tables: TableFormat, schema: TableSchema, batch: Batch, plan: Plan) -> None:
    """Make the commit of a plan that is not `NOTHING`."""
    rows = collapse.read(session, schema, batch)
    match plan.how:
        case How.APPEND:
            tables.append(session, _own_columns(rows, schema), schema.id)
        case How.REPLACE:
            tables.overwrite(session, _own_columns(_survivors(rows, schema, plan), schema), schema.id)
        case How.MERGE:
            target = session.table(tables.sql_name(schema.id))
            _collapsed(rows, schema, plan, target).createOrReplaceTempView(_VIEW)
            session.sql(merge_statement(tables.sql_name(schema.id), schema, plan))
        case How.MATCH:
            _matched(session, tables, rows, schema, plan).createOrReplaceTempView(_VIEW)
            session.sql(match_statement(tables, schema.id, schema))


def merge_statement(name: str, schema: TableSchema, plan: Plan) -> str:
    """Matched by key. Without inserts in the batch it is an inner join, which need not shuffle the table."""
    on = " AND ".join(f"t.{quoted(key)} = s.k{i}" for i, key in enumerate(schema.key))
    sets = ", ".join(f"t.{quoted(column)} = s.c{i}" for i, column in enumerate(schema.names))
    clauses = [
        f"MERGE INTO {name} AS t USING {_VIEW} AS s ON {on}",
        "WHEN MATCHED AND s.op = 'D' THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {sets}",
    ]
    if plan.may_insert:
        clauses.append(f"WHEN NOT MATCHED AND s.op <> 'D' THEN {_insert(schema)}")
    if plan.gone:
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND ({' OR '.join(plan.gone)}) THEN DELETE")
    return "\n".join(clauses)


def match_statement(tables: TableFormat, table: TableId, schema: TableSchema) -> str:
    """Matched by the address of the stored row. An address that is not there any more fails the commit."""
    file, position = map(quoted, tables.row_address)
    refuse = f"CAST(raise_error({literal(INCONSISTENT)}) AS boolean)"
    return "\n".join([
        f"MERGE INTO {tables.sql_name(table)} AS t USING {_VIEW} AS s",
        f"ON t.{file} = s.file AND t.{position} = s.position",
        "WHEN MATCHED THEN DELETE",
        f"WHEN NOT MATCHED AND (CASE WHEN s.op = 'I' THEN true ELSE {refuse} END) THEN {_insert(schema)}",
    ])  # fmt: skip


def _insert(schema: TableSchema) -> str:
    names = ", ".join(map(quoted, schema.names))
    values = ", ".join(f"s.c{i}" for i in range(len(schema.names)))
    return f"INSERT ({names}) VALUES ({values})"  # noqa: S608 - quoted names


def _own_columns(rows: DataFrame, schema: TableSchema) -> DataFrame:
    return rows.select(*[fn.col(f"c{i}").alias(name) for i, name in enumerate(schema.names)])


def _survivors(rows: DataFrame, schema: TableSchema, plan: Plan) -> DataFrame:
    """What is left of a batch after a truncation of the whole table."""
    rows = collapse.counted(rows, plan)
    if plan.only_inserts:
        return rows.where(~collapse.overtaken(plan)) if plan.emptied else rows
    if schema.key:
        return _collapsed(rows, schema, plan, None).where(fn.col("op") != "D")
    return _repeated(collapse.net(rows, schema, plan))


def _collapsed(rows: DataFrame, schema: TableSchema, plan: Plan, target: DataFrame | None) -> DataFrame:
    changes = collapse.events(rows, schema, plan)
    filled = toast.filled(changes, schema, plan, target) if plan.unchanged else None
    last = collapse.last_per_key(changes, schema) if filled is None else filled
    return last.select("op", *collapse.key_names(schema), *[f"c{i}" for i in range(len(schema.columns))])


def _repeated(net: DataFrame) -> DataFrame:
    """Each row as often as it is to be inserted. Fewer than none can't be where the table was empty."""
    times = fn.when(fn.col("n") < 0, fn.raise_error(fn.lit(INCONSISTENT)).cast("int")).otherwise(
        fn.col("n").cast("int")
    )
    return net.withColumn("copy", fn.explode(fn.sequence(fn.lit(1), times)))


def _matched(session: SparkSession, tables: TableFormat, rows: DataFrame, schema: TableSchema, plan: Plan) -> DataFrame:
    """Addresses of rows to delete and rows to insert, for tables without a key."""
    target = session.table(tables.sql_name(schema.id))
    net = collapse.net(rows, schema, plan)
    values = [f"c{i}" for i in range(len(schema.columns))]
    inserts = _repeated(net.where("n > 0")).select(
        fn.lit("I").alias("op"), fn.lit(None).cast("string").alias("file"),
        fn.lit(None).cast("bigint").alias("position"), *values,
    )  # fmt: skip
    parts = [inserts]
    if plan.may_delete:
        parts.append(_deletes(tables, net.where("n < 0"), target, schema))
    if plan.gone:
        gone = target.where(" OR ".join(plan.gone))
        parts.append(_addresses(tables, gone).select("file", "position"))
    empty = {name: fn.lit(None).cast(c.lake.spark) for name, c in zip(values, schema.columns, strict=True)}
    shaped = [inserts] + [
        part.withColumns({"op": fn.lit("D"), **empty}).select("op", "file", "position", *values) for part in parts[1:]
    ]
    return reduce(lambda one, other: one.unionAll(other), shaped)


def _addresses(tables: TableFormat, target: DataFrame) -> DataFrame:
    file, position = map(quoted, tables.row_address)
    return target.select("*", fn.col(file).alias("file"), fn.col(position).alias("position"))


def _deletes(tables: TableFormat, net: DataFrame, target: DataFrame, schema: TableSchema) -> DataFrame:
    """As many stored copies of each row as are to go. Fewer stored than that is an error."""
    positions = range(len(schema.columns))
    groups = [f"g{i}" for i in positions]
    file, position = map(quoted, tables.row_address)
    stored = target.select(
        *[collapse.identity(schema, i, fn.col(quoted(schema.names[i]))).alias(f"t{i}") for i in positions],
        fn.col(file).alias("file"), fn.col(position).alias("position"),
    )  # fmt: skip
    wanted = net.select("n", *groups)
    same = reduce(lambda a, b: a & b, [fn.col(f"t{i}").eqNullSafe(fn.col(f"g{i}")) for i in positions])
    found = stored.join(fn.broadcast(wanted), same, "inner").select("n", *groups, "file", "position")
    # One row without an address per wanted row, so that a row with no stored copy at all is noticed too.
    marker = wanted.select("n", *groups, fn.lit(None).cast("string").alias("file"), fn.lit(None).alias("position"))
    by_row = Window.partitionBy(*groups)
    nth = fn.row_number().over(by_row.orderBy(fn.col("file").asc_nulls_last(), fn.col("position")))
    ranked = found.unionAll(marker).withColumns({"nth": nth, "stored": fn.count("file").over(by_row)})
    enough = (
        fn.when(fn.col("stored") < -fn.col("n"), fn.raise_error(fn.lit(INCONSISTENT)).cast("boolean"))
        .otherwise(fn.col("file").isNotNull() & (fn.col("nth") <= -fn.col("n")))
    )  # fmt: skip
    return ranked.where(enough).select("file", "position")
