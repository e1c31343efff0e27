"""Where a change log comes from: the database, the slot, the position that it begins at."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import ChangeLogDamaged
from ..position import Lsn
from .durable import read, replace

FORMAT = 1


@dataclass(frozen=True)
class Start:
    """Where a stretch of the log begins: its first manifest has this number and continues from this position.

    Between two stretches changes are missing. A table that was applied before must be re-copied.
    """

    manifest: int
    lsn: Lsn

    def continues(self, manifest: int, lsn: Lsn) -> bool:
        """Whether a table that has all manifests up to one, at a position, can follow."""
        return lsn >= self.lsn and (self.manifest == 1 or manifest >= self.manifest)


class Identity(Protocol):
    """What tells one database of one cluster from every other."""

    @property
    def system_identifier(self) -> str: ...

    @property
    def database_oid(self) -> int: ...


@dataclass(frozen=True)
class Origin:
    """The database and the slot that a log is from."""

    system_identifier: str
    database_oid: int
    slot: str


def logged_groups(root: Path) -> list[str]:
    """The groups that have a log."""
    return sorted(path.parent.name for path in root.glob("*/group.json"))


class GroupFile:
    """group.json: which database and slot a log is from, and where its stretches begin."""

    def __init__(self, directory: Path, group: str) -> None:
        self._path, self._group = directory / "group.json", group
        self._known: tuple[tuple[int, int], dict[str, Any]] | None = None

    def read(self) -> dict[str, Any]:
        """What it says; it is replaced whole, so the file's identity tells whether it is still that."""
        try:
            facts = self._path.stat()
        except FileNotFoundError:
            raise self._damaged("group.json is missing") from None
        identity = (facts.st_ino, facts.st_mtime_ns)
        if self._known is None or self._known[0] != identity:
            self._known = (identity, self._parse())
        return self._known[1]

    def forget(self) -> None:
        self._known = None

    def _parse(self) -> dict[str, Any]:
        text = read(self._path) or ""
        try:
            data: dict[str, Any] = json.loads(text)
        except ValueError:
            raise self._damaged("group.json can't be read") from None
        if data.get("format") != FORMAT:
            raise self._damaged(f"group.json has format {data.get('format')}, this version reads {FORMAT}")
        return data

    def write(self, origin: Origin, starts: list[Start]) -> None:
        data = {
            "format": FORMAT, "group": self._group, "system_identifier": origin.system_identifier,
            "database_oid": origin.database_oid, "slot": origin.slot,
            "starts": [{"manifest": start.manifest, "lsn": str(start.lsn)} for start in starts],
        }  # fmt: skip
        replace(self._path, json.dumps(data, indent=1))

    def _damaged(self, cause: str) -> ChangeLogDamaged:
        return ChangeLogDamaged(group=self._group, path=str(self._path.parent), cause=cause)
