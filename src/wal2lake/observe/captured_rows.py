"""The changes of one table as arrays, read from a segment a batch at a time.

What the change log holds of a change is brought into one form here: an update that is in it as a delete and an insert
is one change again, and the old values are those of its old key or of its whole old row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..changelog import ChangeLog, Segment
from ..schema import ReplicaIdentity, TableId, TableSchema

OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_INSERT, _UPDATE, _DELETE = range(3)
_MOST_ROWS = 16 * 1024
_BUFFER_BYTES = 1024 * 1024

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


@dataclass
class CapturedRows:
    """Changes of one table in one schema, ordered by (commit LSN, seq)."""

    table: TableId
    schema: TableSchema
    lsn: Numbers
    seq: Numbers
    operation: Numbers
    """numbers of OPERATIONS"""
    rows: pa.RecordBatch
    """the table's columns, then those of the change log"""
    old: pa.RecordBatch
    """for each change with old values those, by the names of the columns; see `old_of`"""
    old_of: Numbers
    """for each change the row of `old`, or -1"""
    rendered: Any = field(default=None, compare=False)
    """what a format has made of all of them"""

    def __len__(self) -> int:
        return len(self.lsn)

    def where(self, kept: Mask) -> CapturedRows:
        """Those that a mask names."""
        if kept.all():
            return self
        return CapturedRows(
            self.table, self.schema, self.lsn[kept], self.seq[kept], self.operation[kept],
            self.rows.filter(pa.array(kept)), self.old, self.old_of[kept],
        )  # fmt: skip

    @cached_property
    def absent(self) -> dict[str, Mask]:
        """For each column that PostgreSQL did not send in every change: in which it is missing."""
        names, schema = self.schema.names, self.schema
        found: dict[str, Mask] = {}
        deleted = self.operation == _DELETE
        if schema.identity is not ReplicaIdentity.FULL and deleted.any():
            found = {name: deleted.copy() for name in names if name not in schema.key}
        unchanged = self.rows.column(schema.meta.unchanged)
        if unchanged.null_count < len(unchanged):
            rows, positions = pc.list_parent_indices(unchanged).to_numpy(), pc.list_flatten(unchanged).to_numpy()
            for position in np.unique(positions):
                mask = found.setdefault(names[position], np.zeros(len(self), np.bool_))
                mask[rows[positions == position]] = True
        return found

    @cached_property
    def unchanged(self) -> list[tuple[str, ...]]:
        """For each change the columns that were not sent, because a large value stayed as it was."""
        column, names = self.rows.column(self.schema.meta.unchanged), self.schema.names
        if column.null_count == len(column):
            return [()] * len(self)
        known: dict[tuple[int, ...], tuple[str, ...]] = {}
        found = []
        for each in column.to_pylist():
            positions = tuple(each or ())
            if (said := known.get(positions)) is None:
                said = known[positions] = tuple(names[position] for position in positions)
            found.append(said)
        return found


def read_rows(log: ChangeLog, oid: int, table: TableId, segment: Segment, most_bytes: int) -> Iterator[CapturedRows]:
    """A segment's changes, in parts of about so many bytes at most."""
    log.verify(segment)
    schema = log.schema(oid, segment.schema)
    with log.open(segment) as opened, pq.ParquetFile(opened, buffer_size=_BUFFER_BYTES) as file:
        held: pa.RecordBatch | None = None
        for batch in file.iter_batches(_rows_at_once(file.metadata, most_bytes)):
            if held is not None:
                batch = pa.concat_batches([held, batch])  # noqa: PLW2901 - what was held back belongs in front
                held = None
            if segment.split and _ends_with_delete(batch, schema):
                held, batch = batch.slice(batch.num_rows - 1), batch.slice(0, batch.num_rows - 1)  # noqa: PLW2901
            if batch.num_rows:
                yield _captured(batch, schema, table, bool(segment.split))
        if held is not None:
            yield _captured(held, schema, table, False)


def _rows_at_once(metadata: pq.FileMetaData, most_bytes: int) -> int:
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(_MOST_ROWS, most_bytes * int(metadata.num_rows) // max(int(size), 1)))


def _ends_with_delete(batch: pa.RecordBatch, schema: TableSchema) -> bool:
    return batch.num_rows > 0 and bool(batch.column(schema.meta.op)[-1].as_py() == "D")


def _captured(batch: pa.RecordBatch, schema: TableSchema, table: TableId, split: bool) -> CapturedRows:
    meta = schema.meta
    operation = pc.index_in(batch.column(meta.op), pa.array(["I", "U", "D"])).to_numpy().astype(np.int64)
    lsn, seq = (batch.column(name).to_numpy() for name in (meta.commit_lsn, meta.seq))
    if split:
        return _joined(batch, schema, table, lsn, seq, operation)
    moved = batch.column(meta.key_changed).fill_null(False).to_numpy(zero_copy_only=False)
    old_of = np.full(batch.num_rows, -1)
    old_of[moved] = np.arange(moved.sum())
    old = pa.RecordBatch.from_arrays(
        [batch.column(meta.old(name)).filter(pa.array(moved)) for name in schema.key], names=list(schema.key)
    )
    return CapturedRows(table, schema, lsn, seq, operation, batch, old, old_of)


def _joined(
    batch: pa.RecordBatch, schema: TableSchema, table: TableId, lsn: Numbers, seq: Numbers, operation: Numbers
) -> CapturedRows:
    """Updates of rows without a key are in the log as a delete and an insert with the next seq; join them again."""
    first = np.zeros(batch.num_rows, np.bool_)
    first[:-1] = (
        (operation[:-1] == _DELETE) & (operation[1:] == _INSERT) & (lsn[:-1] == lsn[1:]) & (seq[:-1] + 1 == seq[1:])
    )
    second = np.roll(first, 1)
    operation, seq = operation.copy(), seq.copy()
    operation[second] = _UPDATE
    seq[second] -= 1
    old_of = np.full(batch.num_rows, -1)
    old_of[second] = np.arange(second.sum())
    names = list(schema.names)
    old = batch.select(names).filter(pa.array(first))
    kept = ~first
    return CapturedRows(
        table, schema, lsn[kept], seq[kept], operation[kept], batch.filter(pa.array(kept)), old, old_of[kept]
    )
