"""Segments: the changes of one table as a Parquet file that Spark and everybody else can read.

A segment grows by a batch at a time and is on disk when it is finished, under a name that no other has; only a
manifest makes it part of the log. What is not finished is an orphan file.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .checksum import file_digest
from .durable import sync_directory
from .manifest import Segment
from .stamp import Commit, stamp
from .store import ChangeLog

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_CODEC = "snappy"
_SAMPLE_BYTES = 16 * 1024
# A batch is small enough to be encoded in one go.
_WRITE_ROWS = 64 * 1024


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
    leaves: frozenset[int] = frozenset()
    """oids of the partitions that they are in"""
    split: int = 0
    """updates that are in it as a delete and an insert"""


class SegmentWriter:
    """A segment that is being written. One thread at a time."""

    def __init__(
        self, log: ChangeLog, oid: int, schema_version: int, schema: pa.Schema, stamped: tuple[str, str] | None = None
    ) -> None:
        """`stamped`: the columns of the commit's LSN and time, where they are known only when it is finished."""
        self._log = log
        self._directory = log.segment_directory(oid)
        self._path = self._directory / f"{uuid.uuid4().hex}.parquet"
        self._version = schema_version
        self.rows = self._inserts = self._updates = self._deletes = self._key_changes = self._unchanged = 0
        self._split = 0
        self._leaves: frozenset[int] = frozenset()
        self.bytes = 0
        """what is in the file so far"""
        self._stamped = stamped
        self._metadata: list[pq.FileMetaData] = []
        self._file = self._path.open("x+b")
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: Rows) -> None:
        """Append rows that come after those before. After an error it can't be finished."""
        try:
            if self._writer is None:
                self._writer = self._open(rows.batch)
            self._writer.write_batch(rows.batch)
        except BaseException:
            self.abandon()
            raise
        self.bytes = self._file.tell()
        self.rows += rows.batch.num_rows
        self._inserts += rows.inserts
        self._updates += rows.updates
        self._deletes += rows.deletes
        self._key_changes += rows.key_changes
        self._unchanged += rows.unchanged
        self._split += rows.split
        self._leaves |= rows.leaves

    def finish(self, commit: Commit | None = None) -> Segment:
        """Make it durable, its name too. The commit is that of all its rows, where it was not known before."""
        with self._file as file:
            (self._writer or self._open(self._schema.empty_table())).close()
            if self._stamped is not None:
                assert commit is not None
                stamp(file, self._metadata[0], self._stamped, commit)
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            digest = file_digest(file)
        sync_directory(self._directory)
        return Segment(
            file=self._path.relative_to(self._log.directory).as_posix(),
            rows=self.rows, bytes=size, schema=self._version, inserts=self._inserts, updates=self._updates,
            deletes=self._deletes, key_changes=self._key_changes, unchanged=self._unchanged,
            leaves=tuple(sorted(self._leaves)), sha256=digest, split=self._split,
        )  # fmt: skip

    def discard(self) -> None:
        """Delete it."""
        self.abandon()
        self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Let go of the file; it is swept away with all that no manifest names."""
        # Its own end would be written to the file, should that have been closed before it.
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        with suppress(OSError):
            self._file.close()

    def _open(self, first: pa.RecordBatch | pa.Table) -> pq.ParquetWriter:
        import pyarrow.parquet as pq

        # Looking for a dictionary costs several times what writing the values does, and files get no smaller by it;
        # statistics help nobody who reads segments whole.
        return pq.ParquetWriter(
            self._file, self._schema, compression={**_compression(first), **dict.fromkeys(self._stamped or (), "none")},
            use_dictionary=list(self._stamped or ()), write_statistics=False, store_schema=False, version="2.6",
            write_batch_size=_WRITE_ROWS, metadata_collector=self._metadata,
            # What is entered when the file is finished would not agree with them.
            write_page_checksum=self._stamped is None,
        )  # fmt: skip


def _compression(first: pa.RecordBatch | pa.Table) -> dict[str, str]:
    """Compress the columns that get less than half as large by it: on the others it costs more than all the rest."""
    import pyarrow as pa

    codec = pa.Codec(_CODEC)
    chosen = {}
    for name, array in zip(first.schema.names, first.columns, strict=True):
        if pa.types.is_list(array.type):
            chosen[f"{name}.list.element"] = _CODEC
            continue
        sample = _sample(array)
        chosen[name] = _CODEC if 2 * len(codec.compress(sample, asbytes=True)) < len(sample) else "none"
    return chosen


def _sample(array: pa.Array) -> bytes:
    """Some of a column's bytes, much as they are written."""
    import pyarrow as pa

    values = array.buffers()[-1] if isinstance(array, pa.Array) else None
    if values is None:
        return b""
    some: bytes = values.slice(0, min(values.size, _SAMPLE_BYTES)).to_pybytes()
    if not pa.types.is_decimal(array.type):
        return some
    # Of the 16 bytes of a decimal only so many are written as its digits need.
    width = (10**array.type.precision).bit_length() // 8 + 1
    return b"".join(some[at : at + width] for at in range(0, len(some), 16))
