"""Partitioning and sort order that users gave an Iceberg table, to be kept when it is replaced."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_PARAMETER = re.compile(r"(\w+)(?:\[(\d+)\])?")


@dataclass(frozen=True)
class Term:
    """A column, or a transform of one: `bucket[16]` of `id`."""

    column: str
    transform: str
    parameter: int | None

    @classmethod
    def of(cls, schema: Any, field: Any) -> Term | None:
        """None for the void transform, which a dropped partition field leaves."""
        match = _PARAMETER.fullmatch(str(field.transform().toString()))
        column = schema.findColumnName(field.sourceId())
        if match is None or column is None or match[1] == "void":
            return None
        return cls(str(column), match[1], int(match[2]) if match[2] else None)

    def add_to(self, builder: Any) -> Any:
        """Add it to a partition spec builder."""
        parameters = () if self.parameter is None else (self.parameter,)
        return getattr(builder, self.transform)(self.column, *parameters)

    def java(self, expressions: Any) -> Any:
        if self.transform == "identity":
            return expressions.ref(self.column)
        if self.parameter is not None:
            return getattr(expressions, self.transform)(self.column, self.parameter)
        return getattr(expressions, self.transform)(self.column)


@dataclass(frozen=True)
class Layout:
    partitions: tuple[Term, ...]
    order: tuple[tuple[Term, bool, Any], ...]
    """each with its direction and null order"""

    @classmethod
    def of(cls, loaded: Any, columns: Collection[str]) -> Layout:
        """The parts of a table's layout that use only certain columns."""
        schema = loaded.schema()
        partitions = [Term.of(schema, field) for field in loaded.spec().fields()]
        fields = list(loaded.sortOrder().fields())
        order = [(Term.of(schema, field), str(field.direction()) == "ASC", field.nullOrder()) for field in fields]
        return cls(
            tuple(term for term in partitions if term is not None and term.column in columns),
            tuple((t, ascending, nulls) for t, ascending, nulls in order if t is not None and t.column in columns),
        )

    def spec(self, jvm: Any, schema: Any) -> Any:
        builder = jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
        for term in self.partitions:
            builder = term.add_to(builder)
        return builder.build()

    def sort_order(self, jvm: Any, schema: Any) -> Any:
        expressions = jvm.org.apache.iceberg.expressions.Expressions
        builder = jvm.org.apache.iceberg.SortOrder.builderFor(schema)
        for term, ascending, nulls in self.order:
            builder = (builder.asc if ascending else builder.desc)(term.java(expressions), nulls)
        return builder.build()
