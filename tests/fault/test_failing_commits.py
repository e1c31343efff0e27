"""Storage that refuses writes for a while: writers wait, nothing is skipped, and other tables continue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored, blocked

from oracle import table_directory
from servers import Database
from waiting import wait_until
from wal2lake.retry import Backoff

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    for name in ("sick", "well"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int); INSERT INTO {name} SELECT i, 0 FROM generate_series(1, 50) i"
        )
    return Mirrored(database, tmp_path / "lake", spark)


def _change(database: Database) -> None:
    for name in ("sick", "well"):
        database.execute(
            f"UPDATE {name} SET n = n + 1 WHERE id % 2 = 0; DELETE FROM {name} WHERE id = (SELECT min(id) FROM {name});"
            f"INSERT INTO {name} SELECT max(id) + 1, 0 FROM {name}"
        )


@pytest.mark.parametrize("part", ["data", "metadata"])
def test_a_table_that_can_not_be_written_waits_with_a_reason_and_the_others_go_on(
    part: str, mirrored: Mirrored
) -> None:
    mirrored.catches_up("sick", "well")
    with blocked(table_directory(mirrored.lake, "sick") / part), mirrored.running():
        _change(mirrored.database)
        failed = mirrored.fails("sick")
        assert "sick" in f"{failed.error}", failed.error
        for _ in range(3):
            position = mirrored.now()
            _change(mirrored.database)
            mirrored.follows("well")
            mirrored.slot_passes(position)
        still = mirrored.table("sick")
        assert still is not None and still.state == "ERRORED" and still.error and still.remedy
    # A restart tries again, from the change log.
    mirrored.catches_up("sick", "well")


def test_a_table_is_tried_again_by_itself_and_nothing_is_skipped(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal2lake.retry.TABLE", Backoff(1.0, 1.0))
    mirrored.catches_up("sick", "well")
    with mirrored.running():
        with blocked(table_directory(mirrored.lake, "sick") / "data"):
            _change(mirrored.database)
            mirrored.fails("sick")
            _change(mirrored.database)
            mirrored.follows("well")
        mirrored.follows("sick", "well")
        healed = mirrored.table("sick")
        assert healed is not None and healed.error is None and healed.retry_at is None


def test_a_change_log_that_can_not_be_written_keeps_the_slot_and_loses_nothing(mirrored: Mirrored) -> None:
    mirrored.catches_up("sick", "well")
    _change(mirrored.database)
    mirrored.catches_up("sick", "well")
    with mirrored.running():
        mirrored.is_streaming("sick", "well")
        with blocked(mirrored.changelog / "segments"):
            position = mirrored.now()
            _change(mirrored.database)
            wait_until(lambda: mirrored.group().error, 30, "the group says what is wrong")
            assert mirrored.confirmed() <= position
        mirrored.follows("sick", "well")
        wait_until(lambda: not mirrored.group().error, 30, "the group is well again")
