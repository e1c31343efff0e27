"""What a change log remembers of its source, to notice a database that was restored to an earlier point.

Such a database has forgotten the newest of what it once knew. So the position that is written into it
from time to time is written here afterwards: what stands here, it must know. And the timeline says whether the WAL
that it goes on with branched off before what was captured.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ChangeLogDamaged
from ..position import Lsn
from .durable import read, replace

T = TypeVar("T")


class Witness:
    """The files are the log's; whoever begins a new stretch of it forgets them."""

    def __init__(self, directory: Path) -> None:
        self._stored, self._timeline = directory / "stored.json", directory / "timeline.json"

    def stored(self) -> Lsn | None:
        """A position that the database was told, and has not been told less since."""
        return _read(self._stored, lambda data: Lsn.parse(data["lsn"]))

    def storing(self, lsn: Lsn) -> None:
        """The database is about to be told a position: a higher one is not to be expected from it any more."""
        before = self.stored()
        if before is not None and before > lsn:
            self._stored.unlink(missing_ok=True)

    def has_stored(self, lsn: Lsn) -> None:
        """The database has been told a position, and has it on disk."""
        if self.stored() != lsn:
            replace(self._stored, json.dumps({"lsn": str(lsn)}))

    def timeline(self) -> int | None:
        return _read(self._timeline, lambda data: int(data["timeline"]))

    def on_timeline(self, timeline: int) -> None:
        replace(self._timeline, json.dumps({"timeline": timeline}))

    def forget(self) -> None:
        for file in (self._stored, self._timeline):
            file.unlink(missing_ok=True)


def _read(path: Path, value: Callable[[dict[str, Any]], T]) -> T | None:
    """What a file holds; None if there is none. One that can't be read is no proof of anything, and is not replaced."""
    text = read(path)
    try:
        return None if text is None else value(json.loads(text))
    except (ValueError, KeyError, TypeError):
        raise ChangeLogDamaged(
            path=str(path), cause="it can't be read, so nothing tells whether the source was restored from a backup",
            remedy=f"if it was not, delete the file: rm {shlex.quote(str(path))}; if it was: "
            "wal2lake tables resync --all",
        ) from None  # fmt: skip
