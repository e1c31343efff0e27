"""boolean, smallint, integer, bigint, real, double precision."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from .family import Carrier, Converted, Family, Listed, Scalar
from .lake import Kind
from .lazily import np, pa
from .parsing import parsed, parsed_singly
from .slices import array, booleans, require_size, whole_numbers

if TYPE_CHECKING:
    from .lake import LakeType
    from .slices import Slices

BOOL, INT8, INT2, INT4, FLOAT4, FLOAT8 = 16, 20, 21, 23, 700, 701

_WHOLE = re.compile(r"-?\d{1,19}")
_FLOAT = re.compile(r"-?(\d+(\.\d+)?(e[+-]?\d+)?|Infinity)|NaN")
NUMBER_DEFAULT = re.compile(r"-?\d+(\.\d+)?")


def _text_booleans(text: Slices, _lake: LakeType) -> Converted:
    return Converted(booleans(text, text.data[text.start] == ord("t")))


def _text_numbers(text: Slices, lake: LakeType) -> Converted:
    try:
        return Converted(parsed(text, lake))
    except pa.ArrowInvalid:
        return parsed_singly(text, lake, _number)


def _number(text: str, lake: LakeType) -> object | None:
    try:
        value: object = pa.array([text]).cast(lake.arrow)[0].as_py()
    except pa.ArrowInvalid:
        return None
    return value


def _binary_booleans(values: Slices, _lake: LakeType) -> Converted:
    require_size(values, 1)
    return Converted(booleans(values, values.data[values.start] != 0))


def _binary_integers(values: Slices, lake: LakeType, size: int) -> Converted:
    return Converted(array(values, whole_numbers(values, size).astype(f"i{size}", copy=False), lake.arrow))


def _binary_shorts(values: Slices, lake: LakeType) -> Converted:
    return Converted(array(values, whole_numbers(values, 2).astype(np.int32), lake.arrow))


def _binary_floats(values: Slices, lake: LakeType, size: int) -> Converted:
    bits = whole_numbers(values, size).astype(f"i{size}", copy=False)
    return Converted(array(values, bits.view(f"f{size}"), lake.arrow))


def _truth(text: str) -> str | None:
    return text if text in ("true", "false") else None


def _whole(text: str) -> str | None:
    return f"{text}L" if _WHOLE.fullmatch(text) else None


def _to_long(_before: LakeType, after: LakeType) -> bool:
    return after.kind is Kind.LONG


def _to_double(_before: LakeType, after: LakeType) -> bool:
    return after.kind is Kind.DOUBLE


FAMILY = Family(
    "numbers",
    carriers=(
        Carrier(
            Kind.BOOLEAN, _text_booleans, toasted=False,
            default=re.compile("[tf]"), ordered=False, bound=_truth,
        ),
        Carrier(
            Kind.INT, _text_numbers, toasted=False,
            default=NUMBER_DEFAULT, widens=_to_long, listed=Listed("{}", (0, -1)), bound=_whole,
        ),
        Carrier(
            Kind.LONG, _text_numbers, toasted=False,
            default=NUMBER_DEFAULT, listed=Listed("{}L", (0, -1)), bound=_whole,
        ),
        Carrier(
            Kind.FLOAT, _text_numbers, toasted=False,
            default=_FLOAT, widens=_to_double, equal_as_text=True,
        ),
        Carrier(
            Kind.DOUBLE, _text_numbers, toasted=False,
            default=_FLOAT, equal_as_text=True,
        ),
    ),
    scalars=(
        Scalar(BOOL, "bool", Kind.BOOLEAN, _binary_booleans, shown={"boolean": -1}),
        # Spark would read it as a short.
        Scalar(
            INT2, "int2", Kind.INT, _binary_shorts, select="{}::int4", widens_to=frozenset({INT4, INT8}),
            shown={"smallint": -1},
        ),
        Scalar(
            INT4, "int4", Kind.INT, partial(_binary_integers, size=4), widens_to=frozenset({INT8}),
            shown={"integer": -1},
        ),
        Scalar(INT8, "int8", Kind.LONG, partial(_binary_integers, size=8), shown={"bigint": -1}),
        # As text, a float has fewer digits than the double that it becomes.
        Scalar(
            FLOAT4, "float4", Kind.FLOAT, partial(_binary_floats, size=4), widens_to=frozenset({FLOAT8}),
            widens_as_text=False, shown={"real": -1},
        ),
        Scalar(FLOAT8, "float8", Kind.DOUBLE, partial(_binary_floats, size=8), shown={"double precision": -1}),
    ),
)  # fmt: skip
