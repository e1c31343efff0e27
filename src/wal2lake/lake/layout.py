"""How somebody has laid out an Iceberg table: its partitions and its sort order, to be kept when it is replaced."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from .names import quoted

_PARAMETER = re.compile(r"(\w+)(?:\[(\d+)\])?")
_SPARK = {"year": "years", "month": "months", "day": "days", "hour": "hours"}


@dataclass(frozen=True)
class Term:
    """A column, or a transform of one: `bucket[16]` of `id`."""

    column: str
    transform: str
    parameter: int | None

    @classmethod
    def of(cls, schema: Any, field: Any) -> Term | None:
        """None for a transform that has no values, which a dropped partition field leaves."""
        match = _PARAMETER.fullmatch(str(field.transform().toString()))
        column = schema.findColumnName(field.sourceId())
        if match is None or column is None or match[1] == "void":
            return None
        return cls(str(column), match[1], int(match[2]) if match[2] else None)

    @property
    def sql(self) -> str:
        """In PARTITIONED BY."""
        if self.transform == "identity":
            return quoted(self.column)
        name = _SPARK.get(self.transform, self.transform)
        parameter = "" if self.parameter is None else f"{self.parameter}, "
        return f"{name}({parameter}{quoted(self.column)})"

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
    """each with whether it is ascending, and where NULL comes"""

    @classmethod
    def of(cls, loaded: Any, columns: Collection[str]) -> Layout:
        """What is left of a table's layout when it has certain columns."""
        schema = loaded.schema()
        partitions = [Term.of(schema, field) for field in loaded.spec().fields()]
        fields = list(loaded.sortOrder().fields())
        order = [(Term.of(schema, field), str(field.direction()) == "ASC", field.nullOrder()) for field in fields]
        return cls(
            tuple(term for term in partitions if term is not None and term.column in columns),
            tuple((t, ascending, nulls) for t, ascending, nulls in order if t is not None and t.column in columns),
        )

    @property
    def partitioned_by(self) -> str:
        return f"PARTITIONED BY ({', '.join(term.sql for term in self.partitions)})" if self.partitions else ""

    def restore_order(self, jvm: Any, loaded: Any) -> None:
        """A hint for those who write; a crash before it costs nothing but that."""
        if not self.order:
            return
        expressions = jvm.org.apache.iceberg.expressions.Expressions
        update = loaded.replaceSortOrder()
        for term, ascending, nulls in self.order:
            update = (update.asc if ascending else update.desc)(term.java(expressions), nulls)
        update.commit()
