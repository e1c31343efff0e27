"""One warm MERGE, written by hand, of as many changes as a lake commit of the mirror held: what a commit must cost."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.config import Config
from wal2lake.lake.iceberg import IcebergTables
from wal2lake.lake.session import Driver

WARM_UPS, TIMED = 5, 5
SCHEMA = "id BIGINT, status STRING, quantity INT, op STRING"
MERGE = """
    MERGE INTO lake.public.{table} AS t USING changes AS c ON t.id = c.id
    WHEN MATCHED AND c.op = 'D' THEN DELETE
    WHEN MATCHED THEN UPDATE SET status = c.status, quantity = c.quantity
    WHEN NOT MATCHED AND c.op <> 'D' THEN INSERT (id, customer, status, quantity, amount, placed_at)
        VALUES (c.id, 1, c.status, c.quantity, 9.99, current_timestamp())
"""


def warm_merge(config: Config, table: str, size: int, high: int) -> float:
    """Median seconds of a MERGE of 60 % updates, 30 % inserts and 10 % deletes; `high` is above every id in use.

    It changes the lake table, so whatever is to be compared is compared before.
    """
    times: list[float] = []
    driver = Driver(config)
    driver.start(IcebergTables(config).settings())
    try:
        # As wal2lake has it for a table of this size: one task writes one file.
        with driver.session("warm merge", {"spark.sql.shuffle.partitions": "1"}) as session:
            known = session.sql(f"SELECT id FROM lake.public.{table} ORDER BY id DESC LIMIT {size * 20}").collect()
            ids = [row[0] for row in known]
            for turn in range(WARM_UPS + TIMED):
                file = config.lake_path / f"changes-{turn}.parquet"
                _write(file, ids[turn * size : (turn + 1) * size] or ids[:size], high + turn * size)
                began = time.monotonic()
                session.read.schema(SCHEMA).parquet(str(file)).createOrReplaceTempView("changes")
                session.sql(MERGE.format(table=table))
                times.append(time.monotonic() - began)
    finally:
        driver.stop()
    return median(times[WARM_UPS:])


def _write(file: Path, ids: list[int], fresh: int) -> None:
    inserts, deletes = round(len(ids) * 0.3), round(len(ids) * 0.1)
    changed = ids[: len(ids) - inserts]
    ops = ["D"] * deletes + ["U"] * (len(changed) - deletes) + ["I"] * inserts
    columns = {
        "id": pa.array([*changed, *range(fresh, fresh + inserts)], pa.int64()),
        "status": pa.array(["paid"] * len(ops)),
        "quantity": pa.array([7] * len(ops), pa.int32()),
        "op": pa.array(ops),
    }
    pq.write_table(pa.table(columns), file)
