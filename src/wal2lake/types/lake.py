"""The words for column types of the lake, as configuration, documents and the change log write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Self

from .lazily import pa

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
        name = _SPARK[self.kind].format(self)
        return f"array<{name}>" if self.is_list else name

    @property
    def arrow(self) -> pa.DataType:
        return arrow_type(self)


_SPARK: Mapping[Kind, str] = {
    Kind.BOOLEAN: "boolean",
    Kind.INT: "int",
    Kind.LONG: "bigint",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.DECIMAL: "decimal({0.precision},{0.scale})",
    Kind.STRING: "string",
    Kind.BINARY: "binary",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp_ntz",
    Kind.TIMESTAMPTZ: "timestamp",
}
_ARROW: Mapping[Kind, Callable[[LakeType], pa.DataType]] = {
    Kind.BOOLEAN: lambda _: pa.bool_(),
    Kind.INT: lambda _: pa.int32(),
    Kind.LONG: lambda _: pa.int64(),
    Kind.FLOAT: lambda _: pa.float32(),
    Kind.DOUBLE: lambda _: pa.float64(),
    Kind.DECIMAL: lambda lake: pa.decimal128(lake.precision, lake.scale),
    Kind.STRING: lambda _: pa.string(),
    Kind.BINARY: lambda _: pa.binary(),
    Kind.DATE: lambda _: pa.date32(),
    Kind.TIMESTAMP: lambda _: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: lambda _: pa.timestamp("us", tz="UTC"),
}


@lru_cache(maxsize=256)
def arrow_type(lake: LakeType) -> pa.DataType:
    value = _ARROW[lake.kind](lake)
    return pa.list_(value) if lake.is_list else value


STRING = LakeType(Kind.STRING)
