"""Matches a group's names and patterns with tables, and explains why other relations are not mirrored.

A pattern has * or ? outside quotes: `public.*`, `"My Schema".order_?`. The default schema is public.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import ConfigError, SourceError, SourceRefused, TableMissing
from ...quoting import identifier
from ...schema import TableId, split_identifier
from ..sessions.connect import Connection, explained, query

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True)
class FoundTable:
    oid: int
    id: TableId
    partitioned: bool


@dataclass(frozen=True)
class Skipped:
    """A relation that matches a pattern and is not mirrored as a table of its own."""

    id: TableId
    reason: str


@dataclass(frozen=True)
class Matched:
    tables: tuple[FoundTable, ...]
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]
    problems: tuple[SourceError, ...] = ()
    """names that match nothing that can be mirrored"""
    units: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """relations that are not tables of their own in this group, by oid: partitions, or roots with all their leaves"""


@dataclass(frozen=True)
class Pattern:
    """A name or a pattern as two regular expressions: for the schema and for the table."""

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
class CatalogRelation:
    """Any relation in pg_class."""

    oid: int
    id: TableId
    kind: str
    persistence: str
    root: int | None
    parent: int | None = None

    @property
    def partitioned(self) -> bool:
        return self.kind == "p"

    def obstacle(self, names: Mapping[int, TableId], leafwise: bool = False) -> str | None:
        """Why it can't be mirrored as a table of its own; None if it, or with `leafwise` its leaves, can."""
        if self.kind in _KINDS:
            return f"it is {_KINDS[self.kind]}"
        if self.persistence == "t":
            return "it is a temporary table"
        if self.persistence == "u":
            return "it is an unlogged table, whose changes are not in the WAL"
        if self.root is not None and not leafwise:
            return f"it is a partition of {names.get(self.root, self.root)}, and mirrored with it"
        return None


@dataclass
class _Result:
    tables: dict[int, FoundTable] = field(default_factory=dict)
    skipped: dict[int, Skipped] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[SourceError] = field(default_factory=list)


def relations(conn: Connection) -> list[CatalogRelation]:
    with explained("reading", "the catalog"):
        rows = conn.execute(query("relations")).fetchall()
    return [
        CatalogRelation(oid, TableId(schema, name), kind, persistence, root, parent)
        for oid, schema, name, kind, persistence, root, parent in rows
    ]


@dataclass(frozen=True)
class Tree:
    """Relations and their partition hierarchy, for a group."""

    found: Sequence[CatalogRelation]
    leafwise: bool = False
    """whether leaves are the mirrored tables instead of roots"""
    by_oid: Mapping[int, CatalogRelation] = field(init=False)
    ids: Mapping[int, TableId] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_oid", {relation.oid: relation for relation in self.found})
        object.__setattr__(self, "ids", {relation.oid: relation.id for relation in self.found})

    def lineage(self, relation: CatalogRelation) -> Iterator[CatalogRelation]:
        """A relation and its ancestors, up to the root."""
        above: CatalogRelation | None = relation
        while above is not None:
            yield above
            above = self.by_oid.get(above.parent) if above.parent is not None else None

    def leaves(self) -> Mapping[int, tuple[CatalogRelation, ...]]:
        """The leaves of each partitioned table, at each level."""
        below: defaultdict[int, list[CatalogRelation]] = defaultdict(list)
        for relation in self.found:
            if relation.partitioned:
                below.setdefault(relation.oid, [])
            else:
                for above in [*self.lineage(relation)][1:]:
                    below[above.oid].append(relation)
        return {oid: tuple(leaves) for oid, leaves in below.items()}

    def units(self) -> Mapping[int, tuple[int, ...]]:
        """See `Matched.units`."""
        if self.leafwise:
            return {
                oid: tuple(leaf.oid for leaf in leaves if leaf.obstacle(self.ids, leafwise=True) is None)
                for oid, leaves in self.leaves().items()
            }
        return {relation.oid: () for relation in self.found if relation.root is not None}


def match(conn: Connection, group: str, wanted: Sequence[str], exclude: Sequence[str] = ()) -> Matched:
    """The tables that `wanted` selects. A name that can't be mirrored is an error, a match of a pattern is skipped."""
    return select(Tree(relations(conn)), group, wanted, exclude)


def select(tree: Tree, group: str, wanted: Sequence[str], exclude: Sequence[str]) -> Matched:
    matched = look(tree, group, wanted, exclude)
    if matched.problems:
        raise matched.problems[0]
    return matched


def named(tree: Tree, group: str, id: TableId) -> FoundTable:
    """The table of a name; if leaves are mirrored, a partitioned one stands for its leaves. Raises SourceError."""
    relation = next((relation for relation in tree.found if relation.id == id), None)
    if relation is None:
        raise TableMissing(table=str(id), group=group, remedy="correct the name: schema.table")
    if (obstacle := relation.obstacle(tree.ids, tree.leafwise)) is not None:
        raise _refused(relation, obstacle, tree.ids)
    return FoundTable(relation.oid, id, relation.partitioned)


def look(tree: Tree, group: str, wanted: Sequence[str], exclude: Sequence[str]) -> Matched:
    """The tables that `wanted` selects; problems with names are warnings.

    If leaves are mirrored, the name of a table above them selects or excludes all of them.
    """
    names = {relation.id: relation for relation in tree.found}
    leaves = tree.leaves() if tree.leafwise else {}
    left_out = [Pattern.parse(text) for text in exclude]
    result = _Result()
    for pattern in [Pattern.parse(text) for text in wanted]:
        hits = [relation for relation in names.values() if pattern.matches(relation.id)]
        if not hits:
            if pattern.exact:
                result.problems.append(TableMissing(table=pattern.text, group=group))
            else:
                result.warnings.append(f"pattern {pattern.text} of group {group} matches no table")
        for hit in hits:
            for relation in leaves.get(hit.oid, (hit,)):
                line = tuple(tree.lineage(relation)) if tree.leafwise else (relation,)
                if not any(out.matches(one.id) for out in left_out for one in line):
                    _take(relation, pattern.exact and relation is hit, tree, result)
    return Matched(
        tuple(sorted(result.tables.values(), key=lambda table: table.id)),
        tuple(result.skipped.values()),
        tuple(result.warnings),
        tuple(result.problems),
        tree.units(),
    )


def _take(relation: CatalogRelation, named: bool, tree: Tree, result: _Result) -> None:
    obstacle = relation.obstacle(tree.ids, tree.leafwise)
    if obstacle is None:
        result.tables[relation.oid] = FoundTable(relation.oid, relation.id, relation.partitioned)
    elif named:
        result.problems.append(_refused(relation, obstacle, tree.ids))
    else:
        result.skipped[relation.oid] = Skipped(relation.id, obstacle)


def _refused(relation: CatalogRelation, obstacle: str, ids: Mapping[int, TableId]) -> SourceRefused:
    remedy = "remove it from [[groups]] tables"
    if relation.persistence == "u":
        name = identifier(relation.id.schema, relation.id.name)
        remedy = f"ALTER TABLE {name} SET LOGGED, or remove it from [[groups]] tables"
    elif relation.root is not None and relation.kind not in _KINDS:
        remedy = f"name {ids.get(relation.root)} instead, or set partitions = 'leaf' for the group"
    return SourceRefused(operation="mirroring", object=str(relation.id), cause=obstacle, remedy=remedy)
