"""The contract of a change from triggers to the stream of a slot."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ..position import Lsn
from ..visibility import Visibility
from .publishing import Identified
from .sessions.locking import Patience


@dataclass(frozen=True)
class Crossed:
    """Where the stream of a slot takes over from triggers."""

    seen: Visibility
    """what triggers have captured, and the boundary up to which the stream is compared with it"""
    appends: Lsn | None
    """from where on the slot has the publication of append-only tables; None: there is none"""
    stay: frozenset[int] = frozenset()
    """tables that are captured by triggers as before; the stream has what these write"""


class Crossing(Protocol):
    """The steps from triggers to the stream of a slot. Until the log says that it is crossed, `undo` is enough.

    begin    tables are published, the slot is made; all transactions that ran then have a number below X
    ready    all below X have ended, and triggers have captured them
    finish   while nothing is being captured: the position and the snapshot at which the stream takes over
    """

    def obstacles(self, oids: Collection[int]) -> tuple[str, ...]:
        """What has to change first, at the server or at a table."""

    def identify(self, oids: Collection[int]) -> Identified:
        """Give tables a replica identity where their settings say so, and nothing else blocks the change."""

    def begin(self, oids: Collection[int], patience: Patience) -> None:
        """Publish the tables and make the slot. Raises SourceBusy if the wait for open transactions is stopped."""

    def ready(self, oids: Collection[int], token: str) -> bool:
        """Whether `finish` would succeed. Raises SourceRefused if the tables can't be crossed any more.

        `token`: the snapshot of the last durable drain.
        """

    def finish(self, oids: Collection[int], token: str) -> Crossed | None:
        """None if rows are left that the last durable drain does not have."""

    def undo(self) -> None:
        """Drop the slot and the publications."""

    def close(self) -> None: ...
