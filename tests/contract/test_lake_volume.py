"""Batches of hundreds of thousands of changes: nothing of them has to fit into memory at once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lake_history import copied, source_id
from servers import Database
from wal2lake.changelog.manifest import Segment
from wal2lake.lake import Applied, Batch, Lake
from wal2lake.lake.applying.commit_plan import BROADCAST_HASHES
from wal2lake.position import Lsn
from wal2lake.schema import TableSchema

ROWS, CHANGED = 2 * BROADCAST_HASHES, BROADCAST_HASHES + 100_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_most_rows_of_a_table_without_a_key_are_deleted(lake: Lake, database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE t (id bigint, v text); ALTER TABLE t REPLICA IDENTITY FULL;"
        f"INSERT INTO t SELECT i, 'a value of row ' || i FROM generate_series(1, {ROWS}) i"
    )
    applied = copied(lake, database, "t")
    ids = pa.array(range(1, CHANGED + 1), pa.int64())
    texts = pc.binary_join_element_wise("a value of row", ids.cast(pa.string()), " ")
    after = lake.apply(applied, batch(applied, tmp_path, {"id": ids, "v": texts}, "D"), source_id(applied.schema))
    assert after.rows == ROWS - CHANGED
    left = stored(tmp_path, "t").column("id")
    assert (pc.min(left).as_py(), pc.max(left).as_py(), len(left)) == (CHANGED + 1, ROWS, ROWS - CHANGED)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_update_of_many_rows_keeps_their_values_out_of_line(lake: Lake, database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE t (id bigint PRIMARY KEY, v text, n int);"
        f"INSERT INTO t SELECT i, 'a value of row ' || i, 0 FROM generate_series(1, {ROWS}) i"
    )
    applied = copied(lake, database, "t")
    ids = pa.array(range(1, CHANGED + 1), pa.int64())
    values = {"id": ids, "v": pa.nulls(CHANGED, pa.string()), "n": pa.array([1] * CHANGED, pa.int32())}
    changed = batch(applied, tmp_path, values, "U", unchanged=1)
    after = lake.apply(applied, changed, source_id(applied.schema))
    assert after.rows == ROWS
    rows = stored(tmp_path, "t")
    expected = pc.binary_join_element_wise("a value of row", rows.column("id").cast(pa.string()), " ")
    assert pc.all(pc.equal(rows.column("v"), expected)).as_py()
    assert pc.sum(rows.column("n")).as_py() == CHANGED


def batch(applied: Applied, tmp_path: Path, values: dict[str, Any], op: str, unchanged: int | None = None) -> Batch:
    """One change of each row, in one segment; `unchanged`: the position of a column that was not sent."""
    schema: TableSchema = applied.schema
    meta, lsn = schema.meta, int(applied.lsn) + 8
    table = pa.table(values)
    moment = pa.scalar(datetime(2024, 1, 1, tzinfo=UTC), pa.timestamp("us", tz="UTC"))
    lacking = None if unchanged is None else [unchanged]
    for name, column in {
        meta.op: pa.repeat(op, len(table)),
        meta.commit_lsn: pa.repeat(pa.scalar(lsn, pa.int64()), len(table)),
        meta.seq: pa.array(range(len(table)), pa.int64()),
        meta.commit_ts: pa.repeat(moment, len(table)),
        meta.xid: pa.repeat(pa.scalar(1, pa.int64()), len(table)),
        meta.unchanged: pa.array([lacking] * len(table), pa.list_(pa.int32())),
        meta.relation: pa.nulls(len(table), pa.int64()),
        meta.key_changed: pa.repeat(False, len(table)),
        **{meta.old(key.name): pa.nulls(len(table), key.lake.arrow) for key in schema.key_columns},
    }.items():
        table = table.append_column(name, column)
    path = tmp_path / "segment.parquet"
    pq.write_table(table, path)
    counts = {"I": 0, "U": 0, "D": 0, op: len(table)}
    segment = Segment(
        path.name, len(table), path.stat().st_size, 1, counts["I"], counts["U"], counts["D"], 0,
        0 if unchanged is None else len(table),
    )  # fmt: skip
    return Batch(Lsn(lsn + 8), applied.manifest + 1, ((str(path), segment),))


def stored(tmp_path: Path, table: str) -> pa.Table:
    path = tmp_path / "lake"
    catalog = SqlCatalog("lake", uri=f"sqlite:///{path / 'catalog.db'}", warehouse=str(path))
    try:
        return catalog.load_table(("public", table)).scan().to_arrow()
    finally:
        catalog.engine.dispose()
