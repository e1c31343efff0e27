"""json and jsonb, as PostgreSQL's own text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .family import Converted, Family, Scalar
from .text import strings

if TYPE_CHECKING:
    from .lake import LakeType
    from .slices import Slices

_JSONB_VERSION = 1


def _binary_jsonb(values: Slices, lake: LakeType) -> Converted:
    """A version, then the text."""
    present = values.length > 0
    if (values.data[values.start[present]] != _JSONB_VERSION).any():
        raise ValueError("jsonb has another version")
    return strings(replace(values, start=values.start + 1, length=values.length - present), lake)


# JDBC gives PostgreSQL's own text.
FAMILY = Family(
    "json",
    scalars=(
        Scalar(114, "json", binary=strings, select="{}", json_differs=True),
        Scalar(3802, "jsonb", binary=_binary_jsonb, select="{}", json_differs=True),
    ),
)
