"""Rows that a lake table finds by the bounds of partitions are those that PostgreSQL has in them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest

from lake_history import copied, describe
from servers import Database
from wal2lake.lake import Lake
from wal2lake.lake.applying.partition import outside, within
from wal2lake.schema import HeapFile, TableId, TableSchema

TREES = {
    "sub_partitions": "CREATE TABLE t (k int, a int, b text) PARTITION BY RANGE (a);"
    "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (4); CREATE TABLE t_8 PARTITION OF t FOR VALUES FROM (8) TO (12);"
    "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (4) TO (8) PARTITION BY RANGE (a);"
    "CREATE TABLE t_5 PARTITION OF t_4 FOR VALUES FROM (4) TO (6); CREATE TABLE t_6 PARTITION OF t_4 FOR VALUES FROM (6) TO (8);"
    "INSERT INTO t SELECT i, i, 'x' FROM generate_series(0, 11) i",
    "all_numbers": "CREATE TABLE t (k int, a int, b text) PARTITION BY RANGE (a);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (MINVALUE) TO (4);"
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (4) TO (MAXVALUE) PARTITION BY LIST (b);"
    "CREATE TABLE t_3 PARTITION OF t_2 FOR VALUES IN (NULL, 'x'); CREATE TABLE t_4 PARTITION OF t_2 FOR VALUES IN ('y');"
    "INSERT INTO t SELECT row_number() OVER (), a, b FROM generate_series(-3, 9) a, unnest(ARRAY['x', 'y', NULL]) b",
    "two_columns": "CREATE TABLE t (k int, a date, b numeric(6, 2)) PARTITION BY RANGE (a, b);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (MINVALUE, MINVALUE) TO ('2024-02-01', 3);"
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM ('2024-02-01', 3) TO ('2024-02-01', 5);"
    "CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM ('2024-02-01', 5) TO (MAXVALUE, MAXVALUE);"
    "INSERT INTO t SELECT row_number() OVER (), a, b FROM generate_series(date '2024-01-30', '2024-02-03', '1 day') a,"
    " generate_series(2.5, 5.5, 0.5) b",
    "lists": "CREATE TABLE t (k int, a text, b bool) PARTITION BY LIST (a);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN ('it''s', NULL);"
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES IN ('p', 'q') PARTITION BY LIST (b);"
    "CREATE TABLE t_3 PARTITION OF t FOR VALUES IN ('r');"
    "CREATE TABLE t_4 PARTITION OF t_2 FOR VALUES IN (true); CREATE TABLE t_5 PARTITION OF t_2 FOR VALUES IN (false);"
    "CREATE TABLE t_6 PARTITION OF t_2 FOR VALUES IN (NULL);"
    "INSERT INTO t SELECT row_number() OVER (), a, b FROM unnest(ARRAY['it''s', NULL, 'p', 'q', 'r']) a,"
    " unnest(ARRAY[true, false, NULL]) b",
}


@pytest.mark.parametrize("tree", TREES)
def test_bounds_select_the_same_rows_in_the_lake(lake: Lake, database: Database, tree: str) -> None:
    database.execute(TREES[tree])
    copied(lake, database, "t")
    schema = describe(database, TableId("public", "t"))
    inside = {heap.oid: set(_numbers(database, heap)) for heap in schema.heaps}
    everything = set().union(*inside.values())

    conditions, expected = [], []
    for some in _some(schema):
        of_these = set().union(*(inside[heap.oid] for heap in some))
        bounds = " OR ".join(within(heap.bounds, schema) for heap in some)
        first = schema.heaps[0]
        conditions += [bounds, outside(some, schema), f"{outside(some, schema)} OR {within(first.bounds, schema)}"]
        expected += [of_these, everything - of_these, everything - of_these | inside[first.oid]]
    assert _found(lake, conditions) == expected


def _some(schema: TableSchema) -> list[Sequence[HeapFile]]:
    return [some for size in range(1, len(schema.heaps) + 1) for some in combinations(schema.heaps, size)]


def _numbers(database: Database, heap: HeapFile) -> list[int]:
    return [k for (k,) in database.rows("SELECT k FROM t WHERE tableoid = %s", [heap.oid])]


def _found(lake: Lake, conditions: Sequence[str]) -> list[set[int]]:
    """The numbers of the rows for which each condition is true, in one query."""
    parts = [f"SELECT {place} AS place, k FROM lake.public.t WHERE {one}" for place, one in enumerate(conditions)]
    found: list[set[int]] = [set() for _ in conditions]
    with lake._spark.driver.session("a test") as session:
        for place, k in session.sql(" UNION ALL ".join(parts)).collect():
            found[place].add(k)
    return found
