"""Row messages of one relation as a record batch: the table's columns, then those of the change.

    messages ── tuples.walk ──► position of each value ── choose old or new per row ──► types.from_text ──► batch

An update of a table without a key becomes a delete of the old row and an insert of the new one. An unchanged TOAST
value is taken from the old tuple if that has it; otherwise it is NULL and listed as unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..change import Refusal
from ..position import Lsn
from ..schema import Column, TableId, TableSchema
from ..types import (
    Bytes,
    Converted,
    Mask,
    Masking,
    Positions,
    Reader,
    Slices,
    arrow_type,
    from_text,
    masked,
    sha256,
    views,
)
from .binding import Binding
from .messages import (
    DELETE,
    INSERT,
    NEW_ROW,
    OLD_KEY,
    OLD_ROW,
    STREAM_EPOCH_US,
    TEXT,
    UNCHANGED,
    UPDATE,
    Raw,
)
from .model import DecodedTable
from .tuples import Cells, Tuples, walk


@dataclass(frozen=True)
class Rows:
    """Row messages of one relation: their operations, positions, and places in the stream."""

    op: Bytes
    at: Positions
    end: Positions
    commit_lsn: Positions
    seq: Positions
    commit_us: Positions
    xid: Positions

    def __len__(self) -> int:
        return len(self.op)

    def take(self, rows: Positions | slice) -> Rows:
        return Rows(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def refusal(self, row: int, error: str, **fields: object) -> Refusal:
        return Refusal(Lsn(int(self.commit_lsn[row])), int(self.seq[row]), error, fields, int(self.xid[row]))


@dataclass(frozen=True)
class _Output:
    """The rows of the batch: the change of each, and the message and tuple that its values come from."""

    rows: Rows
    message: Positions
    from_old: Mask


def decode_rows(raw: Raw, rows: Rows, binding: Binding) -> tuple[DecodedTable, list[Refusal]]:
    """The batch of some rows, and for each column the first value that does not fit."""
    tuples = walk(raw, rows.op, rows.at, rows.end, len(binding.relation.columns), binding.form)
    refusals = list(_refused_operations(rows, tuples, binding))
    output = _outputs(rows, tuples, binding.schema)
    cells = [_chosen(tuples, output, place) for place in binding.order]
    names = binding.schema.names
    key_cells = [cells[names.index(name)] for name in binding.schema.key]
    naming_cells = [cells[names.index(column.name)] for column in binding.schema.naming_columns]
    arrays: list[pa.Array] = []
    readers = binding.readers or (None,) * len(names)
    for column, cell, reader in zip(binding.schema.columns, cells, readers, strict=True):
        converted = _convert(cell.slices(raw), column, reader)
        arrays.append(converted.array)
        refusals += _refused_value(converted, column, output.rows, _Keys(raw, binding, naming_cells))
    moved = _moved(raw, tuples, output, binding, key_cells)
    unchanged = _unchanged(binding.schema, cells, len(output.rows))
    refusals += _refused_inserts(output.rows, unchanged, binding.schema)
    refusals += _refused_keys(output.rows, key_cells, binding.schema)
    arrays += _place_in_stream(output.rows)
    arrays += [unchanged, _relation(len(output.rows), binding.target.leaf), pa.array(moved)]
    for array, refused in _old_keys(raw, tuples, output, binding, moved):
        arrays.append(array)
        refusals += refused
    table = DecodedTable(
        schema=binding.schema,
        version=binding.target.version,
        batch=pa.RecordBatch.from_arrays(arrays, schema=batch_schema(binding.schema)),
        inserts=int(np.count_nonzero(output.rows.op == INSERT)),
        updates=int(np.count_nonzero(output.rows.op == UPDATE)),
        deletes=int(np.count_nonzero(output.rows.op == DELETE)),
        key_changes=int(np.count_nonzero(moved)),
        unchanged=len(unchanged) - unchanged.null_count,
        split=len(output.rows) - len(rows),
    )
    return table, refusals


@lru_cache(maxsize=1024)
def batch_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a table's segments."""
    meta = schema.meta
    return pa.schema(
        [(column.name, column.lake.arrow) for column in schema.columns]
        + [
            (meta.op, pa.string()),
            (meta.commit_lsn, pa.int64()),
            (meta.seq, pa.int64()),
            (meta.commit_ts, pa.timestamp("us", tz="UTC")),
            (meta.xid, pa.int64()),
            (meta.unchanged, pa.list_(pa.int32())),
            (meta.relation, pa.int64()),
            (meta.key_changed, pa.bool_()),
        ]
        + [(meta.old(column.name), column.lake.arrow) for column in schema.key_columns]
    )


def _outputs(rows: Rows, tuples: Tuples, schema: TableSchema) -> _Output:
    message = np.arange(len(rows))
    split = (rows.op == UPDATE) & (tuples.marker == OLD_ROW)
    if schema.key or not split.any():
        return _Output(rows, message, rows.op == DELETE)
    message = np.repeat(message, 1 + split)
    second = np.zeros(len(message), np.bool_)
    second[1:] = message[1:] == message[:-1]
    first = split[message] & ~second
    op = np.where(first, DELETE, np.where(second, INSERT, rows.op[message])).astype(np.uint8)
    spread = rows.take(message)
    return _Output(replace(spread, op=op, seq=spread.seq + second), message, op == DELETE)


def _chosen(tuples: Tuples, output: _Output, place: int) -> Cells:
    """A column's cells for the rows of the batch: from the new tuple, or from the old one."""
    if not tuples.old:
        return tuples.new[place]
    new, old = tuples.new[place], tuples.old[place]
    both = Cells.concatenated(new, old)
    old_at = tuples.old_rank[output.message] + len(new.kind)
    picked = np.where(output.from_old, old_at, tuples.new_rank[output.message])
    toasted = (both.kind[picked] == UNCHANGED) & tuples.has_old[output.message]
    if toasted.any():
        picked[toasted] = np.where(both.kind[old_at[toasted]] == TEXT, old_at[toasted], picked[toasted])
    return both.take(picked)


def _convert(text: Slices, column: Column, reader: Reader | None) -> Converted:
    """`reader`: of values in binary form."""
    if reader is not None:
        return reader(text)
    if column.mask is Masking.SHA256:
        return Converted(sha256(text))
    if column.mask is Masking.NULL:
        return Converted(pa.nulls(len(text), arrow_type(column.lake)))
    return from_text(text, column.lake, column.delimiter)


def _moved(raw: Raw, tuples: Tuples, output: _Output, binding: Binding, key: list[Cells]) -> Mask:
    """Which rows are updates that changed the key: the texts of old and new key differ."""
    moved = np.zeros(len(output.rows), np.bool_)
    candidates = np.flatnonzero((output.rows.op == UPDATE) & tuples.has_old[output.message])
    if not len(candidates):
        return moved
    old_at = tuples.old_rank[output.message[candidates]]
    for place, cells in zip(binding.key_places, key, strict=True):
        before = _texts(tuples.old[place].take(old_at), raw)
        after = _texts(cells.take(candidates), raw)
        differs = pc.if_else(pc.and_(before.is_null(), after.is_null()), False, pc.not_equal(before, after))
        moved[candidates] |= pc.fill_null(differs, True).to_numpy(zero_copy_only=False)
    return moved


def _texts(cells: Cells, raw: Raw) -> pa.Array:
    return views(cells.slices(raw), pa.binary_view()).cast(pa.binary())


def _old_keys(
    raw: Raw, tuples: Tuples, output: _Output, binding: Binding, moved: Mask
) -> Iterator[tuple[pa.Array, list[Refusal]]]:
    changed = np.flatnonzero(moved)
    keys = zip(binding.key_places, binding.schema.key_columns, binding.key_readers, strict=True)
    for place, column, reader in keys:
        if not len(changed):
            yield pa.nulls(len(moved), arrow_type(column.lake)), []
            continue
        cells = [tuples.old[at].take(tuples.old_rank[output.message[changed]]) for at in binding.key_places]
        old = cells[binding.key_places.index(place)]
        converted = _convert(old.slices(raw), column, reader)
        spread = pa.array(np.cumsum(moved) - 1, mask=~moved)
        refused = _refused_value(converted, column, output.rows.take(changed), _Keys(raw, binding, cells))
        yield converted.array.take(spread), list(refused)


def _unchanged(schema: TableSchema, cells: list[Cells], count: int) -> pa.Array:
    """For each row the indexes of the columns whose values were not sent and are needed; null if there are none."""
    flags = [
        (cell.kind == UNCHANGED) & (column.mask is not Masking.NULL)
        for column, cell in zip(schema.columns, cells, strict=True)
    ]
    touched = [position for position, flag in enumerate(flags) if flag.any()]
    if not touched:
        return pa.nulls(count, pa.list_(pa.int32()))
    matrix = np.stack([flags[position] for position in touched], axis=1)
    _, which = np.nonzero(matrix)
    sizes = matrix.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    positions = np.array(touched, np.int32)[which]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(positions), mask=pa.array(sizes == 0))


def _place_in_stream(rows: Rows) -> list[pa.Array]:
    count = len(rows)
    offsets = np.arange(count + 1, dtype=np.int32)
    op = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows.op.tobytes())])
    stamp = pa.array(rows.commit_us + STREAM_EPOCH_US).cast(pa.timestamp("us", tz="UTC"))
    return [op, pa.array(rows.commit_lsn), pa.array(rows.seq), stamp, pa.array(rows.xid)]


def _relation(count: int, leaf: int | None) -> pa.Array:
    return pa.nulls(count, pa.int64()) if leaf is None else pa.array(np.full(count, leaf, np.int64))


@dataclass(frozen=True)
class _Keys:
    """Describes which row is meant, by its key, for messages."""

    raw: Raw
    binding: Binding
    cells: list[Cells]

    def words(self, row: int) -> str:
        columns = self.binding.schema.naming_columns
        if not columns:
            return "no key"
        readers = self.binding.readers_of(columns)
        shown = map(self._shown, [row] * len(self.cells), columns, self.cells, readers)
        return ", ".join(f"{column.name}={text}" for column, text in zip(columns, shown, strict=True))

    def _shown(self, row: int, column: Column, cell: Cells, reader: Reader | None) -> object:
        value = cell.take(np.array([row])).slices(self.raw)
        if reader is not None:
            return reader(value).array[0].as_py()
        text = value[0].decode(errors="replace")
        return text if column.mask is None else masked(text, column.mask)


def _refused_value(converted: Converted, column: Column, rows: Rows, keys: _Keys) -> Iterator[Refusal]:
    if converted.unfit is not None:
        yield rows.refusal(
            converted.unfit.row, "ValueRefused", table=str(keys.binding.schema.id), column=column.name,
            key=keys.words(converted.unfit.row), what=converted.unfit.what, lake_type=str(column.lake),
            carrier="string",
        )  # fmt: skip


def _refused_inserts(rows: Rows, unchanged: pa.Array, schema: TableSchema) -> Iterator[Refusal]:
    """An update that moves a row into the row filter is sent as an insert, without its unchanged TOAST values."""
    lacking = (rows.op == INSERT) & unchanged.is_valid().to_numpy(zero_copy_only=False)
    if lacking.any():
        cause = "an update moved a row into the row filter, and the WAL lacks some of its values"
        yield rows.refusal(int(lacking.argmax()), "CopyNeeded", table=str(schema.id), cause=cause)


def _refused_keys(rows: Rows, key: list[Cells], schema: TableSchema) -> Iterator[Refusal]:
    """Early minor releases of PostgreSQL 14 do not write an unchanged key to the WAL if it is stored out of line."""
    lacking = np.zeros(len(rows), np.bool_)
    for cells in key:
        lacking |= cells.kind == UNCHANGED
    lacking &= rows.op == UPDATE
    if lacking.any():
        cause = "the WAL lacks the key of a row that was updated, because it is stored out of line"
        yield rows.refusal(int(lacking.argmax()), "CopyNeeded", table=str(schema.id), cause=cause)


def _refused_operations(rows: Rows, tuples: Tuples, binding: Binding) -> Iterator[Refusal]:
    """Updates and deletes that do not identify their row."""
    schema = binding.schema
    changing = rows.op != INSERT
    if not binding.traceable:
        refused = changing
    elif not schema.key:
        refused = changing & ((tuples.marker == NEW_ROW) | (tuples.marker == OLD_KEY))
    else:
        return
    if refused.any():
        row = int(refused.argmax())
        # PostgreSQL refuses such a change on a published table; a re-copy includes its effect.
        operation = "UPDATE" if rows.op[row] == UPDATE else "DELETE"
        heap = TableId(binding.relation.namespace, binding.relation.name)
        cause = f"{operation} on {heap} does not identify its row"
        yield rows.refusal(row, "CopyNeeded", table=str(schema.id), cause=cause)
