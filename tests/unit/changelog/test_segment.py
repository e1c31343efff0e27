"""Segments hold what was written, and only columns that get much smaller by it are compressed."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.changelog import ChangeLog
from wal2lake.changelog.segment import Rows, SegmentWriter


def batch(rows: int, seed: int = 1) -> pa.RecordBatch:
    dice = random.Random(seed)
    return pa.RecordBatch.from_pydict(
        {
            "constant": pa.array([7] * rows, pa.int64()),
            "random": pa.array([dice.getrandbits(62) for _ in range(rows)], pa.int64()),
            "hex": pa.array(
                [None if n % 11 == 0 else f"{dice.getrandbits(128):032x}" for n in range(rows)], pa.string()
            ),
            "alike": pa.array(['{"column": 8, "row": 1}'] * rows, pa.string()),
            "amount": pa.array([Decimal(dice.getrandbits(44)).scaleb(-4) for _ in range(rows)], pa.decimal128(14, 4)),
            "unchanged": pa.array([None if n % 3 else [n, 2] for n in range(rows)], pa.list_(pa.int32())),
            "nothing": pa.nulls(rows, pa.int64()),
        }
    )


def write(directory: Path, *batches: pa.RecordBatch) -> Path:
    log = ChangeLog(directory, "main")
    writer = SegmentWriter(log, 1, 1, batch(0).schema)
    for each in batches:
        writer.write(Rows(1, 1, each, each.num_rows, 0, 0, 0, 0))
    segment = writer.finish()
    assert segment.rows == sum(each.num_rows for each in batches)
    return log.directory / segment.file


def test_a_segment_holds_all_its_batches(tmp_path: Path) -> None:
    batches = [batch(3000, 1), batch(1, 2), batch(0, 3), batch(5000, 4)]
    found = pq.read_table(write(tmp_path, *batches))
    assert found.equals(pa.Table.from_batches(batches))


def test_only_columns_that_shrink_by_half_are_compressed(tmp_path: Path) -> None:
    group = pq.ParquetFile(write(tmp_path, batch(3000))).metadata.row_group(0)
    codecs = {group.column(n).path_in_schema: group.column(n).compression for n in range(group.num_columns)}
    assert codecs == {
        "constant": "SNAPPY",
        "random": "UNCOMPRESSED",
        "hex": "UNCOMPRESSED",
        "alike": "SNAPPY",
        "amount": "UNCOMPRESSED",
        "unchanged.list.element": "SNAPPY",
        "nothing": "SNAPPY",
    }


def test_a_segment_that_never_got_a_row_is_readable(tmp_path: Path) -> None:
    assert pq.read_table(write(tmp_path)).num_rows == 0
