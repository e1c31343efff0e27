"""A table that waits for a worker is applied with the latest changes."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from mirroring import GROUP, PATIENCE, Mirrored

from servers import Database
from waiting import wait_until
from wal2lake.lake import Applied, Batch, Lake
from wal2lake.scheduling.cadence import ANSWER_SECONDS, FRESH_SHARE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLUSH_INTERVAL = 6.0


@pytest.mark.slow
def test_what_was_committed_while_all_workers_were_busy_is_in_the_batch_that_waited(
    database: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    mirrored.configure(groups=[{"name": GROUP, "flush_interval": FLUSH_INTERVAL}], spark={"apply_workers": 1})
    begun: list[tuple[str, int]] = []
    moments: list[float] = []
    go_on = threading.Event()
    apply = Lake.apply

    def held(self: Lake, applied: Applied, batch: Batch, source_id: str, epoch: int) -> Applied:
        moments.append(monotonic())
        begun.append((applied.schema.id.name, batch.changes))
        assert go_on.wait(PATIENCE)
        return apply(self, applied, batch, source_id, epoch)

    monkeypatch.setattr(Lake, "apply", held)
    with mirrored.running():
        mirrored.is_streaming("a", "b")
        database.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
        wait_until(lambda: begun, PATIENCE, "a worker has begun")
        database.execute("INSERT INTO a VALUES (2); INSERT INTO b VALUES (2)")
        old = moments[0] + FRESH_SHARE * FLUSH_INTERVAL
        wait_until(lambda: monotonic() > old, PATIENCE, "the manifest is no longer new")
        go_on.set()
        mirrored.becomes_equal("a", "b")
    first, second = begun[0][0], begun[1][0]
    assert {first, second} == {"a", "b"}
    # What was committed while the first one was held is in the batch that waited for it.
    assert begun == [(first, 1), (second, 2), (first, 1)]
    # What came ahead of time for the other table is not committed sooner than the interval has it.
    assert moments[2] - moments[0] > FLUSH_INTERVAL - 2 * ANSWER_SECONDS
