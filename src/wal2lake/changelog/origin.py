"""Where a change log comes from: the database, the slot, the position that it begins at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..position import Lsn

if TYPE_CHECKING:
    pass


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
