"""The rows of a partition: translates PostgreSQL's constraint text into a condition of Spark SQL.

    ((d IS NOT NULL) AND (d >= '2024-01-01'::date))   ──►   (`d` IS NOT NULL) AND (`d` >= DATE'2024-01-01')

Only conditions with the same meaning on both sides are translated: equality of numbers, dates, timestamps, booleans,
text and uuid, and order of all but text, which depends on the collation. Everything else is `Untranslatable`.

Conditions consist of comparisons, AND, OR and NOT alone. Inside a function such as coalesce(), Spark can't push some of
them down to the lake table: it makes NULL of `n < 6 OR n >= 6`, and then fails. None is needed, because PostgreSQL's
conditions are never NULL: they test each column for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ...schema import Bounds, Column, HeapFile, TableSchema
from ...types import TYPES, Kind
from ..names import literal, quoted


class Untranslatable(Exception):
    """the condition of a partition has no exact counterpart in the lake"""


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")*")
  | (?P<number>\d+(?:\.\d+)?)
  | (?P<cast>::\s*(?:timestamp\ with(?:out)?\ time\ zone|character\ varying|[a-z_][a-z0-9_]*)(?:\(\d+(?:,-?\d+)?\))?)
  | (?P<word>[A-Za-z_\u0080-\uffff][\w$]*)
  | (?P<sign><=|>=|<>|[()=<>,\[\]])
)""",
    re.VERBOSE,
)


def within(bounds: Bounds | None, schema: TableSchema) -> str:
    """The condition for rows of a lake table within bounds, whatever the names of columns were when the bounds were
    read. It is simple, because files are pruned by it. Raises Untranslatable."""
    if bounds is None:
        raise Untranslatable
    columns = {column.attnum: column for column in schema.source_columns}
    if not {number for _, number in bounds.columns} <= set(columns):
        raise Untranslatable
    return _translated(bounds.text, {name: columns[number] for name, number in bounds.columns})


def outside(heaps: Iterable[HeapFile], schema: TableSchema) -> str:
    """The condition for rows of a lake table within the bounds of none of these partitions. Raises Untranslatable."""
    inside = " OR ".join(within(heap.bounds, schema) for heap in heaps)
    return f"(NOT ({inside}))" if inside else "true"


def _translated(constraint: str, columns: Mapping[str, Column]) -> str:
    parser = _Parser(constraint, columns)
    condition = parser.either()
    parser.end()
    return condition


class _Parser:
    def __init__(self, text: str, columns: Mapping[str, Column]) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._columns = columns

    def end(self) -> None:
        if self._at != len(self._tokens):
            raise Untranslatable

    def either(self) -> str:
        parts = [self._both()]
        while self._take("OR"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else "(" + " OR ".join(parts) + ")"

    def _both(self) -> str:
        parts = [self._one()]
        while self._take("AND"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else "(" + " AND ".join(parts) + ")"

    def _one(self) -> str:
        if self._take("NOT"):
            return f"(NOT {self._one()})"
        start = self._at
        column = self._column()
        if column is not None:
            return self._test(column)
        self._at = start
        self._need("(")
        inner = self.either()
        self._need(")")
        return inner

    def _column(self) -> Column | None:
        """A column, with optional parentheses and cast to text; None if the next tokens are something else."""
        depth = 0
        while self._take("("):
            depth += 1
        kind, text = self._peek()
        name = text[1:-1].replace('""', '"') if kind == "quoted" else text
        if kind not in ("word", "quoted") or name not in self._columns:
            return None
        self._at += 1
        while depth and self._take(")"):
            depth -= 1
        if depth:
            return None
        column = self._columns[name]
        cast = self._next()[1] if self._peek()[0] == "cast" else None
        if cast is not None and (cast != "::text" or not _equal_by_text(column)):
            raise Untranslatable
        return column

    def _test(self, column: Column) -> str:
        name = quoted(column.name)
        if self._take("IS"):
            negated = "NOT " if self._take("NOT") else ""
            self._need("NULL")
            return f"({name} IS {negated}NULL)"
        operator = self._next()[1]
        if operator not in ("=", "<", ">", "<=", ">="):
            raise Untranslatable
        if operator == "=" and self._take("ANY"):
            return f"({name} IN ({', '.join(self._array(column))}))"
        if operator != "=" and not TYPES.carrier(column.lake).ordered:
            raise Untranslatable
        return f"({name} {operator} {self._value(column)})"

    def _array(self, column: Column) -> list[str]:
        self._need("(")
        self._need("ARRAY")
        self._need("[")
        values = [self._value(column)]
        while self._take(","):
            values.append(self._value(column))
        self._need("]")
        self._need(")")
        return values

    def _value(self, column: Column) -> str:
        wrapped = self._take("(")
        kind, text = self._next()
        if wrapped:
            self._need(")")
        if self._peek()[0] == "cast":
            self._next()
        if kind == "string":
            return _constant(text[1:-1].replace("''", "'"), column)
        if kind == "number" or text in ("true", "false"):
            return _constant(text, column)
        raise Untranslatable

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, text: str) -> bool:
        kind, found = self._peek()
        if found == text and kind in ("word", "sign"):
            self._at += 1
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise Untranslatable


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise Untranslatable
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _constant(text: str, column: Column) -> str:
    lake = column.lake
    if lake.kind is Kind.STRING and not lake.is_list and _equal_by_text(column):
        return literal(text)
    bound = None if lake.is_list else TYPES.carrier(lake).bound(text)
    if bound is None:
        raise Untranslatable
    return bound


def _equal_by_text(column: Column) -> bool:
    scalar = TYPES.scalars.get(column.type_oid)
    return scalar is not None and scalar.equal_by_text
