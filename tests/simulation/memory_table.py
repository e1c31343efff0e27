"""Rows of a lake table in memory, to which changes are made one by one, in the order in which the source made them.

It is the reference for what a batch comes to, so it has nothing in common with how the lake computes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from simulation import predicates
from wal2lake.change import Truncation
from wal2lake.changelog.manifest import Segment
from wal2lake.errors import CopyNeeded, LakeInconsistent, RowsNotKept
from wal2lake.evolution import changes as column_changes
from wal2lake.evolution import source_of
from wal2lake.lake import Batch
from wal2lake.schema import Bounds, Column, TableSchema
from wal2lake.types import Kind, LakeType

Row = Mapping[str, Any]
Read = Callable[[str], pa.Table]


@dataclass(frozen=True)
class Change:
    """A change of one row, in the columns that the table has."""

    at: tuple[int, int]
    """commit LSN and seq"""
    op: str
    row: Row
    unchanged: frozenset[str] = frozenset()
    """columns whose value was not sent, because it stayed"""
    old_key: Row | None = None
    """the key before, where it changed"""
    leaf: int | None = None
    """oid of the partition that the row is in"""
    xid: int = 0


def changes(batch: Batch, schema: TableSchema, read: Read) -> list[Change]:
    """The changes that are part of a batch, in order."""
    found = [change for uri, segment in batch.segments for change in _of_segment(uri, segment, batch, schema, read)]
    first, end = batch.skip_before or 0, batch.end_before or math.inf
    counted = [c for c in found if first <= c.at[0] < end and c.leaf not in batch.left_out and not _copied(c, batch)]
    return sorted(counted, key=lambda change: change.at)


def _copied(change: Change | Truncation, batch: Batch) -> bool:
    """Whether the snapshot of the batch's copy sees the transaction, as PostgreSQL says what a snapshot sees."""
    copied = batch.visibility
    lsn, xid = (change.at[0], change.xid) if isinstance(change, Change) else (change.commit_lsn, change.xid)
    if copied is None or lsn >= copied.until:
        return False
    assert xid is not None
    snapshot = copied.snapshot
    # The one number with these lower bits that is less than half an epoch away.
    epochs = (xid + (snapshot.xmax // 2**32 + step) * 2**32 for step in (-1, 0, 1))
    full = min(epochs, key=lambda one: abs(one - snapshot.xmax))
    return full < snapshot.xmin or (full < snapshot.xmax and full not in snapshot.running)


def _of_segment(uri: str, segment: Segment, batch: Batch, schema: TableSchema, read: Read) -> Iterator[Change]:
    written, table = batch.shape(segment, schema), read(uri)
    meta = written.meta

    def values(name: str) -> list[Any]:
        return list(table[name].to_pylist())

    own = {column.name: source_of(column, written) for column in schema.columns}
    columns = {
        column.name: [older_value(column)] * table.num_rows if (before := own[column.name]) is None
        else _cast(table[before.name], column.lake)
        for column in schema.columns
    }  # fmt: skip
    olds = {
        name: _cast(table[meta.old(before.name)], schema.column(name).lake)
        for name in schema.key
        if (before := own[name]) is not None and before.name in written.key
    }
    named = {before.name: name for name, before in own.items() if before is not None}
    plain = zip(
        values(meta.commit_lsn), values(meta.seq), values(meta.op), values(meta.unchanged), values(meta.key_changed),
        values(meta.relation), values(meta.xid), strict=True,
    )  # fmt: skip
    for place, (lsn, seq, op, unchanged, key_changed, leaf, xid) in enumerate(plain):
        left_out = {written.columns[position].name for position in unchanged or ()}
        yield Change(
            (lsn, seq), op, {name: column[place] for name, column in columns.items()},
            frozenset(named[name] for name in left_out if name in named),
            {name: column[place] for name, column in olds.items()} if key_changed else None, leaf, xid,
        )  # fmt: skip


def _cast(values: Any, lake: LakeType) -> list[Any]:
    return list(values.cast(lake.arrow).to_pylist())


_READERS: Mapping[Kind, Callable[[str], Any]] = {
    Kind.BOOLEAN: lambda text: text in ("t", "true"),
    Kind.INT: int,
    Kind.LONG: int,
    Kind.FLOAT: lambda text: pa.scalar(float(text), pa.float32()).as_py(),
    Kind.DOUBLE: float,
    Kind.DECIMAL: Decimal,
    Kind.BINARY: lambda text: bytes.fromhex(text.removeprefix("\\x")),
    Kind.DATE: date.fromisoformat,
    Kind.TIMESTAMP: datetime.fromisoformat,
    Kind.TIMESTAMPTZ: lambda text: datetime.fromisoformat(text).astimezone(UTC),
}
"""values of PostgreSQL's text; all others are that text"""


def older_value(column: Column) -> Any:
    """What a row has in a column that is younger than it."""
    if column.missing is None:
        return None
    return [] if column.lake.is_list else _READERS.get(column.lake.kind, str)(column.missing)


def in_columns(rows: Iterable[Row], before: TableSchema, after: TableSchema) -> list[Row]:
    """Rows of one schema in the columns of another."""
    own = [(column, source_of(column, before)) for column in after.columns]
    return [
        {column.name: older_value(column) if old is None else row[old.name] for column, old in own} for row in rows
    ]  # fmt: skip


def within(bounds: Bounds | None, schema: TableSchema) -> predicates.Condition:
    """Whether a row is within bounds, whatever its columns were called by then. Raises Unsupported."""
    names = {column.attnum: column.name for column in schema.source_columns}
    if bounds is None or not {number for _, number in bounds.columns} <= set(names):
        raise predicates.Unsupported
    return predicates.condition(bounds.text, {name: names[number] for name, number in bounds.columns})


@dataclass(frozen=True)
class _Held:
    row: Row
    leaf: int | None
    """the partition that a change of the batch has put it in"""


class Rows:
    """The rows of a table while a batch is applied: by key, or as a multiset where there is none.

    `strict`: a row that comes twice, or is changed without being there, is an error. The lake itself looks for that
    only where rows have no key; with it, a change that is lost or applied twice is found at once.
    """

    def __init__(self, schema: TableSchema, rows: Iterable[Row], strict: bool) -> None:
        self._schema, self._strict = schema, strict
        self._telling = schema.key or tuple(column.name for column in schema.source_columns)
        self._held: dict[Any, list[_Held]] = {}
        for row in rows:
            self._held.setdefault(self._identity(row), []).append(_Held(row, None))

    def all(self) -> list[Row]:
        return [held.row for same in self._held.values() for held in same]

    def change(self, change: Change) -> None:
        if not self._schema.key:
            self._change_whole(change)
            return
        row, identity = change.row, self._identity(change.row)
        if change.op == "I":
            if self._strict and identity in self._held:
                raise self._inconsistent()
        else:
            before = self._held.pop(identity if change.old_key is None else self._identity(change.old_key), None)
            if before is None and (self._strict or change.unchanged):
                raise self._inconsistent()
            if change.op == "D":
                return
            if before is not None:
                row = {**row, **{name: before[0].row[name] for name in change.unchanged}}
            if self._strict and identity in self._held:
                raise self._inconsistent()
        self._held[identity] = [_Held(row, change.leaf)]

    def _change_whole(self, change: Change) -> None:
        same = self._held.setdefault(self._identity(change.row), [])
        if change.op == "I":
            same.append(_Held(change.row, change.leaf))
        elif change.op != "D" or not same:
            raise self._inconsistent()
        else:
            same.pop()

    def truncate(self, truncation: Truncation, condition: predicates.Condition | None) -> None:
        """`condition` tells rows of the one partition that is emptied; those that came in the batch are known."""
        if truncation.relation is None:
            self._held = {}
            return
        for identity, same in list(self._held.items()):
            self._held[identity] = [held for held in same if not self._gone(held, truncation.relation, condition)]
            if not self._held[identity]:
                del self._held[identity]

    def _gone(self, held: _Held, leaf: int, condition: predicates.Condition | None) -> bool:
        if held.leaf is not None:
            return held.leaf == leaf
        return condition is not None and condition(held.row) is True

    def _identity(self, row: Row) -> Any:
        return tuple(_identity(row[name], bool(self._schema.key)) for name in self._telling)

    def _inconsistent(self) -> LakeInconsistent:
        table = str(self._schema.id)
        return LakeInconsistent(operation="applying changes to", table=table)


def _identity(value: Any, in_key: bool) -> Any:
    """What tells two values apart: NaN is one value; 0 and -0 are two, but not in a key."""
    if isinstance(value, list):
        return ("list", tuple(_identity(element, in_key) for element in value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, 1.0 if in_key else math.copysign(1, value))
    return value


def applied(
    rows: Iterable[Row], schema: TableSchema, found: Iterable[Change], truncations: Iterable[Truncation],
    conditions: Mapping[Truncation, predicates.Condition], strict: bool,
) -> list[Row]:  # fmt: skip
    """The rows after changes and truncations, each at its place in the order."""
    held = Rows(schema, rows, strict)
    events: list[tuple[tuple[int, int], Change | Truncation]] = [(change.at, change) for change in found]
    events += [((truncation.commit_lsn, truncation.seq), truncation) for truncation in truncations]
    try:
        for _, event in sorted(events, key=lambda each: (each[0], isinstance(each[1], Truncation))):
            if isinstance(event, Change):
                held.change(event)
            else:
                held.truncate(event, conditions.get(event))
    except predicates.Unsupported:
        raise _untold(schema) from None
    return held.all()


def counted_truncations(batch: Batch) -> list[Truncation]:
    """The truncations that are part of a batch."""
    after = [each for each in batch.truncations if each.commit_lsn >= (batch.skip_before or 0)]
    return [each for each in after if not _copied(each, batch)]


def conditions(before: TableSchema, batch: Batch) -> dict[Truncation, predicates.Condition]:
    """How to tell the stored rows of partitions that are emptied. Raises CopyNeeded where that can't be told."""
    counted, schema = counted_truncations(batch), batch.schema or before
    whole = max(((each.commit_lsn, each.seq) for each in counted if each.relation is None), default=(-1, -1))
    parts = [each for each in counted if each.relation is not None and (each.commit_lsn, each.seq) > whole]
    if parts and column_changes(before, schema).renamed:
        raise CopyNeeded(table=str(schema.id), cause="TRUNCATE of a partition beside a column that was renamed")
    if whole != (-1, -1):
        # All rows that are left by then came in the batch, which knows their partitions.
        return {}
    try:
        return {each: within(_bounds(each), schema) for each in parts}
    except predicates.Unsupported:
        raise _untold(schema) from None


def _bounds(truncation: Truncation) -> Bounds | None:
    text, columns = truncation.predicate, truncation.columns
    return Bounds(text, columns) if text is not None and columns is not None else None


def archived(rows: Iterable[Row], before: TableSchema, after: TableSchema) -> tuple[TableSchema, list[Row]]:
    """Rows of partitions that the source has no more, and the schema that says where they are. Raises RowsNotKept."""
    present = {heap.oid for heap in after.heaps}
    bounds = [*before.archived, *(heap.bounds for heap in before.heaps if heap.oid not in present)]
    try:
        inside = [within(each, before) for each in bounds]
        others = [within(heap.bounds, before) for heap in after.heaps] if inside else []
    except predicates.Unsupported:
        raise RowsNotKept(table=str(after.id)) from None
    kept = [row for row in rows if any(i(row) for i in inside) and not any(o(row) for o in others)]
    after = replace(after, archived=tuple(dict.fromkeys(each for each in bounds if each is not None)))
    return after, in_columns(kept, before, after)


def _untold(schema: TableSchema) -> CopyNeeded:
    cause = "TRUNCATE of a partition whose rows can't be identified by its bounds"
    return CopyNeeded(table=str(schema.id), cause=cause)
