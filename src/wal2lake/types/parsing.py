"""Parsing texts with Arrow, a whole column at once, and descriptions of texts that do not fit their lake type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .family import Converted, Unfit
from .lazily import pa
from .slices import views

if TYPE_CHECKING:
    from .lake import LakeType
    from .slices import Slices

NUMBER = re.compile(r"(-?)0*(\d*?)(?:\.(\d*?)0*)?")


def parsed(text: Slices, lake: LakeType) -> pa.Array:
    """Parse all texts at once. Raises ArrowInvalid if one of them is not a value of the type."""
    return views(text, pa.string_view()).cast(lake.arrow)


def parsed_singly(text: Slices, lake: LakeType, parse: Callable[[str, LakeType], object | None]) -> Converted:
    """Parse the texts one by one; `parse` returns None for what does not fit."""
    values: list[object | None] = []
    unfit: Unfit | None = None
    for row in range(len(text)):
        value = parse(text[row].decode(errors="replace"), lake) if text.is_valid(row) else None
        if value is None and text.is_valid(row) and unfit is None:
            unfit = Unfit(row, describe(text[row]))
        values.append(value)
    return Converted(pa.array(values, lake.arrow), unfit)


def describe(value: bytes) -> str:
    """Describes a text that does not fit, without the value."""
    text = value.decode(errors="replace")
    match text.lower():
        case "nan":
            return "NaN"
        case "infinity" | "-infinity":
            return "infinity"
    if NUMBER.fullmatch(text):
        return "a number with more digits"
    if re.match(r"\d{4,}-\d\d-\d\d", text):
        return "a date before year 1 or after 9999"
    return "a text of another type"
