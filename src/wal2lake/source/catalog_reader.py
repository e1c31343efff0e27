"""Reads the catalog of PostgreSQL for the capture worker: short queries on a session of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from ..config import GroupConfig, SourceConfig, TableConfig
from ..schema import Bounds, Membership, TableSchema
from ..types import PgType
from .publishing import contents
from .sessions.reopened import ReopenedSession
from .tables import catalog, selection
from .tables.catalog_table import CatalogTable
from .tables.selection import Named

_LIMIT_SECONDS = 5
_NO_WAITING = "SET lock_timeout = '10ms'"
_WAITING = "SET lock_timeout = 0"


class PostgresCatalog:
    """Implements CatalogReader. Its session is opened on first use, and again when lost."""

    def __init__(self, source: SourceConfig, group: str) -> None:
        self._session = ReopenedSession(source, group, _LIMIT_SECONDS)

    @property
    def server_version(self) -> int:
        return self._session.get().info.server_version

    def tables(self, oids: Collection[int]) -> Mapping[int, CatalogTable]:
        return catalog.tables(self._session.get(), oids)

    def types(self, oids: Collection[int]) -> Mapping[int, PgType]:
        return catalog.types(self._session.get(), oids)

    def describe(
        self, oids: Collection[int], overrides: Mapping[str, TableConfig] | None = None
    ) -> Mapping[int, TableSchema]:
        return catalog.describe(self._session.get(), oids, overrides)

    def partition_bounds(self, leaf: int) -> tuple[Bounds | None, tuple[Membership, ...]]:
        return catalog.partition_bounds(self._session.get(), leaf)

    def published(self, publication_name: str) -> frozenset[int]:
        return contents.tables_meant_by(self._session.get(), publication_name)

    def named_publication(self, group: GroupConfig) -> Named:
        return selection.read(self._session.get(), group)

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        conn = self._session.get()
        conn.execute(_NO_WAITING)
        try:
            yield
        finally:
            conn.execute(_WAITING)

    def close(self) -> None:
        self._session.close()
