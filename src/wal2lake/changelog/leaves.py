"""What partitions were: the table of each when it was last read, and which have been published by themselves.

The catalog loses the one when a partition is dropped, and the publication the other when a table becomes a partition.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from .storage import LogStorage

_NAME = "leaves.json"
_PUBLISHED = "published.json"


class Leaves:
    """One process writes, another one reads."""

    def __init__(self, storage: LogStorage) -> None:
        self._storage = storage
        self._roots: dict[int, int] | None = None

    def note(self, roots: Mapping[int, int]) -> None:
        """Store partitions with their tables, in addition to those that are known."""
        known = self._known()
        if not roots.items() <= known.items():
            self._roots = known | dict(roots)
            data = {str(leaf): root for leaf, root in self._roots.items()}
            self._storage.put(_NAME, json.dumps(data).encode())

    def root_of(self, leaf: int) -> int | None:
        """The last known table of a partition; None if it is unknown."""
        self._roots = None
        return self._known().get(leaf)

    def note_published(self, oids: Collection[int]) -> None:
        """Store tables that are about to be published, in addition to those that are known."""
        known = self._published()
        if known is None or not known.issuperset(oids):
            self._storage.put(_PUBLISHED, json.dumps(sorted((known or frozenset()).union(oids))).encode())

    def was_published(self, oid: int) -> bool:
        """Whether a table may have been published by itself; where nothing is stored, any may."""
        known = self._published()
        return known is None or oid in known

    def _published(self) -> frozenset[int] | None:
        data = self._storage.get(_PUBLISHED)
        return None if data is None else frozenset(json.loads(data))

    def _known(self) -> dict[int, int]:
        if self._roots is None:
            data = self._storage.get(_NAME)
            self._roots = {} if data is None else {int(leaf): root for leaf, root in json.loads(data).items()}
        return self._roots
