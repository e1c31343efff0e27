"""Table definitions in the catalog, and which tables a group selects."""

from .catalog import describe
from .catalog import tables as catalog_tables
from .catalog_table import CatalogColumn, CatalogTable
from .description import (
    masked_column,
    outside_wal,
    overrides_by_table,
)
from .facts import (
    HeapFacts,
    OwnObject,
    RefusedHeap,
    UnreadableLater,
    fix_of,
    heap_facts,
    identity_fix,
    index_fix,
    measured_heaps,
    over_unix_socket,
    own_objects,
    owner_remedy,
    read_grants,
    refused_heaps,
    unreadable_later,
)
from .matching import (
    FoundTable,
    Matched,
    Tree,
    relations,
)
from .matching import (
    select as select_tables,
)
from .selection import (
    lost_masks,
    means,
    narrow,
    patterns,
    require_masks,
)
from .selection import (
    masked as anything_masked,
)
from .selection import (
    read as published_selection,
)

__all__ = [
    "CatalogColumn",
    "CatalogTable",
    "FoundTable",
    "HeapFacts",
    "Matched",
    "OwnObject",
    "RefusedHeap",
    "Tree",
    "UnreadableLater",
    "anything_masked",
    "catalog_tables",
    "describe",
    "fix_of",
    "heap_facts",
    "identity_fix",
    "index_fix",
    "lost_masks",
    "masked_column",
    "means",
    "measured_heaps",
    "narrow",
    "outside_wal",
    "over_unix_socket",
    "overrides_by_table",
    "own_objects",
    "owner_remedy",
    "patterns",
    "published_selection",
    "read_grants",
    "refused_heaps",
    "relations",
    "require_masks",
    "select_tables",
    "unreadable_later",
]
