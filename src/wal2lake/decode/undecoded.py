"""Rows that were found in the stream and sorted by table; any thread can decode them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ..schema import TableSchema
from ..types import Bytes, Mask, Positions
from .binding import Binding
from .columns import Rows, decode_rows
from .messages import KIND_AT, Begins, Raw
from .model import DecodedTable, Refusals

log = logging.getLogger(__name__)

_PIECE_CELLS = 1 << 21


@dataclass(frozen=True)
class Part:
    """Messages in one buffer, each with its transaction and its place in it."""

    raw: Raw
    kinds: Bytes
    at: Positions
    """positions of the kind bytes"""
    end: Positions
    begins: Begins
    """per transaction; the first is the one that was open before"""
    transaction: Positions
    seq: Positions
    needed: Mask
    """not in a transaction that is logged already"""

    def numbers(self, kind: int) -> list[int]:
        return np.flatnonzero(self.kinds == kind).tolist()

    def message(self, number: int) -> bytes:
        return self.raw.data[self.at[number] - KIND_AT : self.end[number]]


class Undecoded:
    """Rows of one table and one schema version, by their positions in the stream. Decoding has no side effects."""

    def __init__(self, part: Part, units: list[tuple[Binding, Positions]]) -> None:
        target = units[0][0].target
        self.schema, self.version = target.schema, target.version
        self._part, self._units = part, units

    def decode(self) -> tuple[DecodedTable | None, Refusals]:
        """All of them in one batch, in their order; None if none can be read. Call it once."""
        refusals = Refusals()
        pieces = [(piece, binding) for binding, numbers in self._units for piece in _pieces(numbers, binding)]
        decoded = [_decode_piece(self._part, piece, binding, refusals) for piece, binding in pieces]
        tables = [table for table in decoded if table is not None]
        return (_joined(tables) if tables else None), refusals


def by_table(part: Part, units: list[tuple[Binding, Positions]]) -> Iterator[Undecoded]:
    """The rows of each table and schema version, from all its relations."""
    found: dict[tuple[int, TableSchema], list[tuple[Binding, Positions]]] = {}
    for binding, numbers in units:
        found.setdefault((binding.target.version, binding.schema), []).append((binding, numbers))
    for same in found.values():
        yield Undecoded(part, same)


def _pieces(numbers: Positions, binding: Binding) -> Iterator[Positions]:
    """Rows in portions that keep the working memory small for any number of columns."""
    most = max(1, _PIECE_CELLS // max(1, len(binding.relation.columns)))
    for begin in range(0, len(numbers), most):
        yield numbers[begin : begin + most]


def _decode_piece(part: Part, numbers: Positions, binding: Binding, refusals: Refusals) -> DecodedTable | None:
    begins = part.begins.take(part.transaction[numbers])
    rows = Rows(
        op=part.kinds[numbers],
        at=part.at[numbers],
        end=part.end[numbers],
        commit_lsn=begins.commit_lsn,
        seq=part.seq[numbers],
        commit_us=begins.commit_us,
        xid=begins.xid,
    )
    name = str(binding.schema.id)
    if binding.mismatch is not None:
        refusals.note(rows.refusal(0, "SchemaChanged", table=name, cause=binding.mismatch))
        return None
    if binding.misleading is not None:
        refusals.note(rows.refusal(0, "CopyNeeded", table=name, cause=binding.misleading))
        return None
    try:
        table, refused = decode_rows(part.raw, rows, binding)
    except MemoryError:
        raise
    except Exception as error:  # a failure of one table must not affect others
        cause = type(error).__name__
        log.warning("rows of %s could not be decoded: %s", name, cause)
        refusals.note(rows.refusal(0, "TableError", table=name, cause=cause))
        return None
    for refusal in refused:
        refusals.note(refusal)
    return table


def _joined(tables: list[DecodedTable]) -> DecodedTable:
    if len(tables) == 1:
        return tables[0]
    first = tables[0]
    batch = pa.Table.from_batches([table.batch for table in tables]).combine_chunks().to_batches()[0]
    lsn = batch.column(first.schema.meta.commit_lsn).to_numpy()
    seq = batch.column(first.schema.meta.seq).to_numpy()
    later = (lsn[1:] > lsn[:-1]) | ((lsn[1:] == lsn[:-1]) & (seq[1:] > seq[:-1]))
    if not later.all():
        # Rows of several partitions are interleaved by order.
        batch = batch.take(pa.array(np.lexsort((seq, lsn))))
    counts = ("inserts", "updates", "deletes", "key_changes", "unchanged", "split")
    sums = {name: sum(getattr(table, name) for table in tables) for name in counts}
    return replace(first, batch=batch, **sums)
