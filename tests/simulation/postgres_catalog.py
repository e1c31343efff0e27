"""The catalog of the scripted PostgreSQL, and an ordinary session with it, as the capture worker uses them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wal2lake.config import GroupConfig, GroupTables, TableConfig
from wal2lake.errors import ConfigError
from wal2lake.position import Lsn
from wal2lake.schema import Bounds, Membership, TableSchema
from wal2lake.source.publishing.slot import SlotInfo
from wal2lake.source.sessions.server import ServerFacts
from wal2lake.source.tables.catalog_table import CatalogTable
from wal2lake.source.tables.description import CatalogFacts, schemas
from wal2lake.source.tables.selection import Named, Selection
from wal2lake.types import PgType

from .postgres_stream import unreachable
from .postgres_tables import TYPES, State

if TYPE_CHECKING:
    from .postgres import ScriptedPostgres


def described(
    server: ScriptedPostgres, state: State, oids: Collection[int], overrides: Mapping[str, TableConfig] | None,
    bounds: bool = False,
) -> dict[int, TableSchema]:  # fmt: skip
    """Schemas of tables in a state, by the same rules as those of a real catalog. `bounds`: with their partitions'."""
    tables = {oid: state.catalog_table(state.tables[oid]) for oid in oids if oid in state.tables}
    leaves = {oid: state.leaves(state.tables[oid]) for oid in tables}
    below = [leaf for oid, some in leaves.items() if tables[oid].partitioned for leaf in some]
    group = overrides.group if isinstance(overrides, GroupTables) else None
    facts = CatalogFacts(
        server_version=server.version,
        tables=tables,
        leaves=leaves,
        parts={leaf.oid: state.catalog_table(state.tables[leaf.oid]) for leaf in below},
        types=types(column.type_oid for table in tables.values() for column in table.columns),
        empty=[
            leaf.oid
            for leaf in below
            if not all(level.made for level in leaf.levels)
            and not state.rows.get(leaf.oid)
            and not server.is_written(leaf.oid)
        ],
        publication=named(server, group) if group is not None and group.publication is not None else None,
    )
    return schemas(
        facts,
        overrides,
        (lambda leaf, schema: None if schema.masked else state.bounds(state.tables[leaf.oid])) if bounds else None,
    )


def types(oids: Iterator[int] | Collection[int]) -> dict[int, PgType]:
    known = {one.type.oid: one.type for one in TYPES.values()}
    return {oid: known[oid] for oid in oids if oid in known}


def named(server: ScriptedPostgres, group: GroupConfig) -> Named:
    """The publication that a group names; it holds its tables whole."""
    found = server.state.publications.get(group.publication or "")
    if found is None or found.append:
        raise ConfigError(
            field=f"groups.{group.name}.publication", cause=f"there is no publication {group.publication}",
            allowed="one that exists",
        )  # fmt: skip
    return Named(found.name, False, {oid: Selection(generated=False) for oid in found.tables})


class ScriptedCatalog:
    """Implements CatalogReader."""

    def __init__(self, server: ScriptedPostgres) -> None:
        self._server = server

    @property
    def server_version(self) -> int:
        return self._server.version

    @property
    def _state(self) -> State:
        self._server.require_reachable()
        return self._server.state

    def tables(self, oids: Collection[int]) -> Mapping[int, CatalogTable]:
        state = self._state
        return {oid: state.catalog_table(state.tables[oid]) for oid in oids if oid in state.tables}

    def types(self, oids: Collection[int]) -> Mapping[int, PgType]:
        self._server.require_reachable()
        return types(oids)

    def describe(
        self, oids: Collection[int], overrides: Mapping[str, TableConfig] | None = None
    ) -> Mapping[int, TableSchema]:
        return described(self._server, self._state, oids, overrides)

    def partition_bounds(self, leaf: int) -> tuple[Bounds | None, tuple[Membership, ...]]:
        state = self._state
        if leaf not in state.tables:
            return None, ()
        return state.bounds(state.tables[leaf]), state.levels(state.tables[leaf])

    def published(self, publication: str) -> frozenset[int]:
        found = self._state.publications.get(publication)
        return found.tables if found is not None else frozenset()

    def named_publication(self, group: GroupConfig) -> Named:
        self._server.require_reachable()
        return named(self._server, group)

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        """It holds nothing."""


class ScriptedControl:
    """Implements ControlSession."""

    def __init__(self, server: ScriptedPostgres) -> None:
        server.require_reachable()
        self._server = server
        self._connection = server.connections
        self.closed = False

    def facts(self) -> ServerFacts:
        self._require_open()
        return self._server.facts()

    def slot(self, name: str) -> SlotInfo | None:
        self._require_open()
        return self._server.slot_info(name)

    def has_publication(self, name: str) -> bool:
        self._require_open()
        return name in self._server.state.publications

    def published_types(self, name: str) -> Sequence[tuple[int, int]]:
        self._require_open()
        state = self._server.state
        found = state.publications.get(name)
        tables = [state.tables[oid] for oid in found.tables] if found is not None else []
        return [(column.type.type.oid, column.type.typmod) for table in tables for column in table.live]

    def known_position(self, group: str) -> Lsn | None:
        self._require_open()
        return self._server.known_positions.get(group)

    def timeline_left_at(self, current: int, earlier: int) -> Lsn | None:
        """It has one timeline only."""
        self._require_open()
        return None

    def wal_end(self) -> Lsn:
        self._require_open()
        return self._server.wal_end

    def mark(self) -> Lsn:
        self._require_open()
        return self._server.mark()

    def alive(self) -> bool:
        return not self.closed and self._server.reachable and self._connection == self._server.connections

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        self.closed = True

    def _require_open(self) -> None:
        if not self.alive():
            self.closed = True
            raise unreachable("the server closed the connection")
