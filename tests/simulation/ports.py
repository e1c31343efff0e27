"""What a simulated main process works with: `MirrorPorts` over the servers of a world, each call behind its hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from simulation.capture import SimulatedCapture
from simulation.executor import SimulatedExecutor
from simulation.hooked import close_lost, hooked
from simulation.postgres_stream import ScriptedStream
from wal2lake.capture.report import CaptureHandle, Owner
from wal2lake.capture.worker import CaptureWorker
from wal2lake.changelog import LogStorage
from wal2lake.config import GroupConfig
from wal2lake.errors import SourceBusy
from wal2lake.lake import LakeTables
from wal2lake.source.ports import (
    CaptureSource,
    CatalogReader,
    ChangeSource,
    ControlSession,
    OpenSnapshot,
    SourceDatabase,
    StreamRequest,
)
from wal2lake.source.sessions.locking import PATIENT, Patience
from wal2lake.state import StateStore

if TYPE_CHECKING:
    from simulation.world import World

T = TypeVar("T")

LOOK_SECONDS = 0.1
"""how often a server looks whether those that a slot waits for have ended"""
LOCKED_SECONDS = 10.0
"""how long a statement waits for locks"""
CONTEXTS = ("held_still", "described_at", "without_waiting")


class SimulatedPorts:
    """One process: what it opened is closed when it crashes."""

    def __init__(self, world: World, process: str) -> None:
        self._world, self.process = world, process
        self.executor: SimulatedExecutor = world.executor
        self.captures: list[SimulatedCapture] = []

    @property
    def logs(self) -> LogStorage:
        return self._world.storage

    def store(self, other: bool = False) -> StateStore:
        return self._world.state.connect(process=self.process)

    def source(self, group: GroupConfig) -> SourceDatabase:
        found = PatientSource(self._world, self._world.server.source(self._world.config, group))
        plain = ("slot_name", "table_id", "oid_of", "withholds", "append_only", "interrupt", "close")
        return hooked(SourceDatabase, found, "source", self._world.around, CONTEXTS, plain)  # type: ignore[type-abstract]

    def lake(self, on_demand: bool) -> LakeTables:
        made = self._world.running_lake = self._world.lake.reopened()
        return made

    def capture(self, group: GroupConfig, on_report: Callable[[], object]) -> CaptureHandle:
        def worker(owner: Owner) -> CaptureWorker:
            spools = self._world.spools / group.name
            source = self._capture_source()
            return CaptureWorker(self._world.config, group, owner, source, self.logs, self.executor, spools)

        made = SimulatedCapture(self.executor, group.name, worker, on_report, self.process, self._world.crash)
        self.captures.append(made)
        return made

    def _stream(self, request: StreamRequest) -> ScriptedStream:
        wakeup = self.executor.wakeup()

        def wait(timeout: float, wake: Sequence[int]) -> None:
            wakeup.clear()
            self.executor.wait_readable([*wake, wakeup.fileno()], timeout)

        stream = self._world.server.stream(request, self._world.per_read, wait)
        self._world.followers.append(wakeup)
        self._world.opened(stream.close)
        return stream

    def _capture_source(self) -> CaptureSource:
        server, around = self._world.server, self._world.around

        def open_stream(request: StreamRequest) -> ChangeSource:
            stream = None
            try:
                with around("stream", "open"):
                    stream = self._stream(request)
            except Exception:
                close_lost(stream)
                raise
            return hooked(ChangeSource, stream, "stream", around, (), ("close",))  # type: ignore[type-abstract]

        def catalog() -> CatalogReader:
            return hooked(CatalogReader, server.catalog(), "catalog", around, CONTEXTS, ("close",))  # type: ignore[type-abstract]

        def control() -> ControlSession:
            with around("control", "open"):
                made = server.control()
            return hooked(ControlSession, made, "control", around, (), ("close", "fileno"))  # type: ignore[type-abstract]

        return CaptureSource(open_stream, catalog, control)


class PatientSource:
    """A scripted source that waits where a real one does: until others have ended, or its caller is to stop."""

    def __init__(self, world: World, source: SourceDatabase) -> None:
        self._world, self._source = world, source

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def create_slot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        return self._held(lambda: self._source.create_slot(patience), patience)

    def open_snapshot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        return self._held(lambda: self._source.open_snapshot(patience), patience)

    def publish(self, schemas: object) -> object:
        clock, until = self._world.executor.clock, self._world.executor.clock.monotonic() + LOCKED_SECONDS
        while clock.monotonic() < until:
            with suppress(SourceBusy):
                return self._source.publish(schemas)  # type: ignore[arg-type]  # what it was given
            self._world.executor.sleep(LOOK_SECONDS)
        return self._source.publish(schemas)  # type: ignore[arg-type]

    def _held(self, make: Callable[[], OpenSnapshot], patience: Patience) -> OpenSnapshot:
        while True:
            try:
                made = make()
            except SourceBusy as busy:
                if patience.stopped():
                    raise
                patience.on_wait(busy)
                self._world.executor.sleep(LOOK_SECONDS)
            else:
                self._world.opened(made.close)
                return made
