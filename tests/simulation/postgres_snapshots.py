"""Snapshots of the scripted PostgreSQL that ordinary sessions take and export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulation.postgres_stream import unreachable
from simulation.postgres_tables import State
from simulation.waits import REAL, Waits
from wal2lake.clock import Clock
from wal2lake.errors import SourceBusy
from wal2lake.position import Lsn

if TYPE_CHECKING:
    from simulation.postgres import ScriptedPostgres


@dataclass
class HeldState:
    """Implements SnapshotHolder: a transaction that stays open, with what it sees."""

    name: str
    seen: str
    state: State
    release: Callable[[], object]
    alive: bool = True

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self.release()


class ScriptedSnapshots:
    """Implements SnapshotServer."""

    def __init__(self, server: ScriptedPostgres, waits: Waits = REAL) -> None:
        server.require_reachable()
        self._server, self._waits = server, waits
        self._connection = server.connections

    @property
    def clock(self) -> Clock:
        return self._waits.clock

    def written(self) -> Lsn:
        return self._require().wal_end

    def mark(self) -> Lsn:
        return self._require().mark()

    def moment(self) -> str:
        return self._require().settled()

    def ended(self, moment: str) -> bool:
        return self._require().passed(moment)

    def running(self) -> SourceBusy:
        return SourceBusy(
            operation="taking", object="a snapshot", cause=f"transactions {self._server.running} are open",
            remedy="wait for their end",
        )  # fmt: skip

    def export(self) -> HeldState:
        held = self._require().export()
        self._waits.opened(held.close)
        return held

    def sleep(self, seconds: float) -> None:
        self._waits.sleep(seconds)

    def close(self) -> None:
        self._connection = -1

    def _require(self) -> ScriptedPostgres:
        if self._connection != self._server.connections or not self._server.reachable:
            raise unreachable("the server closed the connection")
        return self._server
