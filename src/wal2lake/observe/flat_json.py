"""Flat events as lines of JSON, made column by column.

Numbers are JSON numbers; a numeric is a string, which keeps every digit. A time has ISO 8601's form, in UTC where the
type has a zone. A bytea is PostgreSQL's hex form, a list a JSON array. NaN and the infinities are strings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..change import Truncation
from ..changelog import refused
from ..position import Lsn
from .captured_rows import OPERATIONS, CapturedRows
from .event_position import EventPosition
from .events import Events, Single
from .flat_names import FlatNames

_TEXT = pa.large_string()
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
_CONTROLS = {chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)}


def lines(events: Events) -> bytes:
    """The events, each as one line."""
    texts = [_rendered(run.part, events.stretch).slice(run.begin, run.end - run.begin) for run in events.runs]
    if events.singles:
        texts.append(pa.array([_single(each, events.stretch) for each in events.singles], _TEXT))
    text = pa.concat_arrays(texts) if len(texts) > 1 else texts[0]
    if events.order is not None:
        text = text.take(pa.array(events.order))
    return _bytes_of(text)


def limited_lines(stream: Iterator[Events], limit: int | None) -> Iterator[bytes]:
    """The lines of a stream, at most so many in all."""
    left = limit
    for events in stream:
        text = lines(events)
        if left is not None and left <= len(events):
            yield b"".join(text.splitlines(keepends=True)[:left])
            return
        left = None if left is None else left - len(events)
        yield text


def _bytes_of(text: pa.LargeStringArray) -> bytes:
    """The values, one after the other."""
    if len(text) == 0:
        return b""
    ends = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    values: bytes = text.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0])).to_pybytes()
    return values


def _rendered(part: CapturedRows, stretch: int) -> pa.LargeStringArray:
    # A part is given in several runs where its rows stand between those of other tables.
    if part.rendered is None:
        part.rendered = _render(part, stretch)
    text: pa.LargeStringArray = part.rendered
    return text


def _render(part: CapturedRows, stretch: int) -> pa.LargeStringArray:
    schema, meta = part.schema, part.schema.meta
    names = FlatNames.beside(schema.names)
    lsn = _lsns(part)
    seq = pa.array(part.seq).cast(_TEXT)
    operation = pa.array(OPERATIONS, _TEXT).take(pa.array(part.operation))
    line = _Line()
    line.add("{" + _key(names("event_type"), "") + json.dumps(part.table.name, ensure_ascii=False)[:-1] + ".")
    line.add(operation)
    line.add('"' + _member(names("_table"), part.table.name) + _member(names("_schema"), part.table.schema))
    line.add(_key(names("_op")) + '"').add(operation)
    line.add('"' + _key(names("_lsn")) + '"').add(lsn)
    line.add('"' + _key(names("_seq"))).add(seq)
    line.add(_key(names("_xid"))).add(_or_null(part.rows.column(meta.xid).cast(_TEXT)))
    line.add(_key(names("_commit_ts"))).add(_json(part.rows.column(meta.commit_ts)))
    line.add(_key(names("_position")) + '"').add(lsn).add(":").add(seq).add(f"@{stretch}" + '"')
    for name in schema.names:
        text = _json(part.rows.column(name))
        if (absent := part.absent.get(name)) is None:
            line.add(_key(name)).add(text)
        else:
            line.add(pc.if_else(pa.array(absent), pa.scalar("", _TEXT), _joined(_key(name), text)))
    line.add(_key(names("_old"))).add(_old(part))
    line.add(_key(names("_unchanged"))).add(_unchanged(part))
    line.add("}\n")
    return line.text(len(part))


class _Line:
    """The pieces of each line: texts that all lines share, and arrays with one for each."""

    def __init__(self) -> None:
        self._pieces: list[str | pa.Array] = []

    def add(self, piece: str | pa.Array) -> _Line:
        if isinstance(piece, str) and self._pieces and isinstance(self._pieces[-1], str):
            self._pieces[-1] += piece
        else:
            self._pieces.append(piece)
        return self

    def text(self, rows: int) -> pa.LargeStringArray:
        if not any(isinstance(piece, pa.Array) for piece in self._pieces):
            return pa.array(["".join(map(str, self._pieces))] * rows, _TEXT)
        return _joined(*self._pieces)


def _joined(*pieces: str | pa.Array) -> pa.LargeStringArray:
    return pc.binary_join_element_wise(
        *(pa.scalar(piece, _TEXT) if isinstance(piece, str) else piece for piece in pieces), pa.scalar("", _TEXT)
    )


def _key(name: str, before: str = ",") -> str:
    return f"{before}{json.dumps(name, ensure_ascii=False)}:"


def _member(name: str, value: str) -> str:
    return _key(name) + json.dumps(value, ensure_ascii=False)


def _lsns(part: CapturedRows) -> pa.LargeStringArray:
    different, which = np.unique(part.lsn, return_inverse=True)
    return pa.array([str(Lsn(int(each))) for each in different], _TEXT).take(pa.array(which))


def _old(part: CapturedRows) -> pa.LargeStringArray:
    if part.old.num_rows == 0 or not (part.old_of >= 0).any():
        return pa.array(["null"] * len(part), _TEXT)
    line = _Line()
    for number, name in enumerate(part.old.schema.names):
        line.add(_key(name, "," if number else "{")).add(_json(part.old.column(number)))
    known = line.add("}").text(part.old.num_rows)
    choices = pa.concat_arrays([known, pa.array(["null"], _TEXT)])
    return choices.take(pa.array(np.where(part.old_of < 0, part.old.num_rows, part.old_of)))


def _unchanged(part: CapturedRows) -> pa.LargeStringArray:
    said = {names: json.dumps(names, ensure_ascii=False, separators=(",", ":")) for names in set(part.unchanged)}
    return pa.array([said[names] for names in part.unchanged], _TEXT)


def _json(array: pa.Array) -> pa.LargeStringArray:
    """Each value as JSON."""
    kind = array.type
    if pa.types.is_list(kind):
        return _lists(array)
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return _or_null(array.cast(_TEXT))
    return _quoted(_hex(array), '"\\\\x') if pa.types.is_binary(kind) else _quoted(_text(array))


def _text(array: pa.Array) -> pa.LargeStringArray:
    text = array.cast(_TEXT)
    if pa.types.is_timestamp(array.type):
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
        return pc.replace_substring(text, "Z", "+00:00") if array.type.tz else text
    return _escaped(text) if pa.types.is_string(array.type) else text


def _or_null(text: pa.LargeStringArray) -> pa.LargeStringArray:
    return pc.fill_null(text, "null") if text.null_count else text


def _quoted(text: pa.LargeStringArray, begin: str = '"') -> pa.LargeStringArray:
    return _or_null(_joined(begin, text, '"'))


def _floats(array: pa.Array) -> pa.LargeStringArray:
    text = array.cast(_TEXT)
    finite = pc.fill_null(pc.is_finite(array), True)
    if not pc.all(finite).as_py():
        for found, word in (("inf", '"Infinity"'), ("-inf", '"-Infinity"'), ("nan", '"NaN"'), ("-nan", '"NaN"')):
            text = pc.if_else(pc.fill_null(pc.equal(text, found), False), pa.scalar(word, _TEXT), text)
    return _or_null(text)


def _lists(array: pa.ListArray) -> pa.LargeStringArray:
    parents, elements = pc.list_parent_indices(array), _json(pc.list_flatten(array))
    counts = np.bincount(parents.to_numpy(), minlength=len(array))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements)
    text = _joined("[", pc.binary_join(lists, pa.scalar(",", _TEXT)), "]")
    return pc.if_else(pc.is_null(array), pa.scalar("null", _TEXT), text) if array.null_count else text


def _hex(array: pa.Array) -> pa.LargeStringArray:
    array = array.cast(pa.large_binary())
    ends = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(array.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    text = pa.py_buffer(_HEX[values].tobytes())
    offsets = pa.py_buffer(((ends - ends[0]) * 2).astype(np.int64).tobytes())
    valid = None if array.null_count == 0 else pc.is_valid(array).buffers()[1]
    return pa.LargeStringArray.from_buffers(len(array), offsets, text, valid)


def _escaped(text: pa.LargeStringArray) -> pa.LargeStringArray:
    """The text of JSON strings, without the quotes around it."""
    ends = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    used = np.frombuffer(text.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    special = (used < 0x20) | (used == ord('"')) | (used == ord("\\"))
    if not special.any():
        return text
    found = set(np.unique(used[special]).tolist())
    for byte in (ord("\\"), *sorted(found - {ord("\\")})):
        if byte in found:
            char = chr(byte)
            text = pc.replace_substring(text, char, _CONTROLS.get(char, "\\" + char))
    return text


def _single(single: Single, stretch: int) -> str:
    event = single_event(single, stretch)
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n"


def single_event(single: Single, stretch: int) -> dict[str, Any]:
    """A TRUNCATE, with the partition where only one was emptied, or a change that could not be carried."""
    lsn, seq, sub = single.place
    position = EventPosition(Lsn(lsn), seq, sub, stretch)
    event: dict[str, Any] = {
        "event_type": f"{single.table.name}.{single.operation}", "_table": single.table.name,
        "_schema": single.table.schema, "_op": single.operation, "_lsn": str(position.lsn), "_seq": seq, "_xid": None,
        "_commit_ts": None, "_position": str(position),
    }  # fmt: skip
    if isinstance(single.what, Truncation):
        whole = single.what.relation is None
        event["_partition"] = None if whole else {"oid": single.what.relation, "where": single.what.predicate}
    else:
        event["_error"] = str(refused(single.what))
    return event
