"""Tables, columns and partitions in PostgreSQL's catalog."""

from __future__ import annotations

from dataclasses import dataclass

from ...schema import Membership, ReplicaIdentity, TableId

GENERATED_PUBLISHED_SINCE = 180000


@dataclass(frozen=True)
class CatalogColumn:
    """A column in pg_attribute."""

    name: str
    type_oid: int
    typmod: int
    dims: int
    not_null: bool
    generated: str
    type_name: str
    attnum: int
    missing: str | None

    def published(self, server_version: int) -> bool:
        """Whether a publication can send it."""
        return not self.generated or (self.generated == "s" and server_version >= GENERATED_PUBLISHED_SINCE)


@dataclass(frozen=True)
class CatalogTable:
    """A table in pg_class and pg_index."""

    oid: int
    id: TableId
    relkind: str
    identity: ReplicaIdentity
    primary_key: tuple[str, ...]
    """empty if it is deferrable or invalid"""
    identity_key: tuple[str, ...]
    root: int
    attributes: int
    """the highest attribute number that it has or had"""
    above: tuple[TableId, ...]
    """the tables above a partition, nearest first"""
    key_index: int
    """oid of the primary key's index; 0: none"""
    partition_columns: tuple[str | None, ...]
    """partition columns of every level above; None: one is an expression"""
    columns: tuple[CatalogColumn, ...]

    @property
    def partitioned(self) -> bool:
        return self.relkind == "p"

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the replica identity index; empty if old rows are sent whole or not at all."""
        match self.identity:
            case ReplicaIdentity.INDEX:
                return self.identity_key
            case ReplicaIdentity.DEFAULT:
                return self.primary_key
            case _:
                return ()


@dataclass(frozen=True)
class Leaf:
    oid: int
    id: TableId
    relkind: str
    persistence: str
    file: int
    levels: tuple[Membership, ...]
    parent: TableId | None
    """its parent"""

    @property
    def logged(self) -> bool:
        """Whether its changes are in the WAL."""
        return self.relkind == "r" and self.persistence == "p"
