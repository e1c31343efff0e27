"""Conditions on the rows of a partition, evaluated: PostgreSQL's constraints, and their Spark SQL, as both are written.

    ((d IS NOT NULL) AND (d >= '2024-01-01'::date))       (`d` IS NOT NULL) AND (`d` >= DATE'2024-01-01')

The answer is True, False or None, as SQL has it. Strings are compared for equality alone: their order is a collation's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]
Condition = Callable[[Row], bool | None]


class Unsupported(Exception):
    """it can't be told from the columns"""


_TOKENS = re.compile(
    r"""\s*(?:
    (?P<typed>(?:DATE|TIMESTAMP_NTZ|TIMESTAMP)'[^']*')
  | (?P<string>'(?:[^'\\]|''|\\.)*')
  | (?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
  | (?P<number>-?\d+(?:\.\d+)?(?:BD|L)?)
  | (?P<cast>::\s*[a-z_]+(?:\ varying|\ with(?:out)?\ time\ zone)?(?:\([\d,]+\))?)
  | (?P<word>\w+)
  | (?P<sign><=|>=|[()=<>,\[\]])
)\s*""",
    re.VERBOSE,
)
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip


def condition(text: str | None, names: Mapping[str, str] | None = None) -> Condition:
    """A condition as a function of a row; `names`: columns by their names in the text, none: these are the row's.

    Raises Unsupported.
    """
    if not text:
        raise Unsupported
    return _Parser(text, names).whole()


def _negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def _all(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


class _Parser:
    def __init__(self, text: str, names: Mapping[str, str] | None) -> None:
        self._names, self._tokens, self._at = names, list[tuple[str, str]](), 0
        end = 0
        while end < len(text):
            match = _TOKENS.match(text, end)
            if match is None or match.lastgroup is None:
                raise Unsupported
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            end = match.end()

    def whole(self) -> Condition:
        found = self._any()
        if self._at < len(self._tokens):
            raise Unsupported
        return found

    def _any(self) -> Condition:
        parts = [self._every()]
        while self._take("OR"):
            parts.append(self._every())
        return lambda row: _negated(_all([_negated(part(row)) for part in parts]))

    def _every(self) -> Condition:
        parts = [self._one()]
        while self._take("AND"):
            parts.append(self._one())
        return lambda row: _all([part(row) for part in parts])

    def _one(self) -> Condition:
        if self._take("NOT"):
            inner = self._one()
            return lambda row: _negated(inner(row))
        if self._peek()[1] == "(" and not self._wraps_a_column():
            self._need("(")
            inner = self._any()
            self._need(")")
            return inner
        if self._peek()[1] in ("true", "false"):
            answer = self._next()[1] == "true"
            return lambda _: answer
        return self._comparison(self._column())

    def _wraps_a_column(self) -> bool:
        """Whether parentheses hold a column and nothing else: `(a)::text = 'x'`."""
        return [text for _, text in self._tokens[self._at + 2 : self._at + 3]] == [")"]

    def _column(self) -> str:
        wrapped = self._take("(")
        kind, text = self._next()
        if kind not in ("word", "name"):
            raise Unsupported
        name = text if kind == "word" else text[1:-1].replace(text[0] * 2, text[0])
        if wrapped:
            self._need(")")
        if self._peek()[0] == "cast":
            self._next()
        if self._names is None:
            return name
        if name not in self._names:
            raise Unsupported
        return self._names[name]

    def _comparison(self, column: str) -> Condition:
        if self._take("IS"):
            wanted = not self._take("NOT")
            self._need("NULL")
            return lambda row: (row[column] is None) is wanted
        if self._take("IN"):
            values = self._values(")", "(")
            return lambda row: None if row[column] is None else any(_same(row[column], value) for value in values)
        sign = self._next()[1]
        if sign not in _COMPARE:
            raise Unsupported
        if sign == "=" and self._take("ANY"):
            values = self._values("]", "(", "ARRAY", "[")
            self._need(")")
            return lambda row: None if row[column] is None else any(_same(row[column], value) for value in values)
        constant, compare = self._value(), _COMPARE[sign]

        def holds(row: Row) -> bool | None:
            value = row[column]
            if value is None:
                return None
            if sign == "=":
                return _same(value, constant)
            if isinstance(value, (str, bool)):
                raise Unsupported
            return compare(value, _like(value, constant))

        return holds

    def _values(self, end: str, *begin: str) -> list[Any]:
        for text in begin:
            self._need(text)
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._need(end)
        return values

    def _value(self) -> Any:
        wrapped = self._take("(")
        kind, text = self._next()
        if wrapped:
            self._need(")")
        if self._peek()[0] == "cast":
            self._next()
        if kind == "typed":
            return text[text.index("'") + 1 : -1]
        if kind == "string":
            return text[1:-1].replace("''", "'").replace("\\'", "'").replace("\\\\", "\\")
        if kind == "number":
            return Decimal(text.removesuffix("BD").removesuffix("L"))
        if text in ("true", "false"):
            return text == "true"
        raise Unsupported

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, text: str) -> bool:
        if self._peek()[0] in ("word", "sign") and self._peek()[1] == text:
            self._at += 1
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise Unsupported


def _same(value: Any, constant: Any) -> bool:
    return bool(value == _like(value, constant))


def _like(value: Any, constant: Any) -> Any:
    """A constant of the text as a value of the column's type."""
    if isinstance(value, bool):
        return constant if isinstance(constant, bool) else constant in ("t", "true")
    if isinstance(value, datetime):
        found = datetime.fromisoformat(constant)
        return found.astimezone(UTC) if value.tzinfo is not None else found
    if isinstance(value, date):
        return date.fromisoformat(constant)
    if isinstance(value, (int, float, Decimal)):
        return Decimal(constant)
    return str(constant)
