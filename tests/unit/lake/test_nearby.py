"""Where a MERGE needs to look for the keys of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wal2lake.changelog.manifest import Segment
from wal2lake.lake.model import Batch
from wal2lake.lake.nearby import LARGE, MOST_CHANGES, condition
from wal2lake.lake.plan import plan
from wal2lake.pgtypes import LakeType
from wal2lake.position import Lsn
from wal2lake.schema import Column, Identity, TableId, TableSchema


def keyed(**types: str) -> TableSchema:
    columns = tuple(Column(name, 25, -1, "", LakeType.parse(type)) for name, type in types.items())
    return TableSchema(1, TableId("public", "t"), columns, tuple(types), Identity.DEFAULT)


def batch(directory: Path, schema: TableSchema, values: dict[str, list[Any]], key_changes: int = 0) -> Batch:
    path = directory / "1.parquet"
    fields = {column.name: column.lake.arrow for column in schema.columns}
    fields |= {schema.meta.old(column.name): column.lake.arrow for column in schema.columns}
    count = len(next(iter(values.values())))
    pq.write_table(pa.table({name: pa.array(values.get(name, [None] * count), t) for name, t in fields.items()}), path)
    return Batch(Lsn(9), 1, ((path, Segment("1", count, 1, 1, 0, count, 0, key_changes, 0)),))


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
def test_keys_that_are_looked_for(
    tmp_path: Path, types: dict[str, str], values: dict[str, list[Any]], expected: str
) -> None:
    schema = keyed(**types)
    changes = batch(tmp_path, schema, values)
    assert condition(schema, changes, plan(schema, changes), LARGE * 10) == expected


def test_the_key_before_a_change_of_the_key_is_looked_for_too(tmp_path: Path) -> None:
    schema = keyed(id="int")
    changes = batch(tmp_path, schema, {"id": [1, 2], schema.meta.old("id"): [7, None]}, key_changes=1)
    assert condition(schema, changes, plan(schema, changes), LARGE * 10) == " AND t.`id` IN (1, 2, 7)"


def test_all_rows_are_looked_at_where_a_list_would_not_help_or_not_do(tmp_path: Path) -> None:
    schema = keyed(id="int")
    changes = batch(tmp_path, schema, {"id": [1, 2]})
    planned = plan(schema, changes)
    assert condition(schema, changes, planned, LARGE * 2 - 1) == ""
    assert condition(schema, changes, replace(planned, gone=("id > 1",)), LARGE * 10) == ""
    many = batch(tmp_path, schema, {"id": list(range(MOST_CHANGES + 1))})
    assert condition(schema, many, plan(schema, many), 10**12) == ""
