"""Fills in values that PostgreSQL did not send because an update did not change them (unchanged TOAST).

The value is that of the same row before: in an earlier change of the batch, perhaps under another key, or in the lake
table's row under the key that it had when the batch began. A value that is in neither place is an error, never NULL.

    key 1:  U (v unchanged)   U key 1→2 (v unchanged)        the arrival at 2 takes v from key 1 before it,
    key 2:                    arrival    U (v unchanged)     which takes it from the lake's row 1

A *generation* is the life of a row under one key: it begins with an insert, an arrival, or before the batch.
"""

# ruff: noqa: S608 - all names in the statements are constant or quoted
from __future__ import annotations

from typing import TYPE_CHECKING

from ...schema import TableSchema
from ..names import quoted
from .collapse import column_names, key_names, last_per_key, refusal, toastable
from .commit_plan import CommitPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATES, _LAST = "wal2lake_states", "wal2lake_last"


def filled(session: SparkSession, events: str, schema: TableSchema, plan: CommitPlan, target: str | None) -> str:
    """The last change per key with all values; `target` has the rows before the batch (None: there are none)."""
    states = _with_generations(events, schema)
    if plan.key_changes:
        # Each hop reads the states again; segments are read and decoded once.
        states = _kept(session, states, _STATES)
    roots = ", ".join(f"{name} AS r{i}" for i, name in enumerate(key_names(schema)))
    last = f"SELECT *, {roots} FROM ({last_per_key(states, schema)})"
    if plan.key_changes:
        last = _follow(session, last, schema)
    return _from_target(last, schema, plan, target)


def close(session: SparkSession, plan: CommitPlan) -> None:
    """Release what `filled` cached in Spark's memory."""
    if plan.unchanged and plan.key_changes:
        for view in (_STATES, _LAST):
            session.catalog.dropTempView(view)


def _kept(session: SparkSession, query: str, view: str) -> str:
    """Compute a query once, under a name."""
    session.sql(query).localCheckpoint().createOrReplaceTempView(view)
    return f"SELECT * FROM {view}"


def _with_generations(events: str, schema: TableSchema) -> str:
    """Adds f<i>: the value in a struct, or null if the batch has not shown it yet; and `origin` of an arrival."""
    keys = ", ".join(key_names(schema))
    arrival = "(coalesce(key_changed, false) AND half = 1 AND op <> 'D')"
    so_far = "ORDER BY lsn, seq, half ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    begins = f"sum(CASE WHEN op <> 'U' OR {arrival} THEN 1 ELSE 0 END)"
    numbered = f"SELECT *, {begins} OVER (PARTITION BY {keys} {so_far}) AS generation FROM ({events})"
    life = f"OVER (PARTITION BY {keys}, generation {so_far})"
    olds = ", ".join(f"'o{i}', o{i}" for i in range(len(schema.key)))
    origin = f"CASE WHEN {arrival} THEN named_struct({olds}, 'lsn', lsn, 'seq', seq) END"
    shown = [
        f"last(CASE WHEN NOT coalesce(array_contains(unchanged, {i}), false) THEN named_struct('value', c{i}) END, "
        f"true) {life} AS f{i}"
        for i in toastable(schema)
    ]
    return f"SELECT *, {', '.join([f'first({origin}) {life} AS origin', *shown])} FROM ({numbered})"


def _incomplete(schema: TableSchema) -> str:
    missing = " OR ".join(f"f{i} IS NULL" for i in toastable(schema))
    return f"(op <> 'D' AND ({missing or 'false'}))"


def _follow(session: SparkSession, last: str, schema: TableSchema) -> str:
    """Go to the earlier key, one hop for all rows at a time, until every value or its root key is known."""
    keys = key_names(schema)
    values = [f"f{i}" for i in toastable(schema)]
    roots = [f"r{i}" for i in range(len(keys))]
    seen = [*keys, "lsn", "seq", "half", "origin", *values]
    earlier = f"SELECT {', '.join(f'{name} AS e_{name}' for name in seen)} FROM {_STATES}"
    before = "(e_lsn < origin.lsn OR (e_lsn = origin.lsn AND e_seq < origin.seq))"
    there = " AND ".join(f"e_{key} <=> origin.o{i}" for i, key in enumerate(keys))
    nearest = (
        f"row_number() OVER (PARTITION BY {', '.join(keys)} "
        "ORDER BY e_lsn DESC NULLS LAST, e_seq DESC NULLS LAST, e_half DESC NULLS LAST)"
    )
    waiting = f"{_incomplete(schema)} AND origin IS NOT NULL"
    same = [*column_names(schema), *keys, "op", "lsn", "seq", "half"]
    stepped = [f"coalesce({value}, e_{value}) AS {value}" for value in values]
    stepped += [f"origin.o{i} AS {root}" for i, root in enumerate(roots)]
    hop = (
        f"SELECT {', '.join([*same, *stepped, 'e_origin AS origin'])} FROM (SELECT *, {nearest} AS hop FROM "
        f"(SELECT * FROM {_LAST} WHERE {waiting}) LEFT JOIN ({earlier}) ON {there} AND {before}) WHERE hop = 1"
    )
    known = f"SELECT {', '.join([*same, *values, *roots, 'origin'])} FROM {_LAST} WHERE NOT ({waiting})"
    found = _kept(session, last, _LAST)
    while not session.sql(f"SELECT 1 FROM {_LAST} WHERE {waiting} LIMIT 1").isEmpty():
        found = _kept(session, f"{known} UNION ALL {hop}", _LAST)
    return found


def _from_target(last: str, schema: TableSchema, plan: CommitPlan, target: str | None) -> str:
    positions = toastable(schema)
    kept = [name for i, name in enumerate(column_names(schema)) if i not in positions]
    kept += ["op", *key_names(schema)]
    if target is None:
        values = [_value(schema, i, "false", "NULL") for i in positions]
        return f"SELECT {', '.join([*kept, *values])} FROM ({last})"
    values = [_value(schema, i, "t_k0 IS NOT NULL", f"t_c{i}") for i in positions]
    roots = [f"r{i}" for i in range(len(schema.key))]
    sought = ", ".join(f"{root} AS w_{root}" for root in roots)
    wanted = f"SELECT DISTINCT {sought} FROM ({last}) WHERE {_incomplete(schema)}"
    stored = ", ".join(
        [f"{quoted(name)} AS t_k{i}" for i, name in enumerate(schema.key)]
        + [f"{quoted(schema.names[i])} AS t_c{i}" for i in positions]
    )
    same = " AND ".join(f"t_k{i} = w_{root}" for i, root in enumerate(roots))
    # If few rows of a large table are looked up, their keys are broadcast and the table is not shuffled.
    found = (
        f"SELECT /*+ {plan.join_hint}(wanted) */ stored.* FROM (SELECT {stored} FROM {target}) AS stored "
        f"JOIN ({wanted}) AS wanted ON {same}"
    )
    here = " AND ".join(f"t_k{i} = {root}" for i, root in enumerate(roots))
    # TOAST values are large, which Spark's estimate of a column's size does not consider.
    return (
        f"SELECT /*+ MERGE(found) */ {', '.join([*kept, *values])} FROM ({last}) LEFT JOIN ({found}) AS found ON {here}"
    )


def _value(schema: TableSchema, position: int, here: str, stored: str) -> str:
    type = schema.columns[position].lake.spark
    return (
        f"CASE WHEN f{position} IS NOT NULL OR op = 'D' THEN f{position}.value "
        f"WHEN {here} THEN CAST({stored} AS {type}) ELSE {refusal(type)} END AS c{position}"
    )
