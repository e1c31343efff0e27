"""What a simulated main process works with: `MirrorPorts` over the servers of a world, each call behind its hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from simulation.capture import SimulatedCapture
from simulation.executor import SimulatedExecutor
from simulation.hooked import Hooked, close_lost, hooked
from simulation.postgres_stream import ScriptedStream
from wal2lake.capture.report import CaptureHandle, Owner
from wal2lake.capture.worker import CaptureWorker
from wal2lake.changelog import ChangeLog, LogStorage
from wal2lake.config import GroupConfig
from wal2lake.errors import SourceBusy
from wal2lake.lake import LakeTables
from wal2lake.ports import as_logged
from wal2lake.position import Lsn
from wal2lake.retry import CAPTURE, POLL
from wal2lake.source.crossing import Crossing
from wal2lake.source.polling import PollingStream
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
from wal2lake.source.triggers import TriggerStream
from wal2lake.state import StateStore

if TYPE_CHECKING:
    from simulation.world import World

T = TypeVar("T")

LOOK_SECONDS = 0.1
"""how often a lock is tried again"""
LOCKED_SECONDS = 10.0
"""how long a statement waits for locks"""
BUFFERS_PLAIN = ("clock", "wait", "close")
POLLED_PLAIN = ("clock", "wait", "arrives", "cancel", "close")
CONTEXTS = ("held_still", "described_at", "without_waiting")


class SimulatedPorts:
    """One process: what it opened is closed when it crashes."""

    def __init__(self, world: World, process: str) -> None:
        self._world, self.process = world, process
        self.executor: SimulatedExecutor = world.executor
        self.captures: list[SimulatedCapture] = []
        self._waits = replace(world.waits, hooked=self._lane, opened=world.opened)

    @property
    def logs(self) -> LogStorage:
        return self._world.storage

    def store(self, other: bool = False) -> StateStore:
        return self._world.state.connect(process=self.process)

    def source(self, group: GroupConfig) -> SourceDatabase:
        group = as_logged(self.logs, group)
        found = PatientSource(self._world, self._world.server.source(self._world.config, group, self._waits))
        plain = ("slot_name", "table_id", "oid_of", "withholds", "append_only", "interrupt", "close")
        return hooked(SourceDatabase, found, "source", self._world.around, CONTEXTS, plain)  # type: ignore[type-abstract]

    def lake(self, on_demand: bool) -> LakeTables:
        made = self._world.running_lake = self._world.lake.reopened()
        return made

    def capture(self, group: GroupConfig, on_report: Callable[[], object]) -> CaptureHandle:
        def worker(owner: Owner) -> CaptureWorker:
            spools = self._world.spools / group.name
            source = self._capture_source(group)
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

    def _polled(self, request: StreamRequest) -> PollingStream:
        world = self._world
        slot = world.server.polled(request, world.per_read, world.waits)
        world.opened(lambda: slot.close(busy=False))
        return PollingStream(world.config.source, request, self._lane(slot, POLLED_PLAIN))

    def _drained(self, group: GroupConfig, request: StreamRequest) -> TriggerStream:
        world = self._world
        token = ChangeLog(self.logs, group.name).token()
        buffers = world.server.buffers(request.slot, world.per_read, world.waits)
        world.opened(buffers.close)
        return TriggerStream(self._lane(buffers, BUFFERS_PLAIN), request.slot, request.start, token)

    def _lane(self, session: T, plain: Sequence[str] = ()) -> T:
        return cast("T", Hooked(session, "lane", self._world.around, (), plain))

    def _capture_source(self, group: GroupConfig) -> CaptureSource:
        server, around = self._world.server, self._world.around
        drained: list[TriggerStream] = []

        def opened(request: StreamRequest) -> ChangeSource:
            if group.triggers:
                drained[:] = [self._drained(group, request)]
                return drained[0]
            return self._polled(request) if group.polls else self._stream(request)

        def open_stream(request: StreamRequest) -> ChangeSource:
            stream: ChangeSource | None = None
            try:
                with around("stream", "open"):
                    stream = opened(request)
            except Exception:
                close_lost(stream)
                raise
            return hooked(ChangeSource, stream, "stream", around, (), ("close",))  # type: ignore[type-abstract]

        def token(lsn: Lsn) -> str | None:
            return drained[0].token(lsn) if drained else None

        def catalog() -> CatalogReader:
            return hooked(CatalogReader, server.catalog(group.triggers), "catalog", around, CONTEXTS, ("close",))  # type: ignore[type-abstract]

        def control() -> ControlSession:
            with around("control", "open"):
                made = server.control(group.name if group.triggers else None)
            return hooked(ControlSession, made, "control", around, (), ("close", "fileno"))  # type: ignore[type-abstract]

        return CaptureSource(open_stream, catalog, control, POLL if group.polls else CAPTURE, token)


class PatientSource:
    """A scripted source that waits for locks as a real one does, and whose snapshots end with their process."""

    def __init__(self, world: World, source: SourceDatabase) -> None:
        self._world, self._source = world, source

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def create_slot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        return self._opened(self._source.create_slot(patience))

    def open_snapshot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        return self._opened(self._source.open_snapshot(patience))

    def crossing(self) -> Crossing | None:
        made = self._source.crossing()
        around = self._world.around
        return None if made is None else hooked(Crossing, made, "lane", around, (), ("close",))  # type: ignore[type-abstract]

    def publish(self, schemas: object) -> object:
        clock, until = self._world.executor.clock, self._world.executor.clock.monotonic() + LOCKED_SECONDS
        while clock.monotonic() < until:
            with suppress(SourceBusy):
                return self._source.publish(schemas)  # type: ignore[arg-type]  # what it was given
            self._world.executor.sleep(LOOK_SECONDS)
        return self._source.publish(schemas)  # type: ignore[arg-type]

    def _opened(self, made: OpenSnapshot) -> OpenSnapshot:
        self._world.opened(made.close)
        return made
