"""Segments: the changes of one table as a Parquet file that Spark and everybody else can read.

A segment is on disk when it is returned, under a name that no other has; only a manifest makes it part of the log.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .manifest import Segment
from .store import ChangeLog

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Rows:
    """What goes into a segment: rows of one table in one schema version, ordered by (commit LSN, seq)."""

    oid: int
    schema_version: int
    batch: pa.RecordBatch
    inserts: int
    updates: int
    deletes: int
    key_changes: int
    unchanged: int


def write_segment(log: ChangeLog, rows: Rows) -> Segment:
    """Write a batch and make it durable, its name too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = log.segment_directory(rows.oid)
    path = directory / f"{uuid.uuid4().hex}.parquet"
    # A dictionary is tried and dropped per column chunk; statistics help nobody who reads segments whole.
    with path.open("xb") as file:
        with pq.ParquetWriter(
            file, rows.batch.schema, compression="snappy", write_statistics=False, store_schema=False, version="2.6",
        ) as writer:  # fmt: skip
            writer.write_table(pa.Table.from_batches([rows.batch]))
        file.flush()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    _sync(directory)
    return Segment(
        file=path.relative_to(log.directory).as_posix(),
        rows=rows.batch.num_rows, bytes=size, schema=rows.schema_version,
        inserts=rows.inserts, updates=rows.updates, deletes=rows.deletes, key_changes=rows.key_changes,
        unchanged=rows.unchanged,
    )  # fmt: skip


def _sync(directory: os.PathLike[str]) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
