"""A change log that fills up because the lake is slow: it is said, nothing is lost, and all arrives by itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import PATIENCE, Mirrored

from servers import Database
from waiting import wait_until
from wal2lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal2lake.lake.model import Applied

MAX_BYTES = 1024 * 1024
NOISE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 96 + 0 * i))"


@pytest.mark.slow
def test_more_than_the_log_may_hold_waits_in_the_slot_and_arrives_when_the_lake_goes_on(
    database: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    apply = Lake.apply

    def held(self: Lake, *args: Any) -> Applied:
        let_go.wait(PATIENCE)
        return apply(self, *args)

    monkeypatch.setattr(Lake, "apply", held)
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, v text)")
    mirrored = Mirrored(database, tmp_path / "lake", spark, changelog={"max_bytes": MAX_BYTES})
    assert not mirrored.once().missed
    try:
        with mirrored.running():
            mirrored.is_streaming("t")

            def waits() -> bool:
                database.execute(f"INSERT INTO t (v) SELECT {NOISE} FROM generate_series(1, 80) i")
                return "capture waits" in (mirrored.group().warning or "")

            wait_until(waits, PATIENCE, mirrored.group)
            full = mirrored.group()
            assert full.changelog_max_bytes == MAX_BYTES and (full.changelog_bytes or 0) >= MAX_BYTES
            assert (full.state, full.error) == ("RUNNING", None)
            database.execute(f"INSERT INTO t (v) SELECT {NOISE} FROM generate_series(1, 1000) i")
            written = mirrored.now()
            assert mirrored.confirmed() < written

            let_go.set()
            mirrored.follows("t")
            mirrored.slot_passes(written)
    finally:
        let_go.set()
