"""What partitions were: the table of each when it was last read, and which have been published by themselves.

The catalog loses the one when a partition is dropped, and the publication the other when a table becomes a partition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from ..position import ZERO, Lsn
from .storage import LogStorage

_NAME = "leaves.json"
_PUBLISHED = "published.json"


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

    def _known(self) -> dict[int, int]:
        if self._roots is None:
            data = self._storage.get(_NAME)
            self._roots = {} if data is None else {int(leaf): root for leaf, root in json.loads(data).items()}
        return self._roots
