"""The facts that describe a type. Each family of types has a file in this package that declares them.

A value comes by two paths and has to be the same on both:

    stream   PostgreSQL's text ── `Carrier.text`, or its binary form ── `Scalar.binary` ──► Arrow value
    copy     `Scalar.select` or `Carrier.select` ── Spark JDBC ── `Carrier.arrived` ──► the same value

A `Carrier` holds the facts that follow from the lake type alone, because the decoder knows a domain, the element of an
array and a column with an override only by their lake type. A `Scalar` holds those of a PostgreSQL type.
Masks are the same for all types: they replace PostgreSQL's text (`masking.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .lake import Kind, LakeType

if TYPE_CHECKING:
    import pyarrow as pa

    from .slices import Slices


@dataclass(frozen=True)
class Unfit:
    """The first row of a column with a value that its lake type can't hold, and what it is, without the value."""

    row: int
    what: str


@dataclass(frozen=True)
class Converted:
    """A column of values; one that does not fit is NULL in it and reported."""

    array: pa.Array
    unfit: Unfit | None = None


Decoder: TypeAlias = "Callable[[Slices, LakeType], Converted]"


def _as_it_is(quoted: str, _lake: LakeType, _overridden: bool) -> str:
    return quoted


def _all_fit(_quoted: str, _lake: LakeType) -> str:
    return ""


def _never(_before: LakeType, _after: LakeType) -> bool:
    return False


def _no_bound(_text: str) -> str | None:
    return None


@dataclass(frozen=True)
class Listed:
    """How one of a few values is written into a Spark condition, and values to add where there is only one."""

    form: str
    spare: tuple[object, object]


@dataclass(frozen=True)
class Carrier:
    """A kind of lake type: all that is the same for every PostgreSQL type whose values it carries."""

    kind: Kind
    text: Decoder
    """reads PostgreSQL's text of the values"""
    toasted: bool
    """whether an update may leave a value out as unchanged TOAST"""
    select: Callable[[str, LakeType, bool], str] = _as_it_is
    """what the initial copy selects, from the quoted column, the lake type and whether that is an override"""
    arrived: str = "{}"
    """a Spark expression for what the SELECT gave"""
    from_text: str = "cast({} AS {})"
    """a Spark expression for PostgreSQL's text, formatted with the text and the Spark type"""
    unfit: Callable[[str, LakeType], str] = _all_fit
    """an SQL condition that is true for values of the quoted column that it can't hold; '' where it holds all"""
    unfit_words: str = ""
    """these values, in words"""
    default: re.Pattern[str] | None = None
    """texts of defaults that can be written as a constant; None: all"""
    widens: Callable[[LakeType, LakeType], bool] = _never
    """whether each value of one lake type of this kind is the same in another lake type"""
    listed: Listed | None = None
    """as a key: how a few values are named to find their files; None: not at all"""
    ordered: bool = True
    """as a key: whether Spark compares two values as PostgreSQL does"""
    bound: Callable[[str], str | None] = _no_bound
    """as a key: the bound of a partition as a Spark constant; None where it has no exact counterpart"""
    equal_as_text: bool = False
    """whether two values are the same only if their texts are, as 0 and -0 are not"""


@dataclass(frozen=True)
class Scalar:
    """A PostgreSQL type that is neither array nor domain."""

    oid: int
    name: str
    """pg_type.typname"""
    lake: Kind | Callable[[int], LakeType] = Kind.STRING
    """the lake type, by the typmod where that matters"""
    binary: Decoder | None = None
    """reads the binary form of the values; None: the stream is asked for text"""
    binary_fits: Callable[[LakeType], bool] = lambda _lake: True
    """whether `binary` reads columns of this lake type"""
    select: str | None = None
    """what the initial copy selects, formatted with the quoted column; None: as the carrier does"""
    json_differs: bool = False
    """whether array_to_json gives its elements another form than their text"""
    equal_by_text: bool = False
    """as a key carried as string: whether equal values are those with equal texts"""
    widens_to: frozenset[int] = frozenset()
    """oids of types, taken without typmod, that hold each of its values unchanged"""
    widens_as_text: bool = True
    """whether the text of a value is the same in those types"""
    typmod_widens: Callable[[int, int], bool] = lambda _before, _after: False
    """whether each value is the same after this change of typmod"""
    shown: Mapping[str, int] = field(default_factory=dict)
    """how the documents name it, with the typmod of that name; none: by `name`"""

    def lake_type(self, typmod: int) -> LakeType:
        return LakeType(self.lake) if isinstance(self.lake, Kind) else self.lake(typmod)


@dataclass(frozen=True)
class Family:
    """Types that are alike, and the lake types that carry them; one file of this package."""

    name: str
    carriers: tuple[Carrier, ...] = ()
    scalars: tuple[Scalar, ...] = ()


def raised_limit(before: int, after: int) -> bool:
    """Of a typmod that is a limit: whether it was raised or taken away."""
    return after == -1 or (before != -1 and after > before)


def output_text(quoted: str) -> str:
    """PostgreSQL's own text of a value, by its output function; a cast to text is another thing for inet or char."""
    # A composite value whose fields are all NULL "is null", and yet is a value.
    return f"CASE WHEN {quoted} IS NOT DISTINCT FROM NULL THEN NULL ELSE concat({quoted}) END"


def guarded(quoted: str, unfit: str, sql: str, type_name: str) -> str:
    """An expression that fails in the server for a value that meets the condition `unfit`."""
    # The ELSE depends on the column so that the planner can't fold it, and its error text holds no row value.
    fails = f"(CASE WHEN {quoted} IS NULL THEN '0' ELSE 'unfit' END)::{type_name}"
    return f"CASE WHEN NOT ({unfit}) THEN {sql} WHEN {quoted} IS NOT NULL THEN {fails} END"
