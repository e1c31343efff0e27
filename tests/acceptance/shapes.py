"""Awkward tables as data: their definition, the changes of their rows, and DDL in between."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

NULLABLE = ("'a'", "'b '", "''", "NULL", "'NULL'", "repeat('wide ', 3)")
SMALL = tuple(str(number) for number in range(1, 9))
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Step:
    """DDL between the changes, one transaction; `mix` replaces the statements that are drawn from then on."""

    sql: str
    mix: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Shape:
    """Tables of one kind, in a schema that is named after the shape.

    Statements hold placeholders: each `{k}` is drawn for itself from `values["k"]`. Every permanent table of the schema
    that is no partition is compared, whatever the steps have made or dropped.
    """

    name: str
    make: tuple[str, ...]  # one transaction each; one that breaks a constraint is left out, with what it had done
    mix: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refusal: str | None = None  # words of the error, where the shape may be refused with a remedy
    unmirrored: frozenset[str] = frozenset()  # columns that no publication can send
    loses_identity: bool = False  # PostgreSQL itself refuses updates and deletes for a while
    quick: bool = True  # whether it is part of the quick form
    needs: str = "true"  # a condition in SQL: whether this server can have the shape

    def fill(self, template: str, chance: random.Random) -> str:
        """A statement with values drawn for its placeholders; other braces stay as they are."""

        def draw(found: re.Match[str]) -> str:
            values = {"k": SMALL, "v": NULLABLE, **self.values}.get(found[1])
            return found[0] if values is None else chance.choice(values)

        return _PLACEHOLDER.sub(draw, template)


def long_form_only(shapes: Iterable[Shape], *names: str) -> tuple[Shape, ...]:
    """Shapes, those with these names left out of the quick form."""
    return tuple(replace(shape, quick=shape.name not in names) for shape in shapes)


def keyed(name: str, make: str | tuple[str, ...], **more: object) -> Shape:
    """A table `t` with a column `k`, which identifies rows, or nearly does, and a text `v`; the usual changes."""
    return Shape(name, (make,) if isinstance(make, str) else make, KEYED, **more)  # type: ignore[arg-type]


KEYED = (
    "INSERT INTO t (k, v) VALUES ({k}, {v})",
    "INSERT INTO t (k, v) VALUES ({k}, {v}), ({k}, {v}) ON CONFLICT DO NOTHING",
    "INSERT INTO t (k, v) VALUES ({k}, {v}) ON CONFLICT DO NOTHING",
    "UPDATE t SET v = {v} WHERE k = {k}",
    "UPDATE t SET v = {v}",
    "UPDATE t SET k = {k} WHERE k = {k}",
    "UPDATE t SET k = {k}, v = {v} WHERE k = {k}",
    "UPDATE t SET k = k WHERE k = {k}",
    "DELETE FROM t WHERE k = {k}",
    "DELETE FROM t WHERE k = {k}; INSERT INTO t (k, v) VALUES ({k}, {v}) ON CONFLICT DO NOTHING",
)
KEYLESS = (
    "INSERT INTO t (k, v) VALUES ({k}, {v}), ({k}, {v})",
    "INSERT INTO t (k, v) SELECT k, v FROM t LIMIT 3",
    "UPDATE t SET v = {v} WHERE k = {k}",
    "UPDATE t SET k = {k} WHERE ctid = (SELECT min(ctid) FROM t WHERE k = {k})",
    "UPDATE t SET v = {v} WHERE ctid = (SELECT max(ctid) FROM t)",
    "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE k = {k})",
    "DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t)",
)
"""changes of a table in which rows may be equal: some take one of several copies"""


def keyless(name: str, make: str | tuple[str, ...], **more: object) -> Shape:
    """A table `t` with columns `k` and `v` in which rows may be equal."""
    return Shape(name, (make,) if isinstance(make, str) else make, KEYLESS, **more)  # type: ignore[arg-type]
