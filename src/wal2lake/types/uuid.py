"""uuid, as PostgreSQL's own text."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from .family import Converted, Family, Scalar
from .lazily import np, npt, pa
from .slices import bitmap, require_size, sixteens

if TYPE_CHECKING:
    from .lake import LakeType
    from .slices import Bytes, Slices

_BYTES, _TEXT = 16, 36
_GROUPS = ((0, 8, 0), (8, 12, 9), (12, 16, 14), (16, 20, 19), (20, 32, 24))
"""first and last digit, and where they begin in the text"""


@lru_cache(maxsize=1)
def _hex() -> npt.NDArray[np.uint16]:
    """The two digits of each byte."""
    return np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)


def _binary(values: Slices, _lake: LakeType) -> Converted:
    require_size(values, _BYTES)
    count = len(values)
    digits = _hex()[sixteens(values.data, values.start).view(np.uint8)].view(np.uint8).reshape(count, 2 * _BYTES)
    text: Bytes = np.full((count, _TEXT), ord("-"), np.uint8)
    for first, last, at in _GROUPS:
        text[:, at : at + last - first] = digits[:, first:last]
    offsets = np.arange(0, (count + 1) * _TEXT, _TEXT, dtype=np.int32)
    buffers = [bitmap(values), pa.py_buffer(offsets), pa.py_buffer(text)]
    return Converted(pa.Array.from_buffers(pa.string(), count, buffers))


# JDBC gives PostgreSQL's own text.
FAMILY = Family(
    "uuid",
    scalars=(Scalar(2950, "uuid", binary=_binary, select="{}", equal_by_text=True),),
)
