"""The type table: every family, and what follows for a column. The initial copy and the stream both use it.

A value that the lake type can't hold never passes: the SELECT fails in the server, the decoder reports the row, and
`unfit_sql` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from . import arrays, bytea, decimals, json, numbers, own_text, text, time, uuid
from .family import Carrier, Converted, Family, Scalar
from .lake import STRING, Kind, LakeType
from .masking import Masking, masked_select

if TYPE_CHECKING:
    from .slices import Slices

FAMILIES: tuple[Family, ...] = tuple(
    file.FAMILY for file in (numbers, decimals, text, uuid, json, bytea, time, own_text)
)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
Reader: TypeAlias = "Callable[[Slices], Converted]"


@dataclass(frozen=True)
class PgType:
    """A row of pg_type, as far as it matters here."""

    oid: int
    name: str
    kind: str = "b"
    """typtype: b base, c composite, d domain, e enum, r range, m multirange, p pseudo"""
    element: int = 0
    """of a true array: the oid of its elements"""
    base: int = 0
    """of a domain: the oid of its base type"""
    base_typmod: int = -1
    base_dims: int = 0
    delimiter: str = ","
    """typdelim: what stands between two of its values in the text of an array"""


@dataclass(frozen=True)
class CopyColumn:
    """How a column is read over JDBC: an SQL expression for the server, and a Spark expression for what arrives."""

    sql: str
    spark: str


class TypeTable:
    """Families, by lake kind and by PostgreSQL type. Raises ValueError if they contradict each other or lack a kind."""

    def __init__(self, families: Iterable[Family]) -> None:
        self.families = tuple(families)
        self.carriers: Mapping[Kind, Carrier] = _unique(
            (carrier.kind, carrier) for family in self.families for carrier in family.carriers
        )
        self.scalars: Mapping[int, Scalar] = _unique(
            (scalar.oid, scalar) for family in self.families for scalar in family.scalars
        )
        if missing := set(Kind) - set(self.carriers):
            raise ValueError(f"no family carries {', '.join(sorted(missing))}")

    def carrier(self, lake: LakeType) -> Carrier:
        """Of a list: that of its elements."""
        return self.carriers[lake.kind]

    def lake_type(self, oid: int, typmod: int, dims: int, types: Mapping[int, PgType]) -> LakeType:
        """The lake type for a PostgreSQL type. `dims` is what was declared (pg_attribute.attndims)."""
        oid, typmod, dims = base_of(oid, typmod, dims, types)
        info = types.get(oid)
        if info is not None and info.element:
            if dims > 1:
                return STRING
            element = self.lake_type(info.element, typmod, 0, types)
            # An array of a domain over an array has a list in each element: only text holds that.
            return STRING if element.is_list else replace(element, is_list=True)
        scalar = self.scalars.get(oid)
        return STRING if scalar is None else scalar.lake_type(typmod)

    def from_text(self, text: Slices, lake: LakeType, delimiter: str = ",") -> Converted:
        """A column from PostgreSQL's text of its values; `delimiter` stands between the elements of an array."""
        carrier = self.carriers[lake.kind]
        return arrays.text_lists(text, lake, delimiter, carrier) if lake.is_list else carrier.text(text, lake)

    def binary_reader(self, oid: int, typmod: int, lake: LakeType) -> Reader | None:
        """How the values of a column are read from PostgreSQL's binary form; None where only their text will do."""
        scalar = self.scalars.get(oid)
        if scalar is None or scalar.binary is None or scalar.lake_type(typmod) != lake or not scalar.binary_fits(lake):
            return None
        decode = scalar.binary
        return lambda values: decode(values, lake)

    def copy_column(self, quoted: str, spark_name: str, oid: int, typmod: int, dims: int, types: Mapping[int, PgType],
             lake: LakeType) -> CopyColumn:  # fmt: skip
        """The two expressions for a column. `quoted` is its SQL name, `spark_name` its name in backquotes."""
        overridden = self.lake_type(oid, typmod, dims, types) != lake
        oid, _, _ = base_of(oid, typmod, dims, types)
        info, carrier = types.get(oid), self.carrier(lake)
        if lake.is_list and info is not None:
            as_text = self._differs_in_json(base_of(info.element, -1, 0, types)[0], lake, types)
            return CopyColumn(
                arrays.select(quoted, lake, carrier, as_text),
                arrays.arrived(spark_name, carrier, lake.element.spark),
            )
        scalar = self.scalars.get(oid)
        own = scalar.select if scalar is not None and not overridden else None
        sql = own.format(quoted) if own is not None else carrier.select(quoted, lake, overridden)
        return CopyColumn(sql, carrier.arrived.format(spark_name))

    def _differs_in_json(self, element: int, lake: LakeType, types: Mapping[int, PgType]) -> bool:
        """Whether array_to_json gives elements another form than PostgreSQL's text."""
        if lake.kind is not Kind.STRING:
            return True
        if (scalar := self.scalars.get(element)) is not None:
            return scalar.json_differs
        info = types.get(element)
        return info is not None and own_text.json_differs(info.kind, element)

    def unfit_sql(self, quoted: str, lake: LakeType) -> str:
        """A condition that is true for values of the column that the lake type can't hold; '' where it holds all."""
        carrier = self.carrier(lake)
        return arrays.unfit(quoted, lake, carrier) if lake.is_list else carrier.unfit(quoted, lake)

    def unfit_words(self, lake: LakeType) -> str:
        """The values that meet `unfit_sql`, in words."""
        inner = self.carrier(lake).unfit_words
        if not lake.is_list:
            return inner
        return f"{arrays.UNFIT_WORDS}, or {inner} in an element" if inner else arrays.UNFIT_WORDS


def _unique(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, _Value]:
    found: dict[_Key, _Value] = {}
    for key, value in pairs:
        if found.setdefault(key, value) is not value:
            raise ValueError(f"{key} is registered twice")
    return found


def base_of(oid: int, typmod: int, dims: int, types: Mapping[int, PgType]) -> tuple[int, int, int]:
    """Look through domains: the oid, typmod and declared dimensions of the type beneath."""
    while (info := types.get(oid)) is not None and info.kind == "d":
        oid, typmod, dims = info.base, info.base_typmod if typmod == -1 else typmod, max(dims, info.base_dims)
    return oid, typmod, dims


def delimiter(oid: int, types: Mapping[int, PgType]) -> str:
    """What stands between the elements in the text of an array, or of a domain over one."""
    array = types.get(base_of(oid, -1, 0, types)[0])
    element = types.get(array.element) if array is not None else None
    return element.delimiter if element is not None else ","


def override_allowed(declared: LakeType, wanted: LakeType) -> bool:
    """Whether a per-column override can carry each value exactly, or refuse it: text holds all, a decimal numerics."""
    if wanted == STRING:
        return True
    numeric_text = declared.kind in (Kind.STRING, Kind.DECIMAL)
    return wanted.kind is Kind.DECIMAL and numeric_text and wanted.is_list == declared.is_list


def masked_copy_column(quoted: str, spark_name: str, mask: Masking) -> CopyColumn:
    """The two expressions for a masked column: its values do not leave the server."""
    return CopyColumn(masked_select(quoted, mask), "NULL" if mask is Masking.NULL else spark_name)


TYPES = TypeTable(FAMILIES)
lake_type, copy_column = TYPES.lake_type, TYPES.copy_column
from_text = TYPES.from_text
unfit_sql, unfit_words = TYPES.unfit_sql, TYPES.unfit_words
binary_reader = lru_cache(maxsize=1024)(TYPES.binary_reader)
