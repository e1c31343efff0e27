"""What one seed stands for: how long its workload is, the faults that it meets, and what may be heard of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from simulation.busy import Busy
from simulation.disturbances import Kind
from simulation.faults import Fault, Faults, Port, draw
from simulation.managed import Managed
from simulation.workload import Changes, Life
from simulation.world import Workload, World, default_groups

WORKLOADS: Mapping[str, Callable[[int], Workload]] = {
    "busy": Busy, "life": Life, "managed": Managed, "changes": lambda seed: Changes(),
    "standby": lambda seed: Busy(seed, standby=True),
}  # fmt: skip
DRAWN = ("busy", "life", "managed")
"""those that a seed chooses from"""
CAPTURES: Mapping[str, Sequence[str]] = {
    "busy": ("wal", "poll", "trigger", "auto"), "life": ("wal", "wal", "poll"), "managed": ("wal", "wal", "poll"), "changes": ("wal",),
    "standby": ("trigger", "auto"),
}  # fmt: skip
"""the capture modes that a seed chooses from"""


@dataclass(frozen=True)
class Scenario:
    seed: int
    workload: str
    """one of WORKLOADS"""
    steps: int
    faults: tuple[Fault, ...]
    lake_seconds: float
    """how long each commit in the lake takes"""
    capture: str = "wal"
    """one of CAPTURES: the mode of the configured group"""

    @classmethod
    def of(cls, seed: int, ports: Sequence[Port] = (), workload: str = "", capture: str = "") -> Scenario:
        """`ports`: where all faults happen; by default the seed says that, the workload and the capture mode, too."""
        chance = random.Random(f"scenario {seed}")
        steps, faults = chance.choice((5, 15, 30, 60)), draw(chance, ports)
        lake_seconds = chance.choice((0.0, 0.0, 0.3, 2.0))
        workload = workload or chance.choice(DRAWN)
        return cls(seed, workload, steps, faults, lake_seconds, capture or chance.choice(CAPTURES[workload]))

    @classmethod
    def calm(cls, seed: int, workload: str) -> Scenario:
        """A workload without faults."""
        return cls(seed, workload, 60, (), 0.0)

    @property
    def command(self) -> str:
        """What repeats it."""
        parts = [f"make simulate SEEDS=1 SEED={self.seed}"]
        usual = Scenario.of(self.seed)
        if self.workload != usual.workload:
            parts.append(f"WORKLOAD={self.workload}")
        if (self.steps, self.faults) != (usual.steps, usual.faults):
            parts.append(f"STEPS={self.steps} FAULTS='{' '.join(fault.code for fault in self.faults) or 'none'}'")
        if self.capture != usual.capture:
            parts.append(f"CAPTURE={self.capture}")
        if self.lake_seconds != usual.lake_seconds:
            parts.append(f"LAKE_SECONDS={self.lake_seconds:g}")
        return " ".join(parts)


EXPLAINED: Mapping[str, frozenset[Kind]] = {
    "unexpected ": frozenset(),
    "lacks rows": frozenset(),
    " is damaged": frozenset(),
    "was restored to an earlier point": frozenset(),
    "moved or re-created by somebody else": frozenset(),
    "was re-created": frozenset({Kind.LOSE_SLOT}),
    "was invalidated": frozenset({Kind.LOSE_SLOT}),
    "went back from": frozenset({Kind.ROLL_BACK}),
}
"""words of errors that have to have a reason: one of these faults"""


def run(scenario: Scenario) -> World:
    """Run it with all checks. What it raises tells which faults have happened."""
    faults = Faults(scenario.faults, scenario.lake_seconds)
    workload = WORKLOADS[scenario.workload](scenario.seed)
    world = World(scenario.seed, workload, faults, scenario.steps, default_groups(scenario.capture))
    faults.attach(world)
    try:
        with _heard() as messages:
            world.run()
        kinds = {fault.kind for fault in faults.met}
        strange = [text for text in messages for words, why in EXPLAINED.items() if words in text and not why & kinds]
        assert not strange, f"an error without a reason: {strange[0]}"
    except BaseException as error:
        for happened in faults.happened:
            error.add_note(happened)
        error.add_note(f"again: {scenario.command}")
        raise
    return world


class _Listener(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def _heard() -> Iterator[list[str]]:
    """The warnings and errors that the mirror logs, which are not shown."""
    logger, messages = logging.getLogger("wal2lake"), list[str]()
    handler, before = _Listener(messages), (logger.level, logger.propagate)
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
