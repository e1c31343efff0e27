"""The origin of a change log: database, slot and starting position."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..errors import ChangeLogDamaged
from ..position import Lsn
from ..visibility import Visibility
from .storage import LogStorage, Stat

FORMAT = 1
_NAME = "group.json"


@dataclass(frozen=True)
class Start:
    """The start of a stretch of the log: its first manifest has this number and continues from this position.

    Changes are missing between two stretches, so a table that was copied before must be re-copied.
    """

    manifest: int
    lsn: Lsn
    token: str | None = None
    """what a stream resumes from, where a position alone does not say that: the snapshot of a drain"""
    crossing: Visibility | None = None
    """where triggers captured first: what they have captured, and up to where the slot's stream has to be compared"""

    @property
    def by_triggers(self) -> bool:
        """Whether triggers capture; otherwise a slot is read."""
        return self.token is not None and self.crossing is None

    @property
    def copied(self) -> int:
        """The last manifest without changes beyond the start; one that begins a later stretch is empty."""
        return self.manifest if self.manifest > 1 else 0

    def continues(self, manifest: int, lsn: Lsn) -> bool:
        """Whether a table that has all manifests up to one, at a position, can continue."""
        return lsn >= self.lsn and (self.manifest == 1 or manifest >= self.manifest)


class Identity(Protocol):
    """Identifies a database of a cluster."""

    @property
    def system_identifier(self) -> str: ...

    @property
    def database_oid(self) -> int: ...


@dataclass(frozen=True)
class Origin:
    """The database and the slot that a log was captured from."""

    system_identifier: str
    database_oid: int
    slot: str


def logged_groups(storage: LogStorage) -> list[str]:
    """The groups that have a log."""
    return [group for group in storage.prefixes() if storage.stat(f"{group}/{_NAME}") is not None]


def _to_json(start: Start) -> dict[str, Any]:
    token = {} if start.token is None else {"token": start.token}
    crossing = {} if start.crossing is None else {"crossing": str(start.crossing)}
    return {"manifest": start.manifest, "lsn": str(start.lsn), **token, **crossing}


def _from_json(data: dict[str, Any]) -> Start:
    crossing = data.get("crossing")
    return Start(
        data["manifest"], Lsn.parse(data["lsn"]), data.get("token"),
        None if crossing is None else Visibility.parse(crossing),
    )  # fmt: skip


class GroupFile:
    """group.json: the database and the slot of a log, and the starts of its stretches."""

    def __init__(self, storage: LogStorage, group: str) -> None:
        self._storage, self._group = storage, group
        self._known: tuple[Stat, dict[str, Any]] | None = None

    @property
    def exists(self) -> bool:
        return self._storage.stat(_NAME) is not None

    def read(self) -> dict[str, Any]:
        """Its contents, cached: it is replaced as a whole, so its tag shows whether the cache is valid."""
        facts = self._storage.stat(_NAME)
        if facts is None:
            raise self._damaged("group.json is missing")
        if self._known is None or self._known[0] != facts:
            self._known = (facts, self._parse())
        return self._known[1]

    def origin(self) -> Origin:
        data = self.read()
        return Origin(data["system_identifier"], data["database_oid"], data["slot"])

    def starts(self) -> list[Start]:
        return [_from_json(part) for part in self.read()["starts"]]

    def cross(self, crossing: Visibility) -> None:
        """The last stretch goes on with the stream of a slot."""
        *before, stretch = self.starts()
        self.write(self.origin(), [*before, replace(stretch, crossing=crossing)])

    def forget(self) -> None:
        self._known = None

    def _parse(self) -> dict[str, Any]:
        text = self._storage.get(_NAME) or b""
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
            "starts": [_to_json(start) for start in starts],
        }  # fmt: skip
        self._storage.put(_NAME, json.dumps(data, indent=1).encode())

    def _damaged(self, cause: str) -> ChangeLogDamaged:
        return ChangeLogDamaged(group=self._group, path=self._storage.uri(), cause=cause)
