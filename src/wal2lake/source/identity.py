"""What tells the rows of a table apart, as the catalog has it. Of a partitioned table its leaves decide, all together.

the root's primary key    unique over all partitions, if every leaf that sends old keys sends its columns
the leaves' own key       unique over all partitions only if it has the columns that decide which leaf a row is in
neither                   whole rows, of leaves with REPLICA IDENTITY FULL
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..schema import Identity

if TYPE_CHECKING:
    from .catalog import CatalogTable


@dataclass(frozen=True)
class Told:
    """What the stream tells of old rows. `index`: the root's, which makes the key unique over all partitions."""

    identity: Identity
    key: tuple[str, ...] = ()
    index: int = 0


def of(table: CatalogTable, parts: Sequence[CatalogTable]) -> Told:
    """`parts`: the leaves of a partitioned table."""
    if not table.partitioned:
        return Told(table.identity, table.key)
    keys = [part.key for part in parts if part.key]
    whole = [part.identity is Identity.FULL for part in parts]
    if table.primary_key and all(set(key) >= set(table.primary_key) for key in keys):
        identity = table.identity if not parts else Identity.FULL if all(whole) else Identity.DEFAULT
        return Told(identity, table.primary_key, table.key_index)
    if keys and len(keys) == len(parts) and all(_decides(part, keys[0]) for part in parts):
        return Told(Identity.DEFAULT, keys[0])
    return Told(Identity.FULL if any(whole) else Identity.DEFAULT)


def misleading(table: CatalogTable, parts: Iterable[CatalogTable]) -> list[CatalogTable]:
    """Leaves that identify old rows by columns which can't tell the rows of the whole table apart."""
    leaves = list(parts)
    if not table.partitioned or of(table, leaves).key:
        return []
    return [part for part in leaves if part.key]


def _decides(part: CatalogTable, key: tuple[str, ...]) -> bool:
    """Whether rows with the same key are in the same leaf, where the leaf's own index lets only one of them in."""
    return set(part.key) == set(key) and None not in part.partition_columns and set(part.partition_columns) <= set(key)
