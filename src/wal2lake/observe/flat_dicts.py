"""Flat events as dictionaries with Python's values: Decimal, date, datetime, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ..position import Lsn
from ..schema import Column
from ..types import STRING
from .captured_rows import OPERATIONS, CapturedRows
from .event_position import EventPosition
from .events import Events
from .flat_json import single_event
from .flat_names import FlatNames


def dictionaries(events: Events) -> Iterator[dict[str, Any]]:
    """The events, in their order."""
    found: list[dict[str, Any]] = []
    for run in events.runs:
        if run.part.rendered is None:
            run.part.rendered = list(_render(run.part, events.stretch))
        found += run.part.rendered[run.begin : run.end]
    found += [single_event(each, events.stretch) for each in events.singles]
    yield from found if events.order is None else (found[place] for place in events.order)


def _render(part: CapturedRows, stretch: int) -> Iterator[dict[str, Any]]:
    schema, meta = part.schema, part.schema.meta
    names = FlatNames.beside(schema.names)
    values = [python_values(part.rows.column(column.name), column) for column in schema.columns]
    absent = [part.absent.get(column.name) for column in schema.columns]
    by_name = {column.name: column for column in schema.columns}
    old = [python_values(part.old.column(name), by_name[name]) for name in part.old.schema.names]
    xids: list[int | None] = part.rows.column(meta.xid).to_pylist()
    times: list[datetime | None] = part.rows.column(meta.commit_ts).to_pylist()
    for row in range(len(part)):
        operation = OPERATIONS[part.operation[row]]
        lsn, seq, old_row = Lsn(int(part.lsn[row])), int(part.seq[row]), int(part.old_of[row])
        event: dict[str, Any] = {
            names("event_type"): f"{part.table.name}.{operation}", names("_table"): part.table.name,
            names("_schema"): part.table.schema, names("_op"): operation, names("_lsn"): str(lsn), names("_seq"): seq,
            names("_xid"): xids[row], names("_commit_ts"): times[row],
            names("_position"): str(EventPosition(lsn, seq, stretch=stretch)),
        }  # fmt: skip
        for name, value, missing in zip(schema.names, values, absent, strict=True):
            if missing is None or not missing[row]:
                event[name] = value[row]
        event[names("_old")] = (
            None if old_row < 0 else {
                name: column[old_row] for name, column in zip(part.old.schema.names, old, strict=True)
            }
        )  # fmt: skip
        event[names("_unchanged")] = list(part.unchanged[row])
        yield event


def python_values(array: pa.Array, column: Column) -> Sequence[Any]:
    """A column's values. A date that Python has no value for is its text."""
    try:
        values: list[Any] = array.to_pylist()
    except (ValueError, OverflowError):
        values = [_value(each) for each in array]
    if column.lake.element != STRING or column.mask or not column.type_name.startswith("numeric"):
        return values
    # A numeric without a precision is in the lake as its text.
    if column.lake.is_list:
        return [None if each is None else [_decimal(value) for value in each] for each in values]
    return [_decimal(value) for value in values] if "[" not in column.type_name else values


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return str(scalar.cast(pa.string()))


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
