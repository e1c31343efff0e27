"""Segments: changes of one table as a Parquet file, for Spark and any other reader.

A segment grows batch by batch and is durable when it is finished, under a unique name; a manifest makes it part of the
log. A segment that no manifest names is an orphan file.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .manifest import Segment
from .stamp import CommitStamp, marks
from .store import SEGMENTS, ChangeLog

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_CODEC = "snappy"
_SAMPLE_BYTES = 16 * 1024
# Small enough to be encoded at once.
_WRITE_ROWS = 64 * 1024


@dataclass(frozen=True)
class SegmentRows:
    """Rows for a segment: of one table in one schema version, ordered by (commit LSN, seq)."""

    oid: int
    schema_version: int
    batch: pa.RecordBatch
    inserts: int
    updates: int
    deletes: int
    key_changes: int
    unchanged: int
    leaves: frozenset[int] = frozenset()
    """oids of their partitions"""
    split: int = 0
    """updates that are a delete and an insert in it"""


class SegmentWriter:
    """A segment that is being written, by one thread at a time."""

    def __init__(
        self, log: ChangeLog, oid: int, schema_version: int, schema: pa.Schema, stamped: tuple[str, str] | None = None
    ) -> None:
        """`stamped`: the columns of commit LSN and commit time, if they are not known before it is finished."""
        self._name = f"{SEGMENTS}/{oid}/{uuid.uuid4().hex}.parquet"
        self._version = schema_version
        self.rows = self._inserts = self._updates = self._deletes = self._key_changes = self._unchanged = 0
        self._split = 0
        self._leaves: frozenset[int] = frozenset()
        self.bytes = 0
        """counts of the rows written so far"""
        self._stamped = stamped
        self._segment = log.storage.open_segment(self._name)
        self._sink = self._segment.sink
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: SegmentRows) -> None:
        """Append rows that follow those before. After an error it can't be finished."""
        try:
            if self._writer is None:
                self._writer = self._parquet(rows.batch)
            self._writer.write_batch(rows.batch)
        except BaseException:
            self.abandon()
            raise
        self.bytes = self._sink.tell()
        self.rows += rows.batch.num_rows
        self._inserts += rows.inserts
        self._updates += rows.updates
        self._deletes += rows.deletes
        self._key_changes += rows.key_changes
        self._unchanged += rows.unchanged
        self._split += rows.split
        self._leaves |= rows.leaves

    def finish(self, commit: CommitStamp | None = None) -> Segment:
        """Make the file and its name durable. `commit` is that of all its rows, if it was not known before."""
        if self._sink.closed:
            raise ValueError("the segment is closed")
        try:
            writer = self._writer or self._parquet(self._schema.empty_table())
            writer.close()
            if self._stamped is not None:
                assert commit is not None
                self._segment.stamp(marks(writer.writer.metadata, self._stamped, commit))
            written = self._segment.finish()
        except BaseException:
            self.abandon()
            raise
        return Segment(
            file=self._name, rows=self.rows, bytes=written.bytes, schema=self._version, inserts=self._inserts,
            updates=self._updates, deletes=self._deletes, key_changes=self._key_changes, unchanged=self._unchanged,
            leaves=tuple(sorted(self._leaves)), sha256=written.sha256, split=self._split,
        )  # fmt: skip

    def discard(self) -> None:
        """Delete it."""
        self._end()
        self._segment.discard()

    def abandon(self) -> None:
        """Close the file; a sweep deletes it with all files that no manifest names."""
        self._end()
        self._segment.abandon()

    def _end(self) -> None:
        # Its destructor would write to the file after that was closed.
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()

    def _parquet(self, first: pa.RecordBatch | pa.Table) -> pq.ParquetWriter:
        import pyarrow.parquet as pq

        # Building dictionaries costs several times as much as writing the values, and files get no smaller; statistics
        # are useless to readers that read whole segments.
        return pq.ParquetWriter(
            self._sink, self._schema, compression={**_compression(first), **dict.fromkeys(self._stamped or (), "none")},
            use_dictionary=list(self._stamped or ()), write_statistics=False, store_schema=False, version="2.6",
            write_batch_size=_WRITE_ROWS,
            # Statistics would not match the commit that is stamped later.
            write_page_checksum=self._stamped is None,
        )  # fmt: skip


def _compression(first: pa.RecordBatch | pa.Table) -> dict[str, str]:
    """Compress the columns that shrink to less than half; for the others compression costs more than all the rest."""
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
    """Some bytes of a column, about as they are written."""
    import pyarrow as pa

    values = array.buffers()[-1] if isinstance(array, pa.Array) else None
    if values is None:
        return b""
    some: bytes = values.slice(0, min(values.size, _SAMPLE_BYTES)).to_pybytes()
    if not pa.types.is_decimal(array.type):
        return some
    # Of the 16 bytes of a decimal only as many are written as its precision needs.
    width = (10**array.type.precision).bit_length() // 8 + 1
    return b"".join(some[at : at + width] for at in range(0, len(some), 16))
