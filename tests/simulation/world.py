"""One seed's world: the servers, the processes of a mirror, and what happens to them.

    World(seed, workload).run()

runs the real mirror on ports in memory under simulated time: every order of its steps, the workload and the faults are
drawn from the seed. `hook` is called around each call of a port: what it raises is what the call fails with; it may
wait with `world.executor.sleep`, and end processes with `world.crash_main` and `world.crash_capture`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from simulation import checks, remedies
from simulation.executor import SimulatedExecutor
from simulation.hooked import Call, Hook
from simulation.memory_lake import Call as LakeCall
from simulation.memory_lake import MemoryLake
from simulation.memory_table import Row
from simulation.ports import SimulatedPorts
from simulation.postgres import ScriptedPostgres
from simulation.tasks import SimulatedTask, SimulatedWakeup, TaskKilled
from simulation.waits import Waits
from wal2lake.changelog import Manifest
from wal2lake.changelog.storages.memory import Call as LogCall
from wal2lake.changelog.storages.memory import MemoryStorage
from wal2lake.config import Config
from wal2lake.errors import ConnectionFailed, Wal2LakeError
from wal2lake.mirror import Mirror
from wal2lake.position import Lsn
from wal2lake.source.model import CopySource, ExportedSnapshot
from wal2lake.state.memory import Call as StateCall
from wal2lake.state.memory import MemoryState

QUIET_SECONDS = 900.0
"""simulated time within which all is equal once the workload and the faults have ended"""
PATIENCE_SECONDS = 20.0
"""after which remedies are carried out of what has not healed by itself"""
STAYS_SECONDS = 30.0
"""and so long it must stay so"""
RESTART_SECONDS = 5.0
"""after which whoever supervises a main process that has ended starts it again"""
POLL_SECONDS = 0.5
"""between two looks at a polled slot"""
URI = "memory:///"


class Workload(Protocol):
    """What happens at the source, and what people ask of the mirror."""

    @property
    def strict(self) -> bool:
        """Whether no change may refer to a row that the lake lacks: so where nothing is attached, as its rows come
        later than its changes."""

    def setup(self, world: World) -> None:
        """Before the first start."""

    def step(self, world: World) -> None:
        """Something; called again and again while the mirror runs."""

    def finish(self, world: World) -> None:
        """End what is open."""


@cache
def config_of(*groups: tuple[tuple[str, Any], ...]) -> Config:
    return Config(
        source={"dsn": "postgresql://scripted/shop", "poll_interval": POLL_SECONDS},
        lake={"path": "/simulated"},
        groups=[dict(g) for g in groups],
    )


def default_groups(capture: str = "auto") -> tuple[tuple[tuple[str, Any], ...], ...]:
    return ((("name", "default"), ("tables", ("public.*",)), ("capture", capture)),)


DEFAULT_GROUPS = default_groups()


class World:
    def __init__(
        self, seed: int, workload: Workload, hook: Hook = lambda _: None, steps: int = 60,
        groups: tuple[tuple[tuple[str, Any], ...], ...] = DEFAULT_GROUPS,
    ) -> None:  # fmt: skip
        self.seed, self.workload, self.hook, self.steps = seed, workload, hook, steps
        self.executor = SimulatedExecutor(seed)
        self.random = random.Random(f"world {seed}")
        """for the workload"""
        self.config = config_of(*groups)
        self.waits = Waits(self.executor.clock, self.executor.wait_readable, self.executor.sleep)
        self.per_read = self.random.choice([1, 3, 20, 1 << 30])
        """messages that a stream gives at once"""
        self._lively = self.random.choice([0.02, 0.2, 1.0])
        """how often another task gets in between two calls"""
        self.calls = 0
        self.server = ScriptedPostgres(
            clock=self._microseconds, grown=self._grown, acknowledged=partial(checks.durable, self),
            emptied=partial(checks.captured, self),
        )  # fmt: skip
        self.state = MemoryState(self.executor.clock, _StateHook(self), self.executor.condition())
        self.storage = MemoryStorage(self._log_call, owner=lambda: self.process)
        self.spools = Path(tempfile.mkdtemp(prefix="wal2lake-"))
        weakref.finalize(self, shutil.rmtree, self.spools, ignore_errors=True)
        self.lake = MemoryLake(self._copied, self._lake_call, self._segment, strict=workload.strict)
        self.running_lake: MemoryLake | None = None
        """that of the last main process"""
        self.followers: list[SimulatedWakeup] = []
        """of streams, which wait for the WAL to grow"""
        self._opened: dict[str, list[Callable[[], object]]] = {}
        """how to close what a process has opened at the server, should it crash"""
        self._main: _Main | None = None
        self._mains = 0
        self.drained: dict[str, dict[Lsn, str]] = {}
        """by group: where manifests of triggers end, and the snapshots of their drains"""
        self.notes: list[str] = []
        """what may be, for people"""
        self.broken: list[str] = []
        """what must never be, and was seen"""
        self.copied: dict[str, float] = {}
        """when the rows of a source table were last read by a copy"""
        self.requested: dict[str, float] = {}
        """when a re-copy of a table was last requested"""
        self.rolled_back = False
        """whether somebody has put an older version of a lake table back"""
        self.ended: list[BaseException] = []
        """with which main processes have ended"""

    # The run

    def run(self) -> None:
        """The whole seed, and all checks. What it raises names the seed."""
        random.seed(self.seed)
        try:
            self.executor.run(self._live)
        except BaseException as error:
            error.add_note(f"seed {self.seed}, after {self.executor.clock.elapsed:.1f} s and {self.calls} calls")
            raise

    def _live(self) -> None:
        self.workload.setup(self)
        self.start_main()
        for _ in range(self.steps):
            self.executor.sleep(self.random.choice([0.0, 0.01, 0.1, 0.5, 2.0]))
            self.keep_main()
            self.workload.step(self)
            checks.always(self)
        self.workload.finish(self)
        self.hook = lambda _: None
        if self.rolled_back:
            # A table that nothing is written to is looked at when a run begins.
            self.stop_main()
            self.keep_main()
        self._settle()
        interrupted = checks.interrupted(self)
        self.stop_main()
        checks.stopped(self, interrupted)

    def _settle(self) -> None:
        """Wait until all is as it should be, and see that it stays so."""
        while True:
            self._await_rest()
            self.executor.sleep(STAYS_SECONDS)
            problems = checks.differences(self)
            if not problems:
                break
            # What the catalog says is seen later than the rows: a key that is gone, a partition that has come.
            assert checks.failed(self) or not checks.wrong(self), f"it does not stay equal: {problems}"
        checks.always(self)

    def _await_rest(self) -> None:
        began = healed = self.executor.clock.elapsed
        while problems := checks.differences(self):
            now = self.executor.clock.elapsed
            assert now - began < QUIET_SECONDS, f"it does not come to rest: {problems}"
            if now - healed > PATIENCE_SECONDS:
                healed = now
                for record in checks.failed(self):
                    remedies.carry_out(self, record)
            self.executor.sleep(1.0)
            self.keep_main()

    # Processes

    @property
    def capture(self) -> str:
        """The capture mode that is configured."""
        return self.config.groups[0].capture

    @property
    def process(self) -> str:
        """The process that calls."""
        return self.executor.current.process if self.executor.current is not None else "main"

    @property
    def main(self) -> str | None:
        """The main process that runs."""
        return self._main.process if self._main is not None and self._main.task.is_alive() else None

    def start_main(self) -> None:
        assert self.main is None
        self._mains += 1
        self._main = _Main(self, f"main-{self._mains}")

    def stop_main(self) -> None:
        """In good order."""
        if self._main is not None:
            self._main.stop.set()
            self._main.task.join(120.0)
            assert not self._main.task.is_alive(), "the main process does not stop"

    def crash_main(self) -> None:
        """The main process dies; its capture processes notice that, and end by themselves."""
        if (main := self.main) is not None:
            assert self._main is not None
            for capture in self._main.ports.captures:
                capture.orphan()
            self.crash(main)

    def crash_capture(self, group: str | None = None) -> None:
        """The capture process of a group dies, or that of every group."""
        for name in self.captures:
            if group is None or f"/capture-{group}-" in name:
                self.crash(name)

    @property
    def captures(self) -> list[str]:
        """The capture processes that run."""
        return self.executor.processes(lambda name: "/capture-" in name)

    def crash(self, process: str) -> None:
        """It ends, with all that it has opened."""
        self.storage.crash(process)
        for close in self._opened.pop(process, ()):
            close()
        self.state.end_sessions(process)
        # Ends the task that calls, if it is of that process.
        self.executor.kill(process)

    def keep_main(self) -> None:
        """What supervises the main process: one that has ended is started again after a while."""
        if self.main is None:
            self.executor.sleep(RESTART_SECONDS)
            self.start_main()

    def mirror(self, process: str = "command") -> Mirror:
        """For commands, each given in a process of its own."""
        return Mirror(self.config, ports=SimulatedPorts(self, process))

    # Calls of ports

    @contextmanager
    def around(self, port: str, method: str, subject: str = "") -> Iterator[None]:
        self.call(port, method, subject)
        yield
        self.call(port, method, subject, done=True)

    def call(self, port: str, method: str, subject: str = "", done: bool = False) -> None:
        """Before the work of a call, or after it."""
        task = self.executor.current
        if task is None:
            return
        if self.executor.random.random() < self._lively:
            self.executor.yield_()
        if task.killed:
            raise TaskKilled(task.process)
        self._hook(port, method, subject, done)

    def _hook(self, port: str, method: str, subject: str, done: bool) -> None:
        self.calls += 1
        self.hook(Call(port, method, self.calls - 1, self.process, done, subject))

    def opened(self, close: Callable[[], object]) -> None:
        self._opened.setdefault(self.process, []).append(close)

    def _lake_call(self, call: LakeCall) -> None:
        self.call("lake", call.method, str(call.table or ""), call.done)

    def _log_call(self, call: LogCall) -> None:
        if call.done and call.operation == "put_new" and "/manifests/" in call.name:
            self._note_manifest(call.name)
        # Arrow calls the sink of a segment: no other task may run inside of it.
        if call.operation == "segment.write":
            self._hook("log", call.operation, call.name, call.done)
        else:
            self.call("log", call.operation, call.name, call.done)

    def _note_manifest(self, name: str) -> None:
        text = self.storage.peek(name)
        manifest = Manifest.from_json(text.decode()) if text is not None else None
        if manifest is not None and manifest.token in self.server.seen_by:
            self.drained.setdefault(name.split("/", maxsplit=1)[0], {})[manifest.to_lsn] = manifest.token

    # What the servers need

    def _microseconds(self) -> int:
        return int((self.executor.clock.elapsed + 946_684_800) * 1_000_000)

    def _grown(self) -> None:
        for wakeup in self.followers:
            wakeup.set()

    def _copied(self, source: CopySource, snapshot: ExportedSnapshot) -> Iterable[Row]:
        held = self.server.snapshots.get(snapshot.name)
        if held is None:
            raise ConnectionFailed(server="the scripted server", cause=f"snapshot {snapshot.name} is gone")
        self.copied[str(source.schema.id)] = self.executor.clock.elapsed
        return checks.rows_of(held.state, source)

    def _segment(self, uri: str) -> pa.Table:
        data = self.storage.peek(uri.removeprefix(URI))
        if data is None:
            self.broken.append(f"segment {uri} was needed, and is gone")
            raise FileNotFoundError(uri)
        return pq.read_table(pa.BufferReader(data), use_threads=False, pre_buffer=False)


class _Main:
    """A main process."""

    def __init__(self, world: World, process: str) -> None:
        self.process, self._world = process, world
        self.ports = SimulatedPorts(world, process)
        self.stop = world.executor.event()
        self.task: SimulatedTask = world.executor.spawn(process, process, self._body)

    def _body(self) -> None:
        try:
            Mirror(self._world.config, ports=self.ports).run(self.stop)
        except (Wal2LakeError, OSError) as error:
            # The command ends with it, and is started again.
            self._world.ended.append(error)


class _StateHook:
    def __init__(self, world: World) -> None:
        self._world = world

    def before(self, call: StateCall) -> None:
        self._world.call("state", call.method)

    def after(self, call: StateCall) -> None:
        world = self._world
        if call.method == "save_group":
            known = {name: group.logged_lsn for name, group in world.state.contents.groups.items()}
            world.server.known_positions = {name: lsn for name, lsn in known.items() if lsn is not None}
        world.call("state", call.method, done=True)
