"""What partitions were: the tables of each when they were read, and which have been published by themselves.

The catalog loses the one when a partition is dropped, and the publication the other when a table becomes a partition.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..position import ZERO, Lsn
from ..schema import TableSchema
from .storage import LogStorage

_NAME = "leaves.json"
_PUBLISHED = "published.json"


class _Root(NamedTuple):
    """A table that a partition was found in."""

    oid: int
    since: Lsn
    """a change that committed later is of this table, or of one that was found after it; 0: so is any"""


class _Published(NamedTuple):
    """A change that committed earlier was not published by its table itself."""

    first: Lsn
    """at any time"""
    last: Lsn
    """since the table was missing in the publication"""


class Leaves:
    """One process writes, another one reads."""

    def __init__(self, storage: LogStorage) -> None:
        self._storage = storage
        self._roots: dict[int, tuple[_Root, ...]] | None = None

    def note(self, roots: Mapping[int, int], attached: Mapping[int, Lsn] | None = None) -> None:
        """Store partitions with their tables, in addition to those that are known. A table has itself.

        `attached`: those that were not created as partitions of their table, with a position after they were found.
        """
        known = self._known()
        found = {leaf: root for leaf, root in roots.items() if leaf not in known or known[leaf][-1].oid != root}
        if found:
            since = attached or {}
            new = {leaf: (*known.get(leaf, ()), _Root(root, since.get(leaf, ZERO))) for leaf, root in found.items()}
            self._roots = known | new
            self._storage.put(
                _NAME, json.dumps({str(leaf): _stored(had) for leaf, had in self._roots.items()}).encode()
            )

    def note_read(self, schemas: Collection[TableSchema], after: Lsn) -> None:
        """Store the partitions of tables that were read from the catalog before a position."""
        heaps = [(heap, schema.oid) for schema in schemas if schema.partitioned for heap in schema.heaps]
        attached = {heap.oid: after for heap, _ in heaps if not all(level.made for level in heap.levels)}
        roots = {schema.oid: schema.oid for schema in schemas if schema.partitioned}
        self.note(roots | {heap.oid: oid for heap, oid in heaps}, attached)

    def root_of(self, leaf: int) -> int | None:
        """The last known table of a partition; None if it is unknown."""
        self._roots = None
        known = self._known().get(leaf)
        return known[-1].oid if known else None

    def roots_of(self, leaf: int, lsn: Lsn) -> tuple[int | None, ...]:
        """The tables that may have had a partition when a change of it committed, in order; None: unknown ones."""
        self._roots = None
        known = self._known().get(leaf, ())
        certain = [number for number, root in enumerate(known) if root.since <= lsn]
        return tuple(root.oid for root in known[certain[-1] :]) if certain else (None, *(root.oid for root in known))

    def tables(self) -> frozenset[int]:
        """The tables that have had partitions."""
        self._roots = None
        return frozenset(root.oid for known in self._known().values() for root in known)

    def note_published(self, since: Mapping[int, Lsn]) -> None:
        """Store tables that are about to be published, in addition to those that are known.

        Each has a position: what committed below it was sent otherwise, unless the table was published before. It is 0
        if that is unknown, or the table is published already.
        """
        known = self._published()
        found = dict(known or {})
        for oid, lsn in since.items():
            before = found.get(oid, _Published(lsn, lsn))
            found[oid] = before._replace(last=max(before.last, lsn))
        if known != found:
            self._storage.put(_PUBLISHED, json.dumps({str(oid): found[oid] for oid in sorted(found)}).encode())

    def was_published(self, oid: int, lsn: Lsn) -> bool:
        """Whether a change that committed there may be of a table that was published by itself; where nothing is
        stored, any may."""
        known = self._published()
        return known is None or (oid in known and known[oid].first <= lsn)

    def published_since(self, oid: int) -> Lsn:
        """The position from which on a published table has been published by itself; 0 if that is unknown."""
        found = (self._published() or {}).get(oid)
        return ZERO if found is None else found.last

    def _published(self) -> dict[int, _Published] | None:
        data = self._storage.get(_PUBLISHED)
        if data is None:
            return None
        stored = json.loads(data)
        if isinstance(stored, list):
            # A log of an earlier version has no positions.
            return dict.fromkeys(stored, _Published(ZERO, ZERO))
        return {int(oid): _Published(Lsn(first), Lsn(last)) for oid, (first, last) in stored.items()}

    def _known(self) -> dict[int, tuple[_Root, ...]]:
        if self._roots is None:
            data = self._storage.get(_NAME)
            self._roots = {} if data is None else {int(leaf): _read(had) for leaf, had in json.loads(data).items()}
        return self._roots


def _stored(roots: Sequence[_Root]) -> int | list[_Root]:
    """One table without a position, as an earlier version has it, or each with its own."""
    return roots[0].oid if len(roots) == 1 and not roots[0].since else list(roots)


def _read(stored: int | Sequence[tuple[int, int]]) -> tuple[_Root, ...]:
    if isinstance(stored, int):
        return (_Root(stored, ZERO),)
    return tuple(_Root(oid, Lsn(since)) for oid, since in stored)
