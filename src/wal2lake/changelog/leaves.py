"""Which table each partition was mirrored with when it was last seen. The catalog forgets it with the partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from .durable import read, replace


class Leaves:
    """One process writes it, another one reads it."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "leaves.json"
        self._roots: dict[int, int] | None = None

    def note(self, roots: Mapping[int, int]) -> None:
        """Remember partitions with their tables, beside those that are known."""
        known = self._known()
        if not roots.items() <= known.items():
            self._roots = known | dict(roots)
            replace(self._file, json.dumps({str(leaf): root for leaf, root in self._roots.items()}))

    def root_of(self, leaf: int) -> int | None:
        """The table that a partition was last seen in; None if it never was."""
        self._roots = None
        return self._known().get(leaf)

    def _known(self) -> dict[int, int]:
        if self._roots is None:
            text = read(self._file)
            self._roots = {} if text is None else {int(leaf): root for leaf, root in json.loads(text).items()}
        return self._roots
