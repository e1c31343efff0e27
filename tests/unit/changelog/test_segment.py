"""Segments contain what was written, and only columns that become much smaller are compressed."""

from __future__ import annotations

import errno
import gc
import io
import random
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wal2lake.change import MARKED_LSN, MARKED_US
from wal2lake.changelog import ChangeLog
from wal2lake.changelog.segment import SegmentRows, SegmentWriter
from wal2lake.changelog.stamp import CommitStamp


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


class Full(io.BytesIO):
    """A storage that has no room for the end of a file."""

    full = False

    def write(self, data: object, /) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("finishes", [True, False])
def test_a_segment_whose_end_can_not_be_written_leaves_nothing_for_its_destructor(
    log: ChangeLog, monkeypatch: pytest.MonkeyPatch, finishes: bool
) -> None:
    """It was closed again when it was collected, and that failed where nobody could handle it."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    writer = SegmentWriter(log, 1, 1, batch(0).schema)
    sink = Full()
    writer._sink = sink
    each = batch(10)
    writer.write(SegmentRows(1, 1, each, each.num_rows, 0, 0, 0, 0))
    sink.full = True
    if finishes:
        with pytest.raises(OSError, match="No space left"):
            writer.finish()
    else:
        writer.abandon()
    del writer
    gc.collect()
    assert not ignored


def write(log: ChangeLog, *batches: pa.RecordBatch) -> pa.BufferReader:
    writer = SegmentWriter(log, 1, 1, batch(0).schema)
    for each in batches:
        writer.write(SegmentRows(1, 1, each, each.num_rows, 0, 0, 0, 0))
    segment = writer.finish()
    assert segment.rows == sum(each.num_rows for each in batches)
    return pa.BufferReader(log.storage.get(segment.file))


def test_a_segment_holds_all_its_batches(log: ChangeLog) -> None:
    batches = [batch(3000, 1), batch(1, 2), batch(0, 3), batch(5000, 4)]
    found = pq.read_table(write(log, *batches))
    assert found.equals(pa.Table.from_batches(batches))


def test_only_columns_that_shrink_by_half_are_compressed(log: ChangeLog) -> None:
    group = pq.ParquetFile(write(log, batch(3000))).metadata.row_group(0)
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


def test_a_segment_that_never_got_a_row_is_readable(log: ChangeLog) -> None:
    assert pq.read_table(write(log)).num_rows == 0


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_commit_that_is_known_at_the_end_is_entered_into_every_row(log: ChangeLog, batches: int) -> None:
    def rows(lsn: int, us: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {
                "id": pa.array(range(2000), pa.int64()),
                "_commit_lsn": pa.array([lsn] * 2000, pa.int64()),
                "_commit_ts": pa.array([us] * 2000, pa.timestamp("us", tz="UTC")),
            }
        )

    marked = rows(MARKED_LSN, MARKED_US)
    writer = SegmentWriter(log, 1, 1, marked.schema, ("_commit_lsn", "_commit_ts"))
    for _ in range(batches):
        writer.write(SegmentRows(1, 1, marked, 2000, 0, 0, 0, 0))
    segment = writer.finish(CommitStamp(4711, 1_700_000_000_000_000))
    log.verify(segment)
    found = pq.read_table(pa.BufferReader(log.storage.get(segment.file)))
    expected = [rows(4711, 1_700_000_000_000_000)] * batches
    assert found.equals(pa.Table.from_batches(expected, marked.schema)) and segment.rows == 2000 * batches
