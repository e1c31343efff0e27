"""The type table: which lake type carries a PostgreSQL type, and how its values travel.

The copy and the stream both ask here, so that both give the same value:

    stream   PostgreSQL's text or binary form ── decode/columns.py ──► Arrow value of `LakeType`
    copy     `wire_sql` in the SELECT ── Spark JDBC ── `wire_spark` in the projection ──► the same value

A value that the lake type can't hold never passes: `wire_sql` raises in the server, and `unfit_sql` finds the row.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DECIMAL_DIGITS = 38


class Kind(StrEnum):
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"


class Masking(StrEnum):
    """What is written in the place of a column's values."""

    SHA256 = "sha256"
    """the SHA-256 of PostgreSQL's text in UTF-8, as lower-case hex digits"""
    NULL = "null"


_SPARK = {
    Kind.LONG: "bigint",
    Kind.TIMESTAMP: "timestamp_ntz",
    Kind.TIMESTAMPTZ: "timestamp",
}
_LAKE_TYPE = re.compile(r"(list<)?([a-z]+)(?:\((\d+),\s*(\d+)\))?(>)?")


@dataclass(frozen=True)
class LakeType:
    """A column type of the lake, written as in the docs: `long`, `decimal(10,2)`, `list<string>`."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    is_list: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _LAKE_TYPE.fullmatch(text.strip().lower())
        if match is None or bool(match[1]) != bool(match[5]) or match[2] not in list(Kind):
            raise ValueError(f"not a lake type: {text!r}")
        kind = Kind(match[2])
        if (kind is Kind.DECIMAL) != (match[3] is not None):
            raise ValueError(f"not a lake type: {text!r}")
        precision, scale = int(match[3] or 0), int(match[4] or 0)
        if kind is Kind.DECIMAL and not (0 < precision <= MAX_DECIMAL_DIGITS and scale <= precision):
            raise ValueError(f"not a lake type: {text!r} (at most {MAX_DECIMAL_DIGITS} digits)")
        return cls(kind, precision, scale, match[1] is not None)

    def __str__(self) -> str:
        text = f"decimal({self.precision},{self.scale})" if self.kind is Kind.DECIMAL else self.kind.value
        return f"list<{text}>" if self.is_list else text

    @property
    def element(self) -> LakeType:
        return replace(self, is_list=False)

    @property
    def spark(self) -> str:
        """The type in Spark SQL's words."""
        if self.kind is Kind.DECIMAL:
            text = f"decimal({self.precision},{self.scale})"
        else:
            text = _SPARK.get(self.kind, self.kind.value)
        return f"array<{text}>" if self.is_list else text

    @property
    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        types: dict[Kind, pa.DataType] = {
            Kind.BOOLEAN: pa.bool_(),
            Kind.INT: pa.int32(),
            Kind.LONG: pa.int64(),
            Kind.FLOAT: pa.float32(),
            Kind.DOUBLE: pa.float64(),
            Kind.STRING: pa.string(),
            Kind.BINARY: pa.binary(),
            Kind.DATE: pa.date32(),
            Kind.TIMESTAMP: pa.timestamp("us"),
            Kind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
        }
        value = pa.decimal128(self.precision, self.scale) if self.kind is Kind.DECIMAL else types[self.kind]
        return pa.list_(value) if self.is_list else value


STRING = LakeType(Kind.STRING)


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


NUMERIC = 1700
_SIMPLE = {
    16: Kind.BOOLEAN,
    21: Kind.INT,
    23: Kind.INT,
    20: Kind.LONG,
    700: Kind.FLOAT,
    701: Kind.DOUBLE,
    17: Kind.BINARY,
    1082: Kind.DATE,
    1114: Kind.TIMESTAMP,
    1184: Kind.TIMESTAMPTZ,
}
_JSON = {114, 3802}
# What JDBC hands over as PostgreSQL's own text without being asked to: text, varchar, json, jsonb, uuid.
_PLAIN_TEXT = {25, 1043, 2950} | _JSON
INT2 = 21
FIRST_USER_OID = 16384


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


def lake_type(oid: int, typmod: int, dims: int, types: Mapping[int, PgType]) -> LakeType:
    """The lake type for a PostgreSQL type. `dims` is what was declared (pg_attribute.attndims)."""
    oid, typmod, dims = base_of(oid, typmod, dims, types)
    info = types.get(oid)
    if info is not None and info.element:
        if dims > 1:
            return STRING
        element = lake_type(info.element, typmod, 0, types)
        # An array of a domain over an array has a list in each element: only text holds that.
        return STRING if element.is_list else replace(element, is_list=True)
    if oid == NUMERIC:
        return _numeric(typmod)
    kind = _SIMPLE.get(oid)
    return STRING if kind is None else LakeType(kind)


def _numeric(typmod: int) -> LakeType:
    if typmod < 4:
        return STRING
    precision, scale = ((typmod - 4) >> 16) & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 1024) - 1024
    # PostgreSQL 15+ allows a negative scale and a scale beyond the precision.
    digits = max(precision - min(scale, 0), scale)
    if digits > MAX_DECIMAL_DIGITS:
        return STRING
    return LakeType(Kind.DECIMAL, digits, max(scale, 0))


def override_allowed(declared: LakeType, wanted: LakeType) -> bool:
    """Whether a per-column override can carry each value exactly, or refuse it: text holds all, a decimal numerics."""
    if wanted == STRING:
        return True
    numeric_text = declared.kind in (Kind.STRING, Kind.DECIMAL)
    return wanted.kind is Kind.DECIMAL and numeric_text and wanted.is_list == declared.is_list


def masked(text: str, mask: Masking) -> str | None:
    """What a mask makes of a value's text."""
    return hashlib.sha256(text.encode()).hexdigest() if mask is Masking.SHA256 else None


@dataclass(frozen=True)
class Wire:
    """How a column is read over JDBC: an SQL expression for the server, and a Spark expression for what arrives."""

    sql: str
    spark: str


def wire(quoted: str, spark_name: str, oid: int, typmod: int, dims: int, types: Mapping[int, PgType],
         lake: LakeType) -> Wire:  # fmt: skip
    """The two expressions for a column. `quoted` is its SQL name, `spark_name` its name in backquotes."""
    overridden = lake_type(oid, typmod, dims, types) != lake
    oid, _, _ = base_of(oid, typmod, dims, types)
    info = types.get(oid)
    if lake.is_list and info is not None:
        return _list_wire(quoted, spark_name, base_of(info.element, -1, 0, types)[0], types, lake)
    return Wire(_scalar_sql(quoted, oid, lake, overridden), _from_wire(spark_name, lake))


def masked_wire(quoted: str, spark_name: str, mask: Masking) -> Wire:
    """The two expressions for a masked column: its values do not leave the server."""
    if mask is Masking.NULL:
        return Wire("NULL::int4", "NULL")
    return Wire(sha256_sql(quoted), spark_name)


def sha256_sql(quoted: str) -> str:
    return f"encode(sha256(convert_to({output_text(quoted)}, 'UTF8')), 'hex')"


def _scalar_sql(quoted: str, oid: int, lake: LakeType, overridden: bool) -> str:
    match lake.kind:
        case Kind.STRING:
            return quoted if oid in _PLAIN_TEXT else output_text(quoted)
        case Kind.INT if oid == INT2:
            return f"{quoted}::int4"
        case Kind.DECIMAL:
            # A declared numeric(p,s) can only hold NaN beside what fits, and JDBC refuses that itself.
            value = _guarded(quoted, lake, quoted, "numeric") if overridden else quoted
            return f"({value})::numeric({lake.precision},{lake.scale})"
        case Kind.DATE:
            return _guarded(quoted, lake, f"({quoted} - DATE '1970-01-01')", "int4")
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _micros_sql(quoted, lake)
        case _:
            return quoted


def _micros_sql(quoted: str, lake: LakeType) -> str:
    # `extract` computes in numeric, which takes four times as long. The double that `date_part` gives is off by less
    # than half a microsecond as long as there are fewer than 2^51 of them since 1970: until the year 2041.
    name = lake.kind.upper()
    usual = f"{quoted} >= {name} '1900-01-01 00:00+00' AND {quoted} < {name} '2041-01-01 00:00+00'"
    exact = _guarded(quoted, lake, f"(extract(epoch FROM {quoted}) * 1000000)::int8", "int8")
    return f"CASE WHEN {usual} THEN (date_part('epoch', {quoted}) * 1000000)::int8 ELSE {exact} END"


def _from_wire(name: str, lake: LakeType) -> str:
    match lake.kind:
        case Kind.DATE:
            return f"date_from_unix_date({name})"
        case Kind.TIMESTAMPTZ:
            return f"timestamp_micros({name})"
        case Kind.TIMESTAMP:
            return f"cast(timestamp_micros({name}) AS timestamp_ntz)"
        case _:
            return name


def _list_wire(quoted: str, name: str, element_oid: int, types: Mapping[int, PgType], lake: LakeType) -> Wire:
    element = lake.element
    # array_to_json gives most types PostgreSQL's own text; the rest have a JSON form of their own and go as text[].
    info = types.get(element_oid)
    json_form_differs = (
        element.kind is not Kind.STRING or element_oid in _JSON or element_oid == NUMERIC
        or (info is not None and (info.kind == "c" or (info.kind == "b" and element_oid >= FIRST_USER_OID)))
    )  # fmt: skip
    array = f"{quoted}::text[]" if json_form_differs else quoted
    sql = f"CASE WHEN {unfit_sql(quoted, lake)} THEN '!' ELSE array_to_json({array})::text END"
    parsed = f"from_json({name}, 'array<string>', map('mode', 'FAILFAST'))"
    if element.kind is Kind.STRING:
        return Wire(sql, parsed)
    value = "unhex(substring(e, 3))" if element.kind is Kind.BINARY else f"cast(e AS {element.spark})"
    return Wire(sql, f"transform({parsed}, e -> {value})")


def output_text(quoted: str) -> str:
    """PostgreSQL's own text of a value, by its output function; a cast to text is another thing for inet or char."""
    # A composite value whose fields are all NULL "is null", and yet is a value.
    return f"CASE WHEN {quoted} IS NOT DISTINCT FROM NULL THEN NULL ELSE concat({quoted}) END"


def unfit_sql(quoted: str, lake: LakeType) -> str:
    """A condition that is true for values of the column that the lake type can't hold; '' where it holds all."""
    if lake.is_list:
        shape = f"array_ndims({quoted}) > 1 OR array_lower({quoted}, 1) <> 1"
        inner = unfit_sql("e", lake.element)
        return f"{shape} OR EXISTS (SELECT FROM unnest({quoted}) AS u(e) WHERE {inner})" if inner else shape
    match lake.kind:
        case Kind.DECIMAL:
            limit = f"1e{lake.precision - lake.scale}::numeric"
            return f"{quoted} = 'NaN'::numeric OR abs({quoted}) >= {limit} OR {quoted} <> round({quoted}, {lake.scale})"
        case Kind.DATE:
            return f"{quoted} < DATE '0001-01-01' OR {quoted} > DATE '9999-12-31'"
        case Kind.TIMESTAMP:
            return f"{quoted} < TIMESTAMP '0001-01-01' OR {quoted} >= TIMESTAMP '10000-01-01'"
        case Kind.TIMESTAMPTZ:
            return f"{quoted} < TIMESTAMPTZ '0001-01-01 00:00+00' OR {quoted} >= TIMESTAMPTZ '10000-01-01 00:00+00'"
        case _:
            return ""


def _guarded(quoted: str, lake: LakeType, sql: str, type_name: str) -> str:
    # The ELSE depends on the column so that the planner can't fold it, and its error text holds no row value.
    fails = f"(CASE WHEN {quoted} IS NULL THEN '0' ELSE 'unfit' END)::{type_name}"
    return f"CASE WHEN NOT ({unfit_sql(quoted, lake)}) THEN {sql} WHEN {quoted} IS NOT NULL THEN {fails} END"
