"""Values that PostgreSQL did not send because an update left them as they were (unchanged TOAST).

Such a value is that of the same row before: an earlier change of the batch, perhaps under another key, or the lake
table's row under the key that it had when the batch began. A value that is in neither place is an error, not a NULL.

    key 1:  U (v unchanged)   U key 1→2 (v unchanged)        the arrival at 2 looks at the state of 1 before it,
    key 2:                    arrival    U (v unchanged)     which looks at the lake's row 1

A *generation* is the life of a row under one key: it begins with an insert, an arrival, or before the batch.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from ..schema import TableSchema
from .collapse import key_names, last_per_key, toastable
from .failure import INCONSISTENT
from .names import quoted
from .plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame


def filled(changes: DataFrame, schema: TableSchema, plan: Plan, target: DataFrame | None) -> DataFrame:
    """The last change per key with all values; `target` holds the rows before the batch (None: there are none)."""
    states = _with_generations(changes, schema)
    if plan.key_changes:
        # Each hop reads the states again; the segments are read and decoded once.
        states = states.localCheckpoint()
    last = last_per_key(states, schema)
    for i, name in enumerate(key_names(schema)):
        last = last.withColumn(f"r{i}", fn.col(name))
    if plan.key_changes:
        last = _follow(last, states, schema)
    return _from_target(last, schema, target)


def _with_generations(changes: DataFrame, schema: TableSchema) -> DataFrame:
    """Adds f<i>: the value in a struct, or null where the batch has not shown it yet; and `origin` of an arrival."""
    order = [fn.col(name) for name in ("lsn", "seq", "half")]
    keys = key_names(schema)
    arrival = fn.coalesce(fn.col("key_changed"), fn.lit(False)) & (fn.col("half") == 1) & (fn.col("op") != "D")
    begins = (fn.col("op") != "U") | arrival
    up_to_here = Window.partitionBy(*keys).orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    life = Window.partitionBy(*keys, "generation").orderBy(*order)
    life = life.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    origin = fn.struct(*[fn.col(f"o{i}").alias(f"o{i}") for i in range(len(keys))], "lsn", "seq")
    states = changes.withColumn("generation", fn.sum(begins.cast("int")).over(up_to_here))
    states = states.withColumn("origin", fn.first(fn.when(arrival, origin)).over(life))
    for i in toastable(schema):
        sent = ~fn.coalesce(fn.array_contains("unchanged", fn.lit(i)), fn.lit(False))
        shown = fn.when(sent, fn.struct(fn.col(f"c{i}").alias("value")))
        states = states.withColumn(f"f{i}", fn.last(shown, ignorenulls=True).over(life))
    return states


def _incomplete(schema: TableSchema) -> Expression:
    missing = [fn.col(f"f{i}").isNull() for i in toastable(schema)]
    return (fn.col("op") != "D") & reduce(lambda one, other: one | other, missing, fn.lit(False))


def _follow(last: DataFrame, states: DataFrame, schema: TableSchema) -> DataFrame:
    """Go from key to earlier key, one hop for all rows at a time, until every value or its root key is known."""
    keys = key_names(schema)
    values = [f"f{i}" for i in toastable(schema)]
    earlier = states.select(
        *[fn.col(key).alias(f"e_{key}") for key in keys],
        fn.col("lsn").alias("e_lsn"), fn.col("seq").alias("e_seq"), fn.col("half").alias("e_half"),
        fn.col("origin").alias("e_origin"), *[fn.col(value).alias(f"e_{value}") for value in values],
    )  # fmt: skip
    before = (fn.col("e_lsn") < fn.col("origin.lsn")) | (
        (fn.col("e_lsn") == fn.col("origin.lsn")) & (fn.col("e_seq") < fn.col("origin.seq"))
    )
    there = reduce(
        lambda one, other: one & other,
        [fn.col(f"e_{key}").eqNullSafe(fn.col(f"origin.o{i}")) for i, key in enumerate(keys)],
    )
    nearest = Window.partitionBy(*keys).orderBy(*[fn.col(f"e_{n}").desc_nulls_last() for n in ("lsn", "seq", "half")])
    last = last.localCheckpoint()
    while not last.where(_incomplete(schema) & fn.col("origin").isNotNull()).isEmpty():
        waiting = _incomplete(schema) & fn.col("origin").isNotNull()
        hop = last.where(waiting).join(earlier, there & before, "left")
        hop = hop.withColumn("nth", fn.row_number().over(nearest)).where("nth = 1")
        hop = hop.withColumns({value: fn.coalesce(fn.col(value), fn.col(f"e_{value}")) for value in values})
        hop = hop.withColumns({f"r{i}": fn.col(f"origin.o{i}") for i in range(len(keys))})
        hop = hop.withColumn("origin", fn.col("e_origin")).select(*last.columns)
        last = last.where(~waiting).unionAll(hop).localCheckpoint()
    return last


def _from_target(last: DataFrame, schema: TableSchema, target: DataFrame | None) -> DataFrame:
    positions = toastable(schema)
    if target is None:
        return last.withColumns({f"c{i}": _value(schema, i, fn.lit(False), fn.lit(None)) for i in positions})
    roots = [f"r{i}" for i in range(len(schema.key))]
    wanted = last.where(_incomplete(schema)).select(*roots).distinct()
    stored = target.select(
        *[fn.col(quoted(name)).alias(f"t_k{i}") for i, name in enumerate(schema.key)],
        *[fn.col(quoted(schema.names[i])).alias(f"t_c{i}") for i in positions],
    )
    same = [fn.col(f"t_k{i}") == fn.col(root) for i, root in enumerate(roots)]
    # Few rows are wanted of a large table: they travel to it, it is not shuffled.
    found = stored.join(fn.broadcast(wanted), same, "inner").drop(*roots)
    here = fn.col("t_k0").isNotNull()
    return last.join(found, same, "left").withColumns(
        {f"c{i}": _value(schema, i, here, fn.col(f"t_c{i}")) for i in positions}
    )


def _value(schema: TableSchema, position: int, here: Expression, stored: Expression) -> Expression:
    type = schema.columns[position].lake.spark
    known = fn.col(f"f{position}").isNotNull() | (fn.col("op") == "D")
    missing = fn.raise_error(fn.lit(INCONSISTENT)).cast(type)
    return fn.when(known, fn.col(f"f{position}.value")).when(here, stored.cast(type)).otherwise(missing)
