"""One transaction of millions of rows, streamed or not: the capture process stays small.

WAL2LAKE_TEST_TRANSACTION_ROWS sets how many.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from capturing import CapturedGroup
from proof_size import proof_size
from servers import Database
from wal2lake.source import connect, mark

ROWS = proof_size("WAL2LAKE_TEST_TRANSACTION_ROWS", long=2_000_000, short=500_000)
MOST_MEGABYTES = 400
SECONDS = 120 + ROWS / 5000


def peak_megabytes(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])
def test_memory_does_not_grow_with_the_transaction(database: Database, tmp_path: Path, streaming: bool) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text, amount numeric(12,2), at timestamptz)")
    # With the settings that everybody has.
    captured = CapturedGroup(database, tmp_path, flush_interval=1.0, flush_bytes=64 * 1024 * 1024)
    source = captured.config.source.model_copy(update={"streaming": streaming})
    captured.config = captured.config.model_copy(update={"source": source})
    captured.begin("public.t").close()
    captured.start()
    try:
        database.execute(
            "INSERT INTO t SELECT i, i % 1000, 'text of row ' || i, (i % 100000) / 100.0, now()"
            f" FROM generate_series(1, {ROWS}) i"
        )
        with connect(captured.config.source) as conn:
            until = mark(conn)
        report = captured.capture.wait_for(lambda r: r.logged_lsn >= until or r.error is not None, SECONDS)
        assert report.logged_lsn >= until and report.error is None, report
        peak = peak_megabytes(captured.capture.pid or 0)
    finally:
        captured.stop()
    (manifest,) = captured.log.after(0)
    assert sum(segment.rows for segment in manifest.tables[captured.oid("t")].segments) == ROWS
    assert peak < MOST_MEGABYTES, f"{peak} MB"
    print(f"peak of {peak} MB for {ROWS} rows")  # noqa: T201 - shown with -s
