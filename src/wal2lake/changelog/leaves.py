"""The table of each partition when it was last read. The catalog loses it when the partition is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .storage import LogStorage

_NAME = "leaves.json"


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

    def _known(self) -> dict[int, int]:
        if self._roots is None:
            data = self._storage.get(_NAME)
            self._roots = {} if data is None else {int(leaf): root for leaf, root in json.loads(data).items()}
        return self._roots
