"""numeric: a decimal where precision and scale are declared and at most 38 digits, otherwise PostgreSQL's text."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

from .family import Carrier, Converted, Family, Scalar, Unfit, guarded
from .lake import MAX_DECIMAL_DIGITS, STRING, Kind, LakeType
from .lazily import np, npt, pa
from .numbers import NUMBER_DEFAULT
from .parsing import NUMBER, parsed, parsed_singly
from .slices import bitmap, words

if TYPE_CHECKING:
    from .slices import Positions, Slices

NUMERIC = 1700

_SAFE_TEXT = 38
_BOUND = re.compile(r"-?(?=[\d.]{1,38}$)\d+(\.\d+)?")
_LONG_DIGITS = 18
"""decimal digits that a 64-bit integer always has room for"""
_BASE = 10_000
_BASE_DIGITS = 4
_WORD_DIGITS = 4
"""base 10000 digits in eight bytes"""
_NEGATIVE, _NAN = 0x4000, 0xC000


def typmod(precision: int, scale: int) -> int:
    """How pg_attribute writes numeric(precision, scale)."""
    return (precision << 16 | scale & 0x7FF) + 4


def _lake_type(typmod: int) -> LakeType:
    if typmod < 4:
        return STRING
    precision, scale = ((typmod - 4) >> 16) & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 1024) - 1024
    # PostgreSQL 15+ allows a negative scale and a scale beyond the precision.
    digits = max(precision - min(scale, 0), scale)
    if digits > MAX_DECIMAL_DIGITS:
        return STRING
    return LakeType(Kind.DECIMAL, digits, max(scale, 0))


def _typmod_widens(before: int, after: int) -> bool:
    # Without limits a numeric has the digits that it was given.
    return after == -1 or (before != -1 and (after - 4) & 0x7FF == (before - 4) & 0x7FF and after > before)


def _widens(before: LakeType, after: LakeType) -> bool:
    return after.kind is Kind.DECIMAL and after.scale == before.scale and after.precision > before.precision


def _unfit(quoted: str, lake: LakeType) -> str:
    limit = f"1e{lake.precision - lake.scale}::numeric"
    return f"{quoted} = 'NaN'::numeric OR abs({quoted}) >= {limit} OR {quoted} <> round({quoted}, {lake.scale})"


def _select(quoted: str, lake: LakeType, overridden: bool) -> str:
    # A declared numeric(p,s) can only hold NaN beside what fits, and JDBC refuses that itself.
    value = guarded(quoted, _unfit(quoted, lake), quoted, "numeric") if overridden else quoted
    return f"({value})::numeric({lake.precision},{lake.scale})"


def _bound(text: str) -> str | None:
    return f"{text}BD" if _BOUND.fullmatch(text) else None


def _text(text: Slices, lake: LakeType) -> Converted:
    # 128 bits may overflow unnoticed on more digits than this.
    if not len(text) or int(text.length.max()) <= _SAFE_TEXT:
        try:
            return Converted(parsed(text, lake))
        except pa.ArrowInvalid:
            pass
    return parsed_singly(text, lake, _decimal)


def _decimal(text: str, lake: LakeType) -> Decimal | None:
    match = NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction = match[1], match[2], match[3] or ""
    if len(whole) > lake.precision - lake.scale or len(fraction) > lake.scale:
        return None
    return Decimal(f"{sign}{whole or '0'}.{fraction}")


def _fits_a_long(lake: LakeType) -> bool:
    return lake.kind is Kind.DECIMAL and lake.precision <= _LONG_DIGITS


def _binary(values: Slices, lake: LakeType) -> Converted:
    """How many base 10000 digits, the power of the first, sign, digits after the point; then the digits.

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


@lru_cache(maxsize=1)
def _first_digits() -> npt.NDArray[np.uint64]:
    """By the number of digits: a mask for that many of the first ones in eight bytes."""
    return np.array([0, *(((1 << 64) - (1 << (64 - 16 * n))) for n in range(1, _WORD_DIGITS + 1))], np.uint64)


def _aligned(values: Slices, count: Positions, power: Positions, scale: int) -> Positions:
    """The digits as whole numbers of 10 ** -scale."""
    after = -(-scale // _BASE_DIGITS)
    # Digits are shifted so that the last of a word is the last that the scale has room for.
    spare = (_WORD_DIGITS - 1) - (power + after)
    long = (count > _WORD_DIGITS) | (spare < 0)
    word = words(values.data, values.start + 8) & _first_digits()[np.minimum(count, _WORD_DIGITS)]
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


FAMILY = Family(
    "decimals",
    carriers=(
        Carrier(
            Kind.DECIMAL,
            _text, toasted=True, select=_select, unfit=_unfit, unfit_words="NaN or more digits",
            default=NUMBER_DEFAULT, widens=_widens, bound=_bound,
        ),
    ),
    scalars=(
        Scalar(
            NUMERIC, "numeric", _lake_type, _binary, _fits_a_long, json_differs=True, typmod_widens=_typmod_widens,
            shown={
                "numeric(10,2)": typmod(10, 2), "numeric(38,0)": typmod(38, 0), "numeric(5,-2)": typmod(5, -2),
                "numeric(50,2)": typmod(50, 2), "numeric": -1,
            },
        ),
    ),
)  # fmt: skip
