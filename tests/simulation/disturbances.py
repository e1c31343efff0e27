"""What happens to the world of a simulation, beside errors and delays of single calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.world import World

OUTSIDE = "outside"
"""the process of tasks that are no part of the mirror"""
ANOTHER = "another process"
UNNOTICED_SECONDS = 5.0
"""so much longer than its client a server takes a connection that broke for open"""
START_SECONDS = 2.0
"""how long Spark takes to start again"""


class Kind(StrEnum):
    ERROR = "error"
    DELAY = "delay"
    CRASH_CAPTURE = "crash of capture"
    CRASH_MAIN = "crash of the main process"
    CRASH_BOTH = "crash of all processes"
    LOSE_SLOT = "slot lost"
    LOSE_LEASE = "lease taken by another process"
    FILL_STORAGE = "storage full"
    ROLL_BACK = "lake table rolled back"
    HALF_OPEN = "connections half open"
    RESTART_SERVER = "server restarted"
    CRASH_LAKE = "Spark's JVM gone"


class Disturbances:
    """Lets things happen. Those that end by themselves are ended by a task outside of the mirror."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kinds: Mapping[Kind, Callable[[float], object]] = {
            Kind.CRASH_CAPTURE: lambda _: world.crash_capture(),
            Kind.CRASH_MAIN: lambda _: world.crash_main(),
            Kind.CRASH_BOTH: lambda _: self._crash_both(),
            Kind.LOSE_SLOT: lambda _: self._lose_slot(),
            Kind.LOSE_LEASE: self._take_lease,
            Kind.FILL_STORAGE: self._fill_storage,
            Kind.ROLL_BACK: lambda _: self._roll_back(),
            Kind.HALF_OPEN: self._break_connections,
            Kind.RESTART_SERVER: self._restart_server,
            Kind.CRASH_LAKE: lambda _: self._crash_lake(),
        }

    def __call__(self, kind: Kind, seconds: float) -> None:
        self._kinds[kind](seconds)

    def _later(self, seconds: float, name: str, do: Callable[[], object]) -> None:
        executor = self._world.executor

        def wait() -> None:
            executor.sleep(seconds)
            do()

        executor.spawn(OUTSIDE, name, wait, daemon=True)

    def _crash_both(self) -> None:
        try:
            self._world.crash_capture()
        finally:
            self._world.crash_main()

    def _lose_slot(self) -> None:
        server = self._world.server
        slots = [slot.name for slot in server.slots.values() if not slot.temporary and slot.lost is None]
        if slots:
            server.lose_slot(self._world.executor.random.choice(sorted(slots)))

    def _take_lease(self, seconds: float) -> None:
        """Somebody else holds a group for a while."""
        state = self._world.state
        groups = sorted(group for group, session in state.leases.items() if session.process != ANOTHER)
        if not groups:
            return
        group = self._world.executor.random.choice(groups)
        state.end_session(state.leases[group])
        session = state.open_session(ANOTHER)
        state.leases[group] = session
        if state.store is not None:
            state.next_epoch(0)
        self._later(seconds, f"gives {group} back", lambda: state.end_session(session))

    def _fill_storage(self, seconds: float) -> None:
        storage = self._world.storage
        storage.capacity = 0

        def free() -> None:
            storage.capacity = None

        self._later(seconds, "frees the storage", free)

    def _roll_back(self) -> None:
        lake, random = self._world.lake, self._world.executor.random
        tables = sorted(table for table in lake.tables() if len(lake.history(table)) > 1)
        if tables:
            table = random.choice(tables)
            self._world.rolled_back = True
            lake.roll_back(table, random.randrange(1, len(lake.history(table))))

    def _break_connections(self, seconds: float) -> None:
        """Streams do not learn of the end of their connections at once, and the server keeps their slots longer."""
        server = self._world.server
        silent = server.silence()
        self._later(seconds, "notices broken connections", lambda: server.break_streams(silent))
        self._later(seconds + UNNOTICED_SECONDS, "frees broken slots", lambda: server.free_slots(silent))

    def _restart_server(self, seconds: float) -> None:
        server = self._world.server
        server.disconnect()
        server.reachable = False
        self._world.state.end_sessions()

        def back() -> None:
            server.reachable = True

        self._later(seconds, "starts the server", back)

    def _crash_lake(self) -> None:
        if (lake := self._world.running_lake) is not None and lake.ready:
            lake.crash()
            self._later(START_SECONDS, "starts Spark", lake.restart)
