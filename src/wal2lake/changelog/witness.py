"""What a change log remembers of its source, to notice a database that was set back: restored from a copy or a backup.

A database that was set back has forgotten the newest of what it once knew. So the position that is written into it
from time to time is written here afterwards: what stands here, it must know. And the timeline says whether the WAL
that it goes on with branched off before what was captured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..position import Lsn
from .durable import read, replace


class Witness:
    """The files are the log's; whoever begins a new stretch of it forgets them."""

    def __init__(self, directory: Path) -> None:
        self._stored, self._timeline = directory / "stored.json", directory / "timeline.json"

    def stored(self) -> Lsn | None:
        """A position that the database was told, and has not been told less since."""
        data = _read(self._stored)
        return None if data is None else Lsn.parse(data["lsn"])

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
        data = _read(self._timeline)
        return None if data is None else int(data["timeline"])

    def on_timeline(self, timeline: int) -> None:
        replace(self._timeline, json.dumps({"timeline": timeline}))

    def forget(self) -> None:
        for file in (self._stored, self._timeline):
            file.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    text = read(path)
    return None if text is None else json.loads(text)
