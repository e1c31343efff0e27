"""Reads the source's catalog: columns, keys, types, partitions and sizes of tables.

`description.py` turns the result into schemas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from ...config import TableConfig
from ...errors import SourceBusy
from ...schema import Bounds, Membership, ReplicaIdentity, TableId, TableSchema
from ...types import PgType
from ..sessions.connect import Connection, explained, query
from ..sessions.locking import wait_briefly
from . import identity, selection, typefacts
from .catalog_table import CatalogColumn, CatalogTable, Leaf
from .description import CatalogFacts, schemas


def tables(conn: Connection, oids: Collection[int]) -> dict[int, CatalogTable]:
    """Tables by oid; those that do not exist are left out."""
    with _one_moment(conn):
        return _tables(conn, oids)


@contextmanager
def _one_moment(conn: Connection) -> Iterator[None]:
    """Run catalog queries in one snapshot: a table, its columns and its files must be consistent."""
    with explained("reading", "the catalog"), conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def _tables(conn: Connection, oids: Collection[int]) -> dict[int, CatalogTable]:
    rows = conn.execute(query("tables"), {"oids": list(oids)}).fetchall()
    columns: defaultdict[int, list[CatalogColumn]] = defaultdict(list)
    for row in conn.execute(query("columns"), {"oids": list(oids)}):
        columns[row[0]].append(CatalogColumn(*row[1:]))
    return {
        oid: CatalogTable(
            oid, TableId(schema, name), relkind, ReplicaIdentity(identity), tuple(primary), tuple(by_index), root,
            attributes, tuple(TableId(*id) for id in above), index, tuple(decisive), tuple(columns[oid]),
        )
        for oid, schema, name, relkind, identity, primary, by_index, root, attributes, above, index, decisive in rows
    }  # fmt: skip


def types(conn: Connection, oids: Iterable[int]) -> dict[int, PgType]:
    """Types by oid, with the base types of domains and the elements of arrays."""
    with explained("reading", "the catalog"):
        return {row[0]: PgType(*row) for row in conn.execute(query("types"), {"oids": sorted(set(oids))})}


def leaves(conn: Connection, oids: Collection[int]) -> dict[int, list[Leaf]]:
    """The leaves of each table; a table that is not partitioned is its own leaf."""
    found: dict[int, list[Leaf]] = {oid: [] for oid in oids}
    with explained("reading", "the partitions"):
        rows = conn.execute(query("leaves"), {"oids": list(oids)})
        for root, oid, schema, name, kind, persistence, file, parent, *levels in rows:
            membership = tuple(Membership(*level) for level in zip(*levels, strict=True))
            above = TableId(*parent) if parent is not None else None
            found[root].append(Leaf(oid, TableId(schema, name), kind, persistence, file, membership, above))
    return found


def _empty(conn: Connection, partitions: Iterable[Leaf]) -> frozenset[int]:
    """The empty ones among partitions that were, or may have been, attached; others are not checked."""
    asked = [leaf.oid for leaf in partitions if leaf.logged and not all(level.made for level in leaf.levels)]
    if not asked:
        return frozenset()
    try:
        with explained("measuring", "partitions"), conn.transaction():
            wait_briefly(conn)
            return frozenset(oid for (oid,) in conn.execute(query("empty_heaps"), {"oids": asked}))
    except SourceBusy:
        return frozenset()


def misleading_leaves(conn: Connection, oids: Collection[int]) -> dict[int, list[TableId]]:
    """Of partitioned tables without a key: leaves that send a key that the whole table does not have."""
    with _one_moment(conn):
        roots = {oid: table for oid, table in _tables(conn, oids).items() if table.partitioned}
        below = leaves(conn, list(roots)) if roots else {}
        parts = _tables(conn, [leaf.oid for some in below.values() for leaf in some]) if roots else {}
    return {
        oid: [leaf.id for leaf in found]
        for oid, root in roots.items()
        if (found := identity.misleading(root, [parts[leaf.oid] for leaf in below[oid] if leaf.oid in parts]))
    }


def partition_bounds(conn: Connection, leaf: int) -> tuple[Bounds | None, tuple[Membership, ...]]:
    """Which rows of its root are in a partition, None if no condition tells; and its membership at each level.

    The membership is read last: if it is one that was read before, the bounds are those of it.
    """
    with explained("reading", "a partition's bounds"):
        row = conn.execute(query("partition_predicate"), {"oids": [leaf], "wait": True}).fetchone()
        levels = conn.execute(query("memberships"), {"oid": leaf}).fetchall()
    return _bounds(row[1], row[2]) if row else None, tuple(Membership(*level) for level in levels)


def _bounds(text: str | None, columns: Iterable[tuple[str, str]]) -> Bounds | None:
    return Bounds(text, tuple((name, int(number)) for name, number in columns)) if text else None


class KnownBounds:
    """A cache of partition bounds, which do not change while a partition is a member."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[Membership, ...]], Bounds | None] = {}

    def read(self, conn: Connection, leaves: Collection[Leaf]) -> None:
        """Read unknown bounds. Those of a locked partition stay unknown."""
        asked = {leaf.oid: leaf for leaf in leaves if (leaf.oid, leaf.levels) not in self._known}
        if not asked:
            return
        with suppress(SourceBusy), explained("reading", "the bounds of partitions"), conn.transaction():
            wait_briefly(conn)
            rows = conn.execute(query("partition_predicate"), {"oids": list(asked), "wait": False})
            for oid, text, columns in rows.fetchall():
                self._known[oid, asked[oid].levels] = _bounds(text, columns)

    def of(self, leaf: Leaf, schema: TableSchema) -> Bounds | None:
        """The bounds of a leaf in the table; None if they are unknown or must be hidden."""
        return None if schema.masked else self._known.get((leaf.oid, leaf.levels))


def describe(
    conn: Connection, oids: Collection[int], overrides: Mapping[str, TableConfig] | None = None,
    bounds: KnownBounds | None = None,
) -> dict[int, TableSchema]:  # fmt: skip
    """Schemas of tables (roots, or leaves) by oid; those that do not exist are left out.

    They include the bounds of partitions if `bounds` is given.
    """
    with _one_moment(conn):
        found = _tables(conn, oids)
        of_root = leaves(conn, list(found))
        parts_of = {oid: of_root[oid] for oid, table in found.items() if table.partitioned}
        below = _tables(conn, [leaf.oid for group in parts_of.values() for leaf in group]) if parts_of else {}
        known = types(conn, {column.type_oid for table in found.values() for column in table.columns})
        empty = _empty(conn, (leaf for group in parts_of.values() for leaf in group))
        facts = typefacts.read(conn, known)
        if bounds is not None:
            bounds.read(conn, [leaf for group in parts_of.values() for leaf in group])
    publication = selection.named(conn, overrides, found)
    told = CatalogFacts(conn.info.server_version, found, of_root, below, known, facts, empty, publication)
    return schemas(told, overrides, bounds.of if bounds is not None else None)
