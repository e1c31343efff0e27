"""PostgreSQL's text of values, a whole column at once, into Arrow arrays of the lake's types: exactly, or refused.

The texts are those of a session with DateStyle ISO, IntervalStyle postgres, TimeZone UTC, extra_float_digits >= 1 and
bytea_output hex. Arrow parses them in one go; only a column that it refuses is looked at again, to find which value
does not fit and to keep the others.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..pgtypes import Kind, LakeType
from .spans import Slices, bitmap, booleans, contiguous, views

_ASCII = 128
_SAFE_DECIMAL_TEXT = 38
_NUMBER = re.compile(r"(-?)0*(\d*?)(?:\.(\d*?)0*)?")
_FORM = {
    Kind.DATE: r"^\d{4}-\d\d-\d\d$",
    Kind.TIMESTAMP: r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?$",
    Kind.TIMESTAMPTZ: r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?[+-]\d\d(:\d\d)?$",
}


@dataclass(frozen=True)
class Unfit:
    """The first row of a column with a value that its lake type can't hold, and what it is, without the value."""

    row: int
    what: str


@dataclass(frozen=True)
class Converted:
    array: pa.Array
    unfit: Unfit | None = None


@lru_cache(maxsize=256)
def arrow_type(lake: LakeType) -> pa.DataType:
    return lake.arrow


def convert(text: Slices, lake: LakeType) -> Converted:
    """The column of a scalar lake type. A value that does not fit is NULL in it and reported."""
    match lake.kind:
        case Kind.BOOLEAN:
            return Converted(booleans(text, text.data[text.start] == ord("t")))
        case Kind.STRING:
            return strings(text)
        case Kind.BINARY:
            return Converted(_binary(text))
    try:
        return Converted(_parsed(text, lake))
    except pa.ArrowInvalid:
        return _parsed_singly(text, lake) if lake.kind not in _FORM else _parsed_by_form(text, lake)


def sha256(text: Slices) -> pa.Array:
    """The hashes of the texts, in hex digits; NULL stays NULL."""
    digest = hashlib.sha256
    values = views(text, pa.binary_view()).to_pylist()
    return pa.array([None if value is None else digest(value).hexdigest() for value in values], pa.string())


def _parsed(text: Slices, lake: LakeType) -> pa.Array:
    if lake.kind is Kind.DECIMAL and len(text) and int(text.length.max()) > _SAFE_DECIMAL_TEXT:
        # 128 bits may overflow unnoticed on more digits than this.
        raise pa.ArrowInvalid
    array = views(text, pa.string_view())
    if lake.kind in _FORM:
        array = array.cast(pa.string())
    return array.cast(arrow_type(lake))


def strings(text: Slices) -> Converted:
    """The texts as they are."""
    array = views(text, pa.binary_view()).cast(pa.binary())
    data = array.buffers()[2]
    if not data or int(np.frombuffer(data, np.uint8).max()) < _ASCII:
        # What is all ASCII is UTF-8, and to see that at once is cheaper than to look at each text.
        return Converted(pa.Array.from_buffers(pa.string(), len(text), array.buffers()))
    try:
        return Converted(array.cast(pa.string()))
    except pa.ArrowInvalid:
        # A database with encoding SQL_ASCII sends whatever bytes it was given.
        broken = np.fromiter((not _is_utf8(value) for value in array.to_pylist()), np.bool_, len(text))
        rest = views(text.without(broken), pa.binary_view()).cast(pa.string())
        return Converted(rest, Unfit(int(broken.argmax()), "bytes that are not UTF-8"))


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _binary(text: Slices) -> pa.Array:
    digits = replace(text, start=text.start + 2, length=np.maximum(text.length - 2, 0))
    data, offsets = contiguous(digits)
    if len(text) and (text.data[text.start[text.length > 0]] != ord("\\")).any():
        raise ValueError("bytea_output is not hex")
    value = pa.py_buffer(binascii.unhexlify(data.data))
    at = pa.py_buffer((offsets // 2).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(text), [bitmap(text), at, value])


def _parsed_by_form(text: Slices, lake: LakeType) -> Converted:
    fits = pc.match_substring_regex(views(text, pa.string_view()).cast(pa.string()), _FORM[lake.kind])
    bad = ~fits.fill_null(True).to_numpy(zero_copy_only=False)
    row = int(bad.argmax())
    return Converted(_parsed(text.without(bad), lake), Unfit(row, _describe(text[row].decode(errors="replace"))))


def _parsed_singly(text: Slices, lake: LakeType) -> Converted:
    parse: Callable[[str, LakeType], object | None] = _decimal if lake.kind is Kind.DECIMAL else _number
    values: list[object | None] = []
    unfit: Unfit | None = None
    for row in range(len(text)):
        value = parse(text[row].decode(errors="replace"), lake) if text.is_valid(row) else None
        if value is None and text.is_valid(row) and unfit is None:
            unfit = Unfit(row, _describe(text[row].decode(errors="replace")))
        values.append(value)
    return Converted(pa.array(values, lake.arrow), unfit)


def _decimal(text: str, lake: LakeType) -> Decimal | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction = match[1], match[2], match[3] or ""
    if len(whole) > lake.precision - lake.scale or len(fraction) > lake.scale:
        return None
    return Decimal(f"{sign}{whole or '0'}.{fraction}")


def _number(text: str, lake: LakeType) -> object | None:
    try:
        value: object = pa.array([text]).cast(lake.arrow)[0].as_py()
    except pa.ArrowInvalid:
        return None
    return value


def _describe(text: str) -> str:
    match text.lower():
        case "nan":
            return "NaN"
        case "infinity" | "-infinity":
            return "infinity"
    if _NUMBER.fullmatch(text):
        return "a number with more digits"
    if re.match(r"\d{4,}-\d\d-\d\d", text):
        return "a date before year 1 or after 9999"
    return "a text of another type"
