"""PostgreSQL's binary form of values, a whole column at once, into the same Arrow arrays that its text gives.

Only types are read whose binary form is fixed and whose lake value follows from it exactly; for all others `reader` has
no answer, and the stream is asked for text. The server makes this form at less cost than the text, and here most values
need no more than their bytes turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..pgtypes import NUMERIC, Kind, LakeType, Masking, lake_type
from ..schema import Column
from .messages import STREAM_EPOCH_US, Bytes, Mask, sixteens, words
from .spans import Slices, bitmap, booleans, views
from .values import Converted, Unfit, strings

Reader = Callable[[Slices], Converted]

_BOOL, _BYTEA, _NAME, _INT8, _INT2, _INT4, _TEXT = 16, 17, 19, 20, 21, 23, 25
_JSON, _FLOAT4, _FLOAT8, _BPCHAR, _VARCHAR = 114, 700, 701, 1042, 1043
_DATE, _TIMESTAMP, _TIMESTAMPTZ, _UUID, _JSONB = 1082, 1114, 1184, 2950, 3802

_DAY_US = 86_400_000_000
_EPOCH_DAYS = STREAM_EPOCH_US // _DAY_US
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""of the years 1 and 9999, since 1970"""
_JSONB_VERSION = 1
_UUID_BYTES, _UUID_TEXT = 16, 36
_HEX: npt.NDArray[np.uint16] = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
_GROUPS = ((0, 8, 0), (8, 12, 9), (12, 16, 14), (16, 20, 19), (20, 32, 24))
"""of a UUID: first and last digit, and where they begin in its text"""

_LONG_DIGITS = 18
"""decimal digits that a 64-bit integer always has room for"""
_BASE = 10_000
_BASE_DIGITS = 4
_WORD_DIGITS = 4
"""base 10000 digits in eight bytes"""
_NEGATIVE, _NAN = 0x4000, 0xC000
_FIRST_DIGITS = np.array([0, *(((1 << 64) - (1 << (64 - 16 * n))) for n in range(1, _WORD_DIGITS + 1))], np.uint64)
"""by the number of digits: a mask for that many of the first ones in eight bytes"""


def reader(column: Column) -> Reader | None:
    """How the values of a column are read; None where only their text will do."""
    if column.mask is Masking.NULL:
        return lambda values: Converted(pa.nulls(len(values), column.lake.arrow))
    return None if column.mask is not None else _reader(column.type_oid, column.typmod, column.lake)


def readable(type_oid: int, typmod: int) -> bool:
    """Whether a column of this type can be read, if nothing is set for it."""
    return _reader(type_oid, typmod, lake_type(type_oid, typmod, 0, {})) is not None


@lru_cache(maxsize=1024)
def _reader(type_oid: int, typmod: int, lake: LakeType) -> Reader | None:
    if lake != lake_type(type_oid, typmod, 0, {}):
        return None
    if type_oid == NUMERIC:
        small = lake.kind is Kind.DECIMAL and lake.precision <= _LONG_DIGITS
        return partial(_decimals, lake=lake) if small else None
    return _READERS.get(type_oid)


def _integers(values: Slices, size: int, type: pa.DataType) -> Converted:
    return Converted(_array(values, _numbers(values, size).astype(f"i{size}", copy=False), type))


def _short(values: Slices) -> Converted:
    return Converted(_array(values, _numbers(values, 2).astype(np.int32), pa.int32()))


def _floats(values: Slices, size: int, type: pa.DataType) -> Converted:
    bits = _numbers(values, size).astype(f"i{size}", copy=False)
    return Converted(_array(values, bits.view(f"f{size}"), type))


def _booleans(values: Slices) -> Converted:
    _require_size(values, 1)
    return Converted(booleans(values, values.data[values.start] != 0))


def _dates(values: Slices) -> Converted:
    sent = _numbers(values, 4)
    endless = (sent == np.iinfo(np.int32).max) | (sent == np.iinfo(np.int32).min)
    days = sent + _EPOCH_DAYS
    bad = (days < _FIRST_DAY) | (days > _LAST_DAY)
    return _within(values, days.astype(np.int32), bad, endless, pa.date32())


def _timestamps(values: Slices, type: pa.DataType) -> Converted:
    sent = _numbers(values, 8)
    endless = (sent == np.iinfo(np.int64).max) | (sent == np.iinfo(np.int64).min)
    # What is endless may turn over here; it is not used.
    micros = sent + STREAM_EPOCH_US
    bad = (micros < _FIRST_DAY * _DAY_US) | (micros >= (_LAST_DAY + 1) * _DAY_US) | endless
    return _within(values, micros, bad, endless, type)


def _within(
    values: Slices, numbers: npt.NDArray[np.int32] | npt.NDArray[np.int64], bad: Mask, endless: Mask, type: pa.DataType
) -> Converted:
    if values.valid is not None:
        bad &= values.valid
    if not bad.any():
        return Converted(_array(values, numbers, type))
    row = int(bad.argmax())
    what = "infinity" if endless[row] else "a date before year 1 or after 9999"
    return Converted(_array(values.without(bad), numbers, type), Unfit(row, what))


def _jsonb(values: Slices) -> Converted:
    present = values.length > 0
    if (values.data[values.start[present]] != _JSONB_VERSION).any():
        raise ValueError("jsonb has another version")
    return strings(replace(values, start=values.start + 1, length=values.length - present))


def _bytes(values: Slices) -> Converted:
    return Converted(views(values, pa.binary_view()).cast(pa.binary()))


def _uuids(values: Slices) -> Converted:
    _require_size(values, _UUID_BYTES)
    count = len(values)
    digits = _HEX[sixteens(values.data, values.start).view(np.uint8)].view(np.uint8).reshape(count, 2 * _UUID_BYTES)
    text: Bytes = np.full((count, _UUID_TEXT), ord("-"), np.uint8)
    for first, last, at in _GROUPS:
        text[:, at : at + last - first] = digits[:, first:last]
    offsets = np.arange(0, (count + 1) * _UUID_TEXT, _UUID_TEXT, dtype=np.int32)
    buffers = [bitmap(values), pa.py_buffer(offsets), pa.py_buffer(text)]
    return Converted(pa.Array.from_buffers(pa.string(), count, buffers))


def _decimals(values: Slices, lake: LakeType) -> Converted:
    """numeric: how many base 10000 digits, the power of the first, sign, digits after the point; then the digits.

    A column of numeric(p, s) holds nothing that p and s have no room for, but for NaN.
    """
    head = words(values.data, values.start)
    sign = (head >> np.uint64(16)) & np.uint64(0xFFFF)
    bad = sign >= _NAN
    if values.valid is not None:
        bad &= values.valid
    unfit = None
    if bad.any():
        row = int(bad.argmax())
        unfit = Unfit(row, "NaN" if sign[row] == _NAN else "infinity")
        values = values.without(bad)
    if values.valid is not None:
        # Nothing is taken for the digits of what has none.
        head *= values.valid
    count = (head >> np.uint64(48)).view(np.int64)
    power = ((head << np.uint64(16)).view(np.int64)) >> 48
    amount = _aligned(values, count, power, lake.scale)
    np.negative(amount, out=amount, where=sign == _NEGATIVE)
    pairs = np.empty((len(values), 2), np.int64)
    pairs[:, 0], pairs[:, 1] = amount, amount >> 63
    array = pa.Array.from_buffers(lake.arrow, len(values), [bitmap(values), pa.py_buffer(pairs)])
    return Converted(array, unfit)


def _aligned(values: Slices, count: Numbers, power: Numbers, scale: int) -> Numbers:
    """The digits as whole numbers of 10 ** -scale."""
    after = -(-scale // _BASE_DIGITS)
    # Digits are shifted so that the last of a word is the last that the scale has room for.
    spare = (_WORD_DIGITS - 1) - (power + after)
    long = (count > _WORD_DIGITS) | (spare < 0)
    word = words(values.data, values.start + 8) & _FIRST_DIGITS[np.minimum(count, _WORD_DIGITS)]
    shift = (16 * np.clip(spare, 0, _WORD_DIGITS)).astype(np.uint64)
    shifted = word >> shift
    exact = (shifted << shift) == word
    amount = np.zeros(len(values), np.int64)
    for place in range(_WORD_DIGITS):
        amount *= _BASE
        amount += ((shifted >> np.uint64(48 - 16 * place)) & np.uint64(0xFFFF)).view(np.int64)
    surplus = 10 ** (after * _BASE_DIGITS - scale)
    if surplus > 1:
        amount, rest = np.divmod(amount, surplus)
        exact &= rest == 0
    for row in np.flatnonzero(long).tolist():
        amount[row] = _one_aligned(values, row, int(count[row]), int(power[row]), scale)
    if not (exact | long).all():
        raise ValueError("a numeric has more digits than its type")
    return amount


def _one_aligned(values: Slices, row: int, count: int, power: int, scale: int) -> int:
    begin = int(values.start[row]) + 8
    digits: list[int] = values.data[begin : begin + 2 * count].view(">i2").tolist()
    number = 0
    for digit in digits:
        number = number * _BASE + digit
    exponent = (power - count + 1) * _BASE_DIGITS + scale
    if exponent >= 0:
        return number * int(10**exponent)
    number, rest = divmod(number, int(10**-exponent))
    if rest:
        raise ValueError("a numeric has more digits than its type")
    return number


def _numbers(values: Slices, size: int) -> Numbers:
    """Whole numbers of so many bytes, with their sign."""
    _require_size(values, size)
    return words(values.data, values.start).view(np.int64) >> (64 - 8 * size)


def _require_size(values: Slices, size: int) -> None:
    fits = values.length == size
    if not (fits if values.valid is None else fits | ~values.valid).all():
        raise ValueError(f"a value does not have {size} bytes")


def _array(values: Slices, numbers: npt.NDArray[np.generic], type: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type, len(values), [bitmap(values), pa.py_buffer(numbers)])


Numbers = npt.NDArray[np.int64]
_READERS: Mapping[int, Reader] = {
    _BOOL: _booleans,
    _INT2: _short,
    _INT4: partial(_integers, size=4, type=pa.int32()),
    _INT8: partial(_integers, size=8, type=pa.int64()),
    _FLOAT4: partial(_floats, size=4, type=pa.float32()),
    _FLOAT8: partial(_floats, size=8, type=pa.float64()),
    _DATE: _dates,
    _TIMESTAMP: partial(_timestamps, type=pa.timestamp("us")),
    _TIMESTAMPTZ: partial(_timestamps, type=pa.timestamp("us", tz="UTC")),
    _UUID: _uuids,
    _BYTEA: _bytes,
    _JSONB: _jsonb,
    **dict.fromkeys((_TEXT, _VARCHAR, _BPCHAR, _NAME, _JSON), strings),
}
