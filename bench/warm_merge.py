"""One warm MERGE, written by hand, of as many changes as a lake commit of the mirror held: what a commit must cost.

It has a Spark of its own and a table of its own in the mirror's lake, so it can be timed while the mirror has nothing
to do, between two stretches of its work, on the machine as it is just then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.config import Config
from wal2lake.lake.iceberg.metadata import TABLE_PROPERTIES
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.lake.spark.driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = "lake.bench.merged"
SCHEMA = "id BIGINT, status STRING, quantity INT, op STRING"
MERGE = f"""
    MERGE INTO {TARGET} AS t USING changes AS c ON t.id = c.id
    WHEN MATCHED AND c.op = 'D' THEN DELETE
    WHEN MATCHED THEN UPDATE SET status = c.status, quantity = c.quantity
    WHEN NOT MATCHED AND c.op <> 'D' THEN INSERT (id, customer, status, quantity, amount, placed_at)
        VALUES (c.id, 1, c.status, c.quantity, 9.99, current_timestamp())
"""


class WarmMerge:
    def __init__(self, session: SparkSession, directory: Path, source: str) -> None:
        self._session, self._file = session, directory / "changes.parquet"
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in TABLE_PROPERTIES.items())
        session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
        session.sql(f"CREATE TABLE {TARGET} USING iceberg TBLPROPERTIES ({properties}) AS SELECT * FROM {source}")
        self._ids = [row[0] for row in session.sql(f"SELECT id FROM {TARGET} ORDER BY id").collect()]
        ((self._first,),) = session.sql(f"SELECT snapshot_id FROM {TARGET}.snapshots").collect()

    def seconds(self, size: int, times: int) -> list[float]:
        """How long each of some MERGEs takes now, one after the other, the first into a table that is just written."""
        self._session.sql(f"CALL lake.system.rollback_to_snapshot('bench.merged', {self._first})")
        return [self._merge(size, turn) for turn in range(times)]

    def _merge(self, size: int, turn: int) -> float:
        self._write(size, turn)
        began = time.monotonic()
        self._session.read.schema(SCHEMA).parquet(str(self._file)).createOrReplaceTempView("changes")
        self._session.sql(MERGE)
        return time.monotonic() - began

    def _write(self, size: int, turn: int) -> None:
        """60 % updates, 30 % inserts and 10 % deletes, each turn of other rows."""
        inserts, deletes = round(size * 0.3), round(size * 0.1)
        changed = [self._ids[i % len(self._ids)] for i in range(turn * size, (turn + 1) * size - inserts)]
        fresh = range(self._ids[-1] + 1 + turn * size, self._ids[-1] + 1 + turn * size + inserts)
        ops = ["D"] * deletes + ["U"] * (len(changed) - deletes) + ["I"] * inserts
        columns = {
            "id": pa.array([*changed, *fresh], pa.int64()),
            "status": pa.array(["paid"] * len(ops)),
            "quantity": pa.array([7] * len(ops), pa.int32()),
            "op": pa.array(ops),
        }
        pq.write_table(pa.table(columns), self._file)


@contextmanager
def warm_merge(config: Config, table: str) -> Iterator[WarmMerge]:
    """A table with the rows that a lake table has now, to be merged into."""
    tables = IcebergTables(config)
    driver = Driver(config, tables.runtime)
    driver.start(tables.settings())
    try:
        # As wal2lake has it for a table of this size: one task writes one file.
        with driver.session("warm merge", {"spark.sql.shuffle.partitions": "1"}) as session:
            yield WarmMerge(session, config.lake_path, f"lake.public.{table}")
    finally:
        driver.stop()
