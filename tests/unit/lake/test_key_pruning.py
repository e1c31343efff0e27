"""The condition on keys that limits a MERGE."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wal2lake.changelog.manifest import Segment
from wal2lake.lake.applying.commit_plan import CommitPlan, plan_commit
from wal2lake.lake.applying.key_pruning import LARGE, MOST_CHANGES, condition
from wal2lake.lake.model import Batch
from wal2lake.position import Lsn
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType


def keyed(**types: str) -> TableSchema:
    columns = tuple(Column(name, 25, -1, "", LakeType.parse(type)) for name, type in types.items())
    return TableSchema(1, TableId("public", "t"), columns, tuple(types), ReplicaIdentity.DEFAULT)


def batch(directory: Path, schema: TableSchema, values: dict[str, list[Any]], key_changes: int = 0) -> Batch:
    path = directory / "1.parquet"
    fields = {column.name: column.lake.arrow for column in schema.columns}
    fields |= {schema.meta.old(column.name): column.lake.arrow for column in schema.columns}
    count = len(next(iter(values.values())))
    pq.write_table(pa.table({name: pa.array(values.get(name, [None] * count), t) for name, t in fields.items()}), path)
    return Batch(Lsn(9), 1, ((str(path), Segment("1", count, 1, 1, 0, count, 0, key_changes, 0)),))


@pytest.mark.parametrize(
    ("types", "values", "expected"),
    [
        ({"id": "long"}, {"id": [5, -3, 5]}, " AND t.`id` IN (-3L, 5L)"),
        ({"id": "int"}, {"id": [5]}, " AND t.`id` IN (5, 0)"),
        ({"id": "int"}, {"id": [0]}, " AND t.`id` IN (0, -1)"),
        ({"t": "string"}, {"t": ["b", "a-1"]}, " AND t.`t` IN ('a-1', 'b')"),
        ({"t": "string"}, {"t": ["it's", "a"]}, ""),
        ({"t": "string"}, {"t": ["${a}", "a"]}, ""),
        ({"a.b": "int", "t": "string"}, {"a.b": [1, 2], "t": ["\\", "y"]}, " AND t.`a.b` IN (1, 2)"),
        ({"d": "double", "f": "boolean"}, {"d": [1.0], "f": [True]}, ""),
    ],
)
def test_keys_are_listed(tmp_path: Path, types: dict[str, str], values: dict[str, list[Any]], expected: str) -> None:
    schema = keyed(**types)
    changes = batch(tmp_path, schema, values)
    assert condition(schema, changes, plan_commit(schema, changes), LARGE * 10) == expected


def test_the_old_key_of_a_key_change_is_listed_too(tmp_path: Path) -> None:
    schema = keyed(id="int")
    changes = batch(tmp_path, schema, {"id": [1, 2], schema.meta.old("id"): [7, None]}, key_changes=1)
    assert condition(schema, changes, plan_commit(schema, changes), LARGE * 10) == " AND t.`id` IN (1, 2, 7)"


def test_there_is_no_condition_if_a_list_would_not_help_or_not_be_exact(tmp_path: Path) -> None:
    schema = keyed(id="int")
    changes = batch(tmp_path, schema, {"id": [1, 2]})
    planned = plan_commit(schema, changes)
    assert condition(schema, changes, planned, LARGE * 2 - 1) == ""
    assert condition(schema, changes, replace(planned, gone=("id > 1",)), LARGE * 10) == ""
    many = batch(tmp_path, schema, {"id": list(range(MOST_CHANGES + 1))})
    assert condition(schema, many, plan_commit(schema, many), 10**12) == ""


def test_deleted_whole_rows_are_listed_by_the_column_with_the_most_values(tmp_path: Path) -> None:
    schema = replace(keyed(n="int", id="long", s="string"), key=(), identity=ReplicaIdentity.FULL)
    values: dict[str, list[Any]] = {"n": [1, 1, 1], "id": [7, 8, 9], "s": ["a", None, "b"], "_op": ["D", "D", "I"]}
    assert condition(schema, whole(tmp_path, schema, values), plan_of(schema, tmp_path, values), 10**6) == (
        " AND t.`id` IN (7L, 8L)"
    )
    named = replace(schema, catalog_key=("n",))
    assert condition(named, whole(tmp_path, named, values), plan_of(named, tmp_path, values), 10**6) == (
        " AND t.`n` IN (1, 0)"
    )
    unknown = {**values, "n": [None, 1, 1]}
    assert condition(named, whole(tmp_path, named, unknown), plan_of(named, tmp_path, unknown), 10**6) == ""


def whole(directory: Path, schema: TableSchema, values: dict[str, list[Any]]) -> Batch:
    path = directory / "1.parquet"
    types = {column.name: column.lake.arrow for column in schema.columns} | {"_op": pa.string()}
    pq.write_table(pa.table({name: pa.array(values[name], type) for name, type in types.items()}), path)
    return Batch(Lsn(9), 1, ((str(path), Segment("1", 3, 1, 1, 1, 0, 2, 0, 0)),))


def plan_of(schema: TableSchema, directory: Path, values: dict[str, list[Any]]) -> CommitPlan:
    return plan_commit(schema, whole(directory, schema, values))
