"""Faults of a simulation: each happens at a call of a port, before its work or after it was done.

    draw(chance)    the faults of a seed
    Faults          the hook of a world that has them happen

A fault is an error of the call, a delay, or something that happens to the world at that moment: a crash, a lost slot,
a lease that somebody else takes. A world calls its hook no more once its workload has ended, so that the mirror can
come to rest. What happened is noted in `Faults.happened`.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from simulation.disturbances import Disturbances, Kind
from simulation.executor import MAIN
from simulation.hooked import Call
from wal2lake.errors import CommitUnknown, ConnectionFailed, LakeError

if TYPE_CHECKING:
    from simulation.world import World


class Port(StrEnum):
    STREAM = "stream"
    LANE = "lane"
    """what is asked through SQL where there is no replication connection"""
    CONTROL = "control"
    CATALOG = "catalog"
    SOURCE = "source"
    LOG = "log"
    LAKE = "lake"
    STATE = "state"
    LEASE = "lease"
    LISTENER = "listener"


@dataclass(frozen=True)
class Fault:
    port: Port
    index: int
    """calls of a port are counted from 0, over all processes"""
    done: bool
    """False: before the work. True: after it"""
    kind: Kind
    seconds: float = 0.0
    """how long it lasts"""
    times: int = 1
    """for so many calls in a row: of errors alone"""

    @classmethod
    def parse(cls, text: str) -> Fault:
        """The fault that has this code."""
        port, index, when, kind, seconds, times = text.split("/")
        return cls(Port(port), int(index), when == "after", Kind[kind.upper()], float(seconds), int(times))

    @property
    def code(self) -> str:
        """For command lines."""
        when = "after" if self.done else "before"
        return f"{self.port}/{self.index}/{when}/{self.kind.name.lower()}/{self.seconds:g}/{self.times}"

    def __str__(self) -> str:
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        often = f", {self.times} times" if self.times > 1 else ""
        return f"{'after' if self.done else 'before'} {self.port} call {self.index}: {self.kind}{lasts}{often}"


LASTING = frozenset({Kind.DELAY, Kind.LOSE_LEASE, Kind.FILL_STORAGE, Kind.HALF_OPEN, Kind.RESTART_SERVER})
_LIKELIHOOD: Mapping[Kind, int] = {
    Kind.ERROR: 12, Kind.DELAY: 6, Kind.CRASH_CAPTURE: 4, Kind.CRASH_MAIN: 4, Kind.CRASH_BOTH: 2, Kind.LOSE_SLOT: 1,
    Kind.LOSE_LEASE: 2, Kind.FILL_STORAGE: 2, Kind.ROLL_BACK: 1, Kind.HALF_OPEN: 2, Kind.RESTART_SERVER: 2,
    Kind.CRASH_LAKE: 2,
}  # fmt: skip
CALLS: Mapping[Port, int] = {
    Port.STREAM: 100, Port.LANE: 300, Port.CONTROL: 10, Port.CATALOG: 8, Port.SOURCE: 100, Port.LOG: 600, Port.LAKE: 40,
    Port.STATE: 120, Port.LEASE: 40, Port.LISTENER: 30,
}  # fmt: skip
"""about so many calls a run makes of each port"""


def draw(chance: random.Random, ports: Sequence[Port] = (), most: int = 10) -> tuple[Fault, ...]:
    """The faults of a seed; some seeds have none, and many have theirs at one or two ports."""
    ports = ports or chance.sample(list(Port), chance.choice((1, 2, len(Port))))
    return tuple(_drawn(chance, ports) for _ in range(chance.choice((0, 1, 2, 3, 5, most))))


def _drawn(chance: random.Random, ports: Sequence[Port]) -> Fault:
    port = chance.choice(ports)
    kind = chance.choices(list(_LIKELIHOOD), list(_LIKELIHOOD.values()))[0]
    # A run is as often at its beginning as in its midst.
    index = int(CALLS[port] ** chance.random()) - 1 if chance.random() < 0.4 else chance.randrange(CALLS[port])
    seconds = chance.choice((0.3, 1.0, 3.0, 12.0, 30.0)) if kind in LASTING else 0.0
    times = chance.choice((1, 1, 1, 3)) if kind is Kind.ERROR else 1
    return Fault(port, index, chance.random() < 0.5, kind, seconds, times)


NEVER_FAILS: Mapping[Port, frozenset[str]] = {
    Port.STREAM: frozenset({"finish", "close"}),
    Port.LANE: frozenset({"cancel", "close"}),
    Port.CONTROL: frozenset({"close", "alive", "fileno"}),
    Port.CATALOG: frozenset({"close"}),
    Port.SOURCE: frozenset({"close", "interrupt", "table_id", "oid_of", "append_only"}),
    Port.LOG: frozenset({"segment.abandon"}),
    Port.LAKE: frozenset({"maintain", "stop", "kill", "cancel", "due"}),
    Port.STATE: frozenset({"limit_waits", "close"}),
    Port.LEASE: frozenset({"release"}),
    Port.LISTENER: frozenset({"release"}),
}
"""methods that raise nothing, whatever happens"""
COMMITS = frozenset({"copy", "apply", "evolve", "exchange", "restate"})
"""of the lake"""


class Faults:
    """Has faults happen to a world. Calls of each port are counted on their own, over all processes of the mirror."""

    def __init__(self, faults: Iterable[Fault], lake_seconds: float = 0.0) -> None:
        """`lake_seconds`: how long each commit in the lake takes."""
        self._lake_seconds = lake_seconds
        self.calls: Counter[Port] = Counter()
        self.happened: list[str] = []
        self.met: list[Fault] = []
        self._at: dict[tuple[Port, int, bool], Fault] = {}
        for fault in faults:
            for index in range(fault.index, fault.index + fault.times):
                self._at.setdefault((fault.port, index, fault.done), fault)
        self._under_way: dict[object, list[tuple[Port, str, int]]] = {}
        """the calls that each task is in: one may be inside another"""
        self._world: World | None = None

    def attach(self, world: World) -> None:
        self._world, self._disturb = world, Disturbances(world)

    def __call__(self, call: Call) -> None:
        world = self._world
        if world is None or call.process == MAIN:
            # The simulation itself, and commands: what they do when they fail is up to people.
            return
        port, method = _named(call.port, call.method)
        under_way = self._under_way.setdefault(world.executor.current, [])
        if not call.done:
            index = self.calls[port]
            self.calls[port] += 1
            under_way.append((port, method, index))
            if self._lake_seconds and port is Port.LAKE and method in COMMITS:
                world.executor.sleep(self._lake_seconds)
        else:
            # Those that failed have left theirs behind.
            while under_way[-1][:2] != (port, method):
                under_way.pop()
            index = under_way.pop()[2]
        self._meet(world, call, port, method, self._at.get((port, index, call.done)))

    def _meet(self, world: World, call: Call, port: Port, method: str, fault: Fault | None) -> None:
        if fault is None:
            return
        self.met.append(fault)
        what = f"{port}.{method} {call.subject}".strip()
        self.happened.append(f"{world.executor.clock.elapsed:.3f} s, {call.process}: {what}: {fault}")
        if fault.kind is Kind.DELAY:
            world.executor.sleep(fault.seconds)
        elif fault.kind is not Kind.ERROR:
            self._disturb(fault.kind, fault.seconds)
        elif method not in NEVER_FAILS[port]:
            raise failure(port, method, call.done)


@cache
def _named(port: str, method: str) -> tuple[Port, str]:
    kind, _, name = method.rpartition(".")
    if port == Port.STATE and kind:
        return Port(kind), name
    return Port(port), method


def failure(port: Port, method: str, done: bool) -> Exception:
    """What a port raises that fails by no fault of its caller's."""
    match port:
        case Port.LOG:
            return OSError(errno.EIO, os.strerror(errno.EIO), method)
        case Port.LAKE if done and method in COMMITS:
            return CommitUnknown(table="a table", cause="its answer did not arrive")
        case Port.LAKE:
            return LakeError(operation=method, cause="a simulated failure")
        case Port.STATE | Port.LEASE | Port.LISTENER:
            return ConnectionFailed(server="the state store", cause="the connection broke")
        case _:
            return ConnectionFailed(server="the scripted server", cause="the connection broke")
