r"""Arrays of one dimension as lists: literals of a whole column, `{1,NULL,"a \"b\", c"}`, into lists of texts at once.

Outside of quotes a literal has only braces, delimiters, plain elements and NULL; inside, a backslash escapes the next
byte. So quotes, then delimiters, then elements are found for all rows together, without state per row. Elements are
read by the carrier of their type. The binary form of an array is not read; text is requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .family import Carrier, Converted, Unfit
from .lazily import np, pa
from .slices import PADDING, Slices, contiguous

if TYPE_CHECKING:
    from .lake import LakeType
    from .slices import Bytes, Mask, Positions

UNFIT_WORDS = "an array of more than one dimension or with other bounds than 1"
_OPEN, _CLOSE, _QUOTE, _BACKSLASH, _BOUND = b'{}"\\['


def text_lists(text: Slices, lake: LakeType, between: str, carrier: Carrier) -> Converted:
    """The list column of array literals. Only arrays of one dimension that begin at 1 are lists."""
    text, unfit = _one_dimension(text)
    elements, offsets = _elements(text, ord(between))
    values = carrier.text(elements, lake.element)
    if values.unfit is not None:
        row = int(np.searchsorted(offsets, values.unfit.row, "right")) - 1
        if unfit is None or row < unfit.row:
            unfit = Unfit(row, values.unfit.what)
    mask = None if text.valid is None else pa.array(~text.valid)
    at = pa.array(offsets.astype(np.int32))
    return Converted(pa.ListArray.from_arrays(at, values.array, type=lake.arrow, mask=mask), unfit)


def _one_dimension(text: Slices) -> tuple[Slices, Unfit | None]:
    """Exclude what is not a list. An element that begins with a brace is quoted, so two braces are two dimensions."""
    present = text.length > 0
    bounds = present & (text.data[text.start] == _BOUND)
    bad = bounds | (present & (text.data[text.start + 1] == _OPEN))
    if not bad.any():
        return text, None
    row = int(bad.argmax())
    literal = text[row]
    deeper = literal.startswith(b"{{") or literal.partition(b"=")[0].count(b"[") > 1
    what = "an array of more than one dimension" if deeper else "an array with a lower bound other than 1"
    return text.without(bad), Unfit(row, what)


@dataclass(frozen=True)
class _Marks:
    """Which bytes of literals are inside quotes, and which backslashes only escape the next byte."""

    quoted: Mask | None
    escapes: Mask | None


def _marks(data: Bytes) -> _Marks:
    quotes = data == _QUOTE
    if not quotes.any():
        return _Marks(None, None)
    backslashes = data == _BACKSLASH
    escapes = None
    if backslashes.any():
        at = np.arange(len(data))
        run = at - np.maximum.accumulate(np.where(backslashes, -1, at))
        # In a run of backslashes the first, third, ... escape.
        escapes = (run & 1).astype(np.bool_)
        quotes[1:] &= ~escapes[:-1]
    # Counting in bytes wraps around, which keeps the parity.
    return _Marks((np.cumsum(quotes, dtype=np.uint8) & 1).astype(np.bool_), escapes)


def _elements(text: Slices, between: int) -> tuple[Slices, Positions]:
    """The elements of all literals, and per literal the offset of its first."""
    data, rows = contiguous(text)
    marks = _marks(data)
    stops = (data == between) | (data == _OPEN) | (data == _CLOSE)
    if marks.quoted is not None:
        stops &= ~marks.quoted
    at = np.flatnonzero(stops)
    which = data[at]
    start, end = at[which != _CLOSE] + 1, at[which != _OPEN]
    # An empty string is quoted, so only `{}` has nothing between two stops.
    something = end > start
    if not something.all():
        start, end = start[something], end[something]
    offsets = np.searchsorted(start, rows)
    start, end = start + len(PADDING), end + len(PADDING)
    padding = np.frombuffer(PADDING, np.uint8)
    padded = np.concatenate([padding, data, padding])
    quoted = padded[start] == _QUOTE
    null = ~quoted & (end - start == 4) & _spells_null(padded, start)
    start, end = start + quoted, end - quoted
    if marks.escapes is not None:
        keep = np.ones(len(padded), np.bool_)
        keep[len(PADDING) : -len(PADDING)] = ~marks.escapes
        moved: Positions = np.cumsum(keep) - keep
        padded, start, end = padded[keep], moved[start], moved[end]
    length = np.where(null, 0, end - start)
    return Slices(padded, start, length, ~null if null.any() else None), offsets


def _spells_null(data: Bytes, start: Positions) -> Mask:
    found = np.ones(len(start), np.bool_)
    for index, letter in enumerate(b"NULL"):
        found &= data[start + index] == letter
    return found


def unfit(quoted: str, lake: LakeType, carrier: Carrier) -> str:
    """An SQL condition that is true for arrays that are not lists, or have an element that does not fit."""
    shape = f"array_ndims({quoted}) > 1 OR array_lower({quoted}, 1) <> 1"
    inner = carrier.unfit("e", lake.element)
    return f"{shape} OR EXISTS (SELECT FROM unnest({quoted}) AS u(e) WHERE {inner})" if inner else shape


def select(quoted: str, lake: LakeType, carrier: Carrier, as_text: bool) -> str:
    """A JSON array of texts, or what Spark refuses as JSON."""
    # array_to_json gives most types PostgreSQL's own text; the rest have a JSON form of their own and go as text[].
    array = f"{quoted}::text[]" if as_text else quoted
    return f"CASE WHEN {unfit(quoted, lake, carrier)} THEN '!' ELSE array_to_json({array})::text END"


def arrived(name: str, carrier: Carrier, spark: str) -> str:
    """A Spark expression for what the SELECT gave; `spark` is the type of an element."""
    parsed = f"from_json({name}, 'array<string>', map('mode', 'FAILFAST'))"
    value = carrier.from_text.format("e", spark)
    return parsed if value == "e" else f"transform({parsed}, e -> {value})"
