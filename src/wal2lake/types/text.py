"""text, varchar, char, name, xml, and the string that carries every type that has no other lake type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .family import Carrier, Converted, Family, Listed, Scalar, Unfit, output_text, raised_limit
from .lake import Kind
from .lazily import np, pa
from .slices import views

if TYPE_CHECKING:
    from .lake import LakeType
    from .slices import Slices

TEXT, VARCHAR = 25, 1043

_ASCII = 128


def strings(text: Slices, _lake: LakeType) -> Converted:
    """The texts as they are. Their binary form is the same."""
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


def _select(quoted: str, _lake: LakeType, _overridden: bool) -> str:
    return output_text(quoted)


# JDBC gives PostgreSQL's own text of those that are selected as they are.
FAMILY = Family(
    "text",
    carriers=(
        Carrier(
            Kind.STRING, strings, toasted=True,
            select=_select, from_text="{}", listed=Listed("'{}'", ("", "-")), ordered=False,
        ),
    ),
    scalars=(
        Scalar(
            TEXT, "text", binary=strings, select="{}", equal_by_text=True, widens_to=frozenset({VARCHAR}),
        ),
        Scalar(
            VARCHAR, "varchar", binary=strings, select="{}", equal_by_text=True, widens_to=frozenset({TEXT}),
            typmod_widens=raised_limit, shown={"varchar(n)": 14},
        ),
        Scalar(1042, "bpchar", binary=strings, shown={"char(n)": 14}),
        Scalar(19, "name", binary=strings),
        Scalar(142, "xml"),
    ),
)  # fmt: skip
