"""Segments: the changes of one table as a Parquet file that Spark and everybody else can read.

A segment grows by a batch at a time and is on disk when it is finished, under a name that no other has; only a
manifest makes it part of the log. What is not finished is rubbish.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .durable import sync_directory
from .manifest import Segment
from .stamp import Commit, options, stamp
from .store import ChangeLog

if TYPE_CHECKING:
    import pyarrow as pa


_COMPRESSION = "snappy"


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


class SegmentWriter:
    """A segment that is being written. One thread at a time."""

    def __init__(
        self, log: ChangeLog, oid: int, schema_version: int, schema: pa.Schema, stamped: tuple[str, str] | None = None
    ) -> None:
        """`stamped`: the columns of the commit's LSN and time, where they are known only when it is finished."""
        import pyarrow.parquet as pq

        self._log = log
        self._directory = log.segment_directory(oid)
        self._path = self._directory / f"{uuid.uuid4().hex}.parquet"
        self._version = schema_version
        self._rows = self._inserts = self._updates = self._deletes = self._key_changes = self._unchanged = 0
        self.bytes = 0
        """what is in the file so far"""
        self._stamped = stamped
        self._metadata: list[pa.parquet.FileMetaData] = []
        self._file = self._path.open("x+b")
        # Looking for a dictionary costs several times what writing the values does, and files get no smaller by it;
        # statistics help nobody who reads segments whole.
        settings = {"compression": _COMPRESSION, "use_dictionary": False}
        if stamped is not None:
            settings = options(schema, stamped, _COMPRESSION)
        self._writer = pq.ParquetWriter(
            self._file, schema, write_statistics=False, store_schema=False, version="2.6",
            metadata_collector=self._metadata, **settings,
        )  # fmt: skip

    def write(self, rows: Rows) -> None:
        """Append rows that come after those before. After an error it can't be finished."""
        try:
            self._writer.write_batch(rows.batch)
        except BaseException:
            self.abandon()
            raise
        self.bytes = self._file.tell()
        self._rows += rows.batch.num_rows
        self._inserts += rows.inserts
        self._updates += rows.updates
        self._deletes += rows.deletes
        self._key_changes += rows.key_changes
        self._unchanged += rows.unchanged

    def finish(self, commit: Commit | None = None) -> Segment:
        """Make it durable, its name too. The commit is that of all its rows, where it was not known before."""
        with self._file as file:
            self._writer.close()
            if self._stamped is not None:
                assert commit is not None
                stamp(file, self._metadata[0], self._stamped, commit)
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        sync_directory(self._directory)
        return Segment(
            file=self._path.relative_to(self._log.directory).as_posix(),
            rows=self._rows, bytes=size, schema=self._version, inserts=self._inserts, updates=self._updates,
            deletes=self._deletes, key_changes=self._key_changes, unchanged=self._unchanged,
        )  # fmt: skip

    def discard(self) -> None:
        """Delete it."""
        self.abandon()
        self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Let go of the file; it is swept away with all that no manifest names."""
        # Its own end would be written to the file, should that have been closed before it.
        with suppress(Exception):
            self._writer.close()
        with suppress(OSError):
            self._file.close()
