"""bytea."""

from __future__ import annotations

import binascii
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from .family import Carrier, Converted, Family, Scalar
from .lake import Kind
from .lazily import np, pa
from .slices import bitmap, contiguous, views

if TYPE_CHECKING:
    from .lake import LakeType
    from .slices import Slices


def _text(text: Slices, _lake: LakeType) -> Converted:
    """Hex digits behind a backslash and an x."""
    digits = replace(text, start=text.start + 2, length=np.maximum(text.length - 2, 0))
    data, offsets = contiguous(digits)
    if len(text) and (text.data[text.start[text.length > 0]] != ord("\\")).any():
        raise ValueError("bytea_output is not hex")
    value = pa.py_buffer(binascii.unhexlify(data.data))
    at = pa.py_buffer((offsets // 2).astype(np.int32))
    return Converted(pa.Array.from_buffers(pa.binary(), len(text), [bitmap(text), at, value]))


def _binary(values: Slices, _lake: LakeType) -> Converted:
    return Converted(views(values, pa.binary_view()).cast(pa.binary()))


FAMILY = Family(
    "bytes",
    carriers=(
        Carrier(
            Kind.BINARY, _text, toasted=True,
            from_text="unhex(substring({}, 3))", default=re.compile(r"\\x([0-9a-f]{2})*"),
        ),
    ),
    scalars=(Scalar(17, "bytea", Kind.BINARY, _binary),),
)  # fmt: skip
