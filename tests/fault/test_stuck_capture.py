"""A capture that can't write its log for a while: it is reported all the time, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mirroring import PATIENCE, Mirrored

from servers import Database
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_lag_grows_and_the_error_stays_until_the_log_can_be_written(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    with mirrored.running():
        mirrored.is_streaming("t")
        in_the_way = mirrored.changelog / "segments" / str(database.value("SELECT 't'::regclass::oid::int8"))
        in_the_way.parent.mkdir(exist_ok=True)
        in_the_way.write_text("a file where a directory belongs")
        database.execute("INSERT INTO t VALUES (1)")
        wait_until(lambda: mirrored.group().error, PATIENCE, mirrored.group)
        lags = [0.0]

        def behind() -> float:
            group, table = mirrored.group(), mirrored.table("t")
            assert table is not None and group.error and group.remedy and group.state == "ERRORED"
            assert table.lag_seconds is not None
            assert table.lag_seconds >= lags[-1] and group.lag_seconds >= lags[-1], "it is not less behind"
            lags.append(table.lag_seconds)
            return table.lag_seconds

        # Long enough for several sessions, each of which opens the stream without a fault.
        wait_until(lambda: behind() > 3, PATIENCE, mirrored.group)
        in_the_way.unlink()
        mirrored.follows("t")
        wait_until(lambda: mirrored.group().error is None, PATIENCE, mirrored.group)
        table = mirrored.table("t")
        assert table is not None and table.lag_seconds == 0
