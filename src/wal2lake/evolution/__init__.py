"""How a lake table follows a change of its source table: pure judgements on two schemas."""

from .columns import (
    ColumnChanges,
    Incompatible,
    MasksLost,
    Unclear,
    changes,
    facts_differ,
    follow,
    keyed_as,
    numbered,
    rekeyed,
    require_fillable,
    source_of,
    texts_differ,
    with_facts,
)
from .membership import Moved, attached, doubted, in_doubt, later_members, moved, with_heaps, with_leaves

__all__ = [
    "ColumnChanges",
    "Incompatible",
    "MasksLost",
    "Moved",
    "Unclear",
    "attached",
    "changes",
    "doubted",
    "facts_differ",
    "follow",
    "in_doubt",
    "keyed_as",
    "later_members",
    "moved",
    "numbered",
    "rekeyed",
    "require_fillable",
    "source_of",
    "texts_differ",
    "with_facts",
    "with_heaps",
    "with_leaves",
]
