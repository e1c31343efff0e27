"""From the changes of a batch to what they come to, as frames.

    segments ── read ──► c0 c1 … op lsn seq …  ── events, last_per_key ──► one row per key: its last state, or gone
                                               └─ net ───────────────────► per distinct row: how many more or fewer

Frames have positional column names, so that a table's own names never meet ours: c<i> the table's columns, k<i> the
key that a change is about, o<i> the key before.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from ..pgtypes import Kind
from ..schema import TableSchema
from .failure import INCONSISTENT
from .model import Batch
from .names import quoted
from .plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

_GLOB = re.compile(r"[][*?{}\\,]")
_FLOATS = (Kind.FLOAT, Kind.DOUBLE)
_NEVER_TOASTED = {
    Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ,
}  # fmt: skip


def read(session: SparkSession, schema: TableSchema, batch: Batch) -> DataFrame:
    """The changes of a batch under positional names."""
    meta = schema.meta
    own = [(column.name, column.lake.spark) for column in schema.columns]
    olds = [(meta.old(column.name), column.lake.spark) for column in schema.key_columns]
    plain = [
        (meta.op, "string"), (meta.commit_lsn, "bigint"), (meta.seq, "bigint"), (meta.unchanged, "array<int>"),
        (meta.relation, "bigint"), (meta.key_changed, "boolean"),
    ]  # fmt: skip
    fields = [*own, *plain, *olds]
    aliases = [f"c{i}" for i in range(len(own))] + ["op", "lsn", "seq", "unchanged", "relation", "key_changed"]
    aliases += [f"o{i}" for i in range(len(olds))]
    if not batch.segments:
        return session.range(0).select(
            *[fn.lit(None).cast(type).alias(alias) for (_, type), alias in zip(fields, aliases, strict=True)]
        )
    paths = [glob_escaped(str(path)) for path, _ in batch.segments]
    rows = (
        session.read.schema(", ".join(f"{quoted(name)} {type}" for name, type in fields))
        .parquet(*paths)
        .select(*[fn.col(quoted(name)).alias(alias) for (name, _), alias in zip(fields, aliases, strict=True)])
    )
    return rows.where(fn.col("lsn") >= int(batch.skip_before)) if batch.skip_before else rows


def glob_escaped(path: str) -> str:
    """A path as a pattern that matches it alone. (With globbing off, Spark reads such files once per path given.)"""
    return _GLOB.sub(r"\\\g<0>", path)


def counted(rows: DataFrame, plan: Plan) -> DataFrame:
    """Without the changes that a truncation of the whole table has overtaken."""
    return rows if plan.after is None else rows.where(_later(*plan.after))


def _later(lsn: int, seq: int) -> Expression:
    lsn = int(lsn)
    return (fn.col("lsn") > lsn) | ((fn.col("lsn") == lsn) & (fn.col("seq") > seq))


def overtaken(plan: Plan) -> Expression:
    """Whether a change is of a partition that was truncated after it."""
    conditions = [
        (fn.col("relation") == t.relation) & ~_later(t.commit_lsn, t.seq) for t in plan.emptied
    ]  # fmt: skip
    return fn.coalesce(reduce(lambda one, other: one | other, conditions, fn.lit(False)), fn.lit(False))


def events(rows: DataFrame, schema: TableSchema, plan: Plan) -> DataFrame:
    """One row per key that a change touches: a change of the key is a delete (half 0) and an arrival (half 1)."""
    positions = [schema.names.index(name) for name in schema.key]
    if plan.key_changes:
        halves = fn.when(fn.col("key_changed"), fn.array(fn.lit(0), fn.lit(1))).otherwise(fn.array(fn.lit(1)))
        rows = rows.withColumn("half", fn.explode(halves))
        left = fn.col("half") == 0
        keys = {f"k{i}": fn.when(left, fn.col(f"o{i}")).otherwise(fn.col(f"c{p}")) for i, p in enumerate(positions)}
        op = fn.when(left, fn.lit("D")).otherwise(fn.col("op"))
    else:
        rows = rows.withColumn("half", fn.lit(1))
        keys = {f"k{i}": fn.col(f"c{p}") for i, p in enumerate(positions)}
        op = fn.col("op")
    if plan.emptied:
        op = fn.when(overtaken(plan), fn.lit("D")).otherwise(op)
    return rows.withColumns({**keys, "op": op})


def last_per_key(changes: DataFrame, schema: TableSchema) -> DataFrame:
    newest = [fn.col(name).desc() for name in ("lsn", "seq", "half")]
    by_key = Window.partitionBy(*key_names(schema)).orderBy(*newest)
    return changes.withColumn("nth", fn.row_number().over(by_key)).where("nth = 1").drop("nth")


def key_names(schema: TableSchema) -> list[str]:
    return [f"k{i}" for i in range(len(schema.key))]


def toastable(schema: TableSchema) -> list[int]:
    """Positions of columns whose value PostgreSQL may leave out of an update as unchanged."""
    return [
        position for position, column in enumerate(schema.columns)
        if column.lake.is_list or column.lake.kind not in _NEVER_TOASTED
    ]  # fmt: skip


def net(rows: DataFrame, schema: TableSchema, plan: Plan) -> DataFrame:
    """Per distinct row the difference `n` between inserts and deletes; rows that come to nothing are left out."""
    if plan.emptied:
        rows = rows.where(~overtaken(plan))
    step = (
        fn.when(fn.col("op") == "I", 1).when(fn.col("op") == "D", -1)
        .otherwise(fn.raise_error(fn.lit(INCONSISTENT)).cast("int"))
    )  # fmt: skip
    values = [fn.first(f"c{i}").alias(f"c{i}") for i in range(len(schema.columns))]
    same = [identity(schema, i, fn.col(f"c{i}")).alias(f"g{i}") for i in range(len(schema.columns))]
    return rows.groupBy(*same).agg(fn.sum(step).alias("n"), *values).where("n <> 0")


def identity(schema: TableSchema, position: int, value: Expression) -> Expression:
    """What tells two values of a column apart: 0 and -0 are two floats, and NaN is one."""
    lake = schema.columns[position].lake
    if lake.kind not in _FLOATS:
        return value
    return fn.transform(value, lambda element: element.cast("string")) if lake.is_list else value.cast("string")
