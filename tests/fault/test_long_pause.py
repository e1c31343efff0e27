"""A table that was paused while its group went on for long: it resumes in bounded memory and time."""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mirroring import GROUP, Mirrored

from proof_size import proof_size
from servers import Database
from wal2lake.changelog import ChangeLog, ManifestEntry, storage_for
from wal2lake.changelog.segment import SegmentRows, SegmentWriter
from wal2lake.demo.compare import open_catalog
from wal2lake.mirror import Mirror
from wal2lake.position import Lsn
from wal2lake.scheduling.batch_plan import BATCH_SEGMENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

MOST_BYTES = 300 * 1024 * 1024
"""that the process may grow by, however many manifests there are"""
SECONDS_PER_BATCH = 60.0


def _flushed(mirrored: Mirrored, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the change log has after so many flushes with a row of the table each.

    They are written by the product's own code, but not by a capture that waits for each and for the disk: the source
    has the rows in one transaction, below the position that the log has in the end.
    """
    changes = ChangeLog(storage_for(mirrored.config.changelog_path), GROUP)
    captured = changes.last()
    assert captured is not None
    ((oid, cut),) = captured.tables.items()
    rows = pq.read_table(changes.uri(cut.segments[0]))
    begin = changes.position()
    mirrored.database.execute(f"INSERT INTO t SELECT i, 'flush ' || i FROM generate_series(2, {count + 1}) i")
    end = mirrored.now()
    assert begin + count < end
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        for number in range(2, count + 2):
            values = {"id": number, "v": f"flush {number}", "_commit_lsn": begin + number - 2}
            columns = [
                pa.array([values[name]], column.type) if name in values else column
                for name, column in zip(rows.schema.names, rows.columns, strict=True)
            ]
            (batch,) = pa.table(columns, rows.schema).to_batches()
            writer = SegmentWriter(changes, oid, cut.segments[0].schema, rows.schema)
            writer.write(SegmentRows(oid, cut.segments[0].schema, batch, 1, 0, 0, 0, 0))
            to = end if number == count + 1 else Lsn(begin + number - 1)
            changes.publish(to, 1, captured.commit_ts, {oid: ManifestEntry(oid, cut.name, (writer.finish(),))})


def _versions(mirrored: Mirrored) -> int:
    with open_catalog(mirrored.lake) as catalog:
        return len(catalog.load_table(("public", "t")).history())


def _most_memory() -> int:
    """The most memory that this process has had since it was asked to count anew, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_table_that_was_paused_for_a_day_resumes_in_bounded_memory_and_time(
    database: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = proof_size("WAL2LAKE_TEST_MANIFESTS", long=86_400, short=3_000)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE beside (id int PRIMARY KEY)")
    mirrored = Mirrored(database, tmp_path / "lake", spark, maintenance={"small_files": 100_000})
    mirrored.catches_up("t", "beside")
    Mirror(mirrored.config).pause(["public.t"])
    database.execute("INSERT INTO t VALUES (1, 'captured')")
    assert not mirrored.once().missed
    _flushed(mirrored, count, monkeypatch)
    versions = _versions(mirrored)

    database.execute("INSERT INTO beside VALUES (1)")
    began = time.monotonic()
    mirrored.catches_up("beside")
    beside = time.monotonic() - began

    Mirror(mirrored.config).resume(["public.t"])
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _most_memory(), time.monotonic()
    result = mirrored.once()
    took, grown = time.monotonic() - began, _most_memory() - before
    assert not result.missed, result.missed
    log.info("%d manifests: %.0f s, %.0f MB more; beside it %.0f s", count, took, grown / 2**20, beside)
    mirrored.equal("t", "beside")
    batches = math.ceil((count + 1) / BATCH_SEGMENTS)
    assert _versions(mirrored) - versions == batches
    assert grown < MOST_BYTES
    assert max(took, beside) < SECONDS_PER_BATCH * batches
    changes = ChangeLog(storage_for(mirrored.config.changelog_path), GROUP)
    # The last batches are deleted by the next run: the state store has to know of them first.
    assert len(changes.weights()) <= 2 * BATCH_SEGMENTS, "what is applied is deleted"
