"""A backlog: changes of the table `orders` that are in the change log and not in the lake, as after a long pause.

The mix is six updates, three inserts and one delete; some keys change many times, and some updates hit rows that were
inserted moments before. `collapsed` is what the changes come to, a row per key, as Parquet for whoever merges by hand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.capture.process import CaptureProcess
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import Config
from wal2lake.position import Lsn
from wal2lake.schema import TableSchema
from wal2lake.source.database import Source
from wal2lake.source.ports import OpenSnapshot

PER_TRANSACTION = 1000
COLD, HOT, RECENT, INSERTED, DELETED = 400, 100, 100, 300, 100
HOT_KEYS = 5000
ROWS_PER_FILE = 200_000
LIMIT_SECONDS = 900.0
CHANGES = f"""
    CREATE PROCEDURE change_orders(times int, rows bigint) LANGUAGE plpgsql AS $$
    DECLARE low bigint; step bigint;
    BEGIN
        FOR n IN 0..times - 1 LOOP
            low := (n + 1) * {DELETED};
            step := (rows - low) / {COLD};
            UPDATE orders SET quantity = quantity + 1, status = 'paid'
             WHERE id IN (SELECT low + 1 + (n * 7919::bigint + k * step) % (rows - low)
                            FROM generate_series(1, {COLD}) AS k);
            UPDATE orders SET quantity = quantity + 1, amount = n
             WHERE id IN (SELECT rows - (n * {HOT} + k) % least({HOT_KEYS}, rows / 2)
                            FROM generate_series(1, {HOT}) AS k);
            INSERT INTO orders SELECT rows + n * {INSERTED} + k, k, 'new', 1, 9.99, timestamptz '2025-01-01 00:00Z'
              FROM generate_series(1, {INSERTED}) AS k;
            UPDATE orders SET status = 'shipped'
             WHERE id IN (SELECT rows + n * {INSERTED} + k FROM generate_series(1, {RECENT}) AS k);
            DELETE FROM orders WHERE id > low - {DELETED} AND id <= low;
            COMMIT;
        END LOOP;
    END $$
"""  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """The table and its log at the moment before the changes."""

    schema: TableSchema
    source_id: str
    log: ChangeLog
    held: OpenSnapshot


@contextmanager
def opened(config: Config) -> Iterator[tuple[Source, Origin]]:
    """What a first start does before it copies: publication, log, slot, and the snapshot that the stream continues."""
    group = config.groups[0]
    source = Source(config, group)
    try:
        (schema,) = source.discover()
        source.publish([schema])
        log = ChangeLog(storage_for(config.changelog_path), group.name)
        log.create(source.identity(), source.slot_name)
        with source.create_slot() as held:
            log.begin(held.snapshot.lsn)
            yield source, Origin(schema, source.table_id(schema.oid), log, held)
    finally:
        source.close()


def write(connection: psycopg.Connection[Any], changes: int, rows: int) -> int:
    """Make about so many changes in transactions of a thousand; how many they are."""
    times = max(1, changes // PER_TRANSACTION)
    connection.execute(CHANGES)
    connection.execute("SET synchronous_commit = off")
    connection.execute("CALL change_orders(%s, %s)", (times, rows))
    connection.execute("RESET synchronous_commit")
    return times * PER_TRANSACTION


def capture(config: Config, source: Source) -> None:
    """Bring all that is committed now into the change log."""
    end = source.mark()
    process = CaptureProcess(config, config.groups[0])
    process.start()
    try:
        _until(process, end)
    finally:
        process.stop()


def _until(process: CaptureProcess, end: Lsn) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while (report := process.report()).logged_lsn < end:
        if report.fatal:
            raise RuntimeError(f"capture failed: {report.error}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"capture is not at {end} after {LIMIT_SECONDS:g} s: {report}")
        process.request_flush()
        process.wait_for(lambda report: report.logged_lsn >= end or report.fatal, 0.5)


def collapsed(origin: Origin, directory: Path) -> int:
    """Write the last state of each changed key as Parquet files, with `op` D where it is gone; how many keys."""
    meta, oid = origin.schema.meta, origin.schema.oid
    own = list(origin.schema.names)
    segments = [s for manifest in origin.log.after(0) if oid in manifest.tables for s in manifest.tables[oid].segments]
    wanted = [*own, meta.op, meta.commit_lsn, meta.seq]
    changes = pa.concat_tables(pq.read_table(origin.log.uri(s), columns=wanted) for s in segments)
    changes = changes.sort_by([("id", "ascending"), (meta.commit_lsn, "ascending"), (meta.seq, "ascending")])
    ids = changes["id"].to_numpy()
    last = changes.filter(pa.array(np.append(ids[1:] != ids[:-1], True)))
    last = last.select([*own, meta.op]).rename_columns([*own, "op"])
    directory.mkdir()
    for number, at in enumerate(range(0, last.num_rows, ROWS_PER_FILE)):
        pq.write_table(last.slice(at, ROWS_PER_FILE), directory / f"part-{number}.parquet", compression="zstd")
    return int(last.num_rows)
