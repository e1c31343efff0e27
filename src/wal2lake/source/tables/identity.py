"""What identifies the rows of a table, by the catalog. For a partitioned table all its leaves decide together.

the root's primary key    unique over all partitions, if every leaf that sends old keys sends its columns
the leaves' own key       unique over all partitions only if it contains the partition columns of every level
neither                   whole rows, of leaves with REPLICA IDENTITY FULL
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...schema import ReplicaIdentity
from .catalog_table import CatalogTable


@dataclass(frozen=True)
class Told:
    """How old rows are sent. `index`: the root's index, which makes the key unique over all partitions."""

    identity: ReplicaIdentity
    key: tuple[str, ...] = ()
    index: int = 0


def of(table: CatalogTable, parts: Sequence[CatalogTable]) -> Told:
    """`parts`: the leaves of a partitioned table."""
    if not table.partitioned:
        return Told(table.identity, table.key)
    keys = [part.key for part in parts if part.key]
    whole = [part.identity is ReplicaIdentity.FULL for part in parts]
    if table.primary_key and all(set(key) >= set(table.primary_key) for key in keys):
        identity = table.identity if not parts else ReplicaIdentity.FULL if all(whole) else ReplicaIdentity.DEFAULT
        return Told(identity, table.primary_key, table.key_index)
    if keys and len(keys) == len(parts) and all(_decides(part, keys[0]) for part in parts):
        return Told(ReplicaIdentity.DEFAULT, keys[0])
    return Told(ReplicaIdentity.FULL if any(whole) else ReplicaIdentity.DEFAULT)


def misleading(table: CatalogTable, parts: Iterable[CatalogTable]) -> list[CatalogTable]:
    """Leaves that identify old rows by columns that do not identify rows of the whole table."""
    leaves = list(parts)
    if not table.partitioned or of(table, leaves).key:
        return []
    return [part for part in leaves if part.key]


def _decides(part: CatalogTable, key: tuple[str, ...]) -> bool:
    """Whether rows with equal keys are in the same leaf, whose own index then allows only one of them."""
    return set(part.key) == set(key) and None not in part.partition_columns and set(part.partition_columns) <= set(key)
