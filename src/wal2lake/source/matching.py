"""Which tables a group's names and patterns mean, and why others that match are not mirrored.

A pattern has * or ? outside quotes: `public.*`, `"My Schema".order_?`. Without a schema it is public.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import ConfigError, SourceError, SourceRefused, TableMissing
from ..schema import TableId, split_identifier
from .connect import Connection, explained, query

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True)
class FoundTable:
    oid: int
    id: TableId
    partitioned: bool


@dataclass(frozen=True)
class Skipped:
    """Something that a pattern matches and that is not mirrored on its own."""

    id: TableId
    reason: str


@dataclass(frozen=True)
class Matched:
    tables: tuple[FoundTable, ...]
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]
    problems: tuple[SourceError, ...] = ()
    """names that mean nothing that could be mirrored"""


@dataclass(frozen=True)
class Pattern:
    """A name or a pattern, taken apart: a regular expression for the schema and one for the table."""

    text: str
    schema: re.Pattern[str]
    name: re.Pattern[str]
    exact: bool

    @classmethod
    def parse(cls, text: str) -> Pattern:
        try:
            parts = split_identifier(text)
        except ValueError:
            parts = []
        if not 1 <= len(parts) <= 2:
            raise ConfigError(
                field="groups.tables", cause=f"not a table name or pattern: {text!r}",
                allowed="write it as schema.table or schema.*; quote names with dots: \"a.b\".c",
            )  # fmt: skip
        if len(parts) == 1:
            parts.insert(0, ("public", True))
        exact = all(literal or not set(part) & set("*?") for part, literal in parts)
        return cls(text, _regex(*parts[0]), _regex(*parts[1]), exact)

    def matches(self, id: TableId) -> bool:
        return bool(self.schema.fullmatch(id.schema) and self.name.fullmatch(id.name))


def _regex(part: str, literal: bool) -> re.Pattern[str]:
    if literal:
        return re.compile(re.escape(part))
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(char, re.escape(char)) for char in part), re.DOTALL)


@dataclass(frozen=True)
class Relation:
    """Anything in pg_class that a name could mean."""

    oid: int
    id: TableId
    kind: str
    persistence: str
    root: int | None

    def obstacle(self, names: dict[int, TableId]) -> str | None:
        """Why it can't be mirrored on its own; None if it can."""
        if self.kind in _KINDS:
            return f"it is {_KINDS[self.kind]}"
        if self.persistence == "t":
            return "it is a temporary table"
        if self.persistence == "u":
            return "it is an unlogged table, whose changes are not in the WAL"
        if self.root is not None:
            return f"it is a partition of {names.get(self.root, self.root)}, and mirrored with it"
        return None


@dataclass
class _Result:
    tables: dict[int, FoundTable] = field(default_factory=dict)
    skipped: dict[int, Skipped] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[SourceError] = field(default_factory=list)


def relations(conn: Connection) -> list[Relation]:
    with explained("reading", "the catalog"):
        rows = conn.execute(query("relations")).fetchall()
    return [
        Relation(oid, TableId(schema, name), kind, persistence, root)
        for oid, schema, name, kind, persistence, root in rows
    ]


def match(conn: Connection, group: str, wanted: Sequence[str], exclude: Sequence[str] = ()) -> Matched:
    """The tables that `wanted` means. A name that can't be mirrored is an error, a pattern's match is skipped."""
    return select(relations(conn), group, wanted, exclude)


def select(found: Sequence[Relation], group: str, wanted: Sequence[str], exclude: Sequence[str]) -> Matched:
    matched = look(found, group, wanted, exclude)
    if matched.problems:
        raise matched.problems[0]
    return matched


def look(found: Sequence[Relation], group: str, wanted: Sequence[str], exclude: Sequence[str]) -> Matched:
    """What `wanted` means; what is wrong with a name is told, and the others go on."""
    names = {relation.id: relation for relation in found}
    ids = {relation.oid: relation.id for relation in found}
    left_out = [Pattern.parse(text) for text in exclude]
    result = _Result()
    for pattern in [Pattern.parse(text) for text in wanted]:
        hits = [relation for relation in names.values() if pattern.matches(relation.id)]
        if not hits:
            if pattern.exact:
                result.problems.append(TableMissing(table=pattern.text, group=group))
            else:
                result.warnings.append(f"pattern {pattern.text} of group {group} matches no table")
        for relation in hits:
            if not any(out.matches(relation.id) for out in left_out):
                _take(relation, pattern, ids, result)
    return Matched(
        tuple(sorted(result.tables.values(), key=lambda table: table.id)),
        tuple(result.skipped.values()),
        tuple(result.warnings),
        tuple(result.problems),
    )


def _take(relation: Relation, pattern: Pattern, ids: dict[int, TableId], result: _Result) -> None:
    obstacle = relation.obstacle(ids)
    if obstacle is None:
        result.tables[relation.oid] = FoundTable(relation.oid, relation.id, relation.kind == "p")
    elif pattern.exact:
        remedy = "remove it from [[groups]] tables"
        if relation.root is not None:
            remedy = f"name {ids.get(relation.root)} instead"
        elif relation.persistence == "u":
            remedy = f"ALTER TABLE {relation.id} SET LOGGED, or remove it from [[groups]] tables"
        result.problems.append(
            SourceRefused(operation="mirroring", object=str(relation.id), cause=obstacle, remedy=remedy)
        )
    else:
        result.skipped[relation.oid] = Skipped(relation.id, obstacle)
