"""The supervisor, the workers and the background tasks in simulated time, in many orders of their steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from simulation.executor import SimulatedExecutor
from wal2lake.config import Config, GroupConfig
from wal2lake.errors import ConnectionFailed, GroupHeld, Wal2LakeError
from wal2lake.retry import GROUP
from wal2lake.scheduling.background import BackgroundTasks
from wal2lake.scheduling.group_loop import GroupLoop, Stop
from wal2lake.scheduling.supervisor import LOOK_SECONDS, Supervisor
from wal2lake.scheduling.worker_pool import WorkerSlots, end
from wal2lake.state import GroupSpec, Listener, StateStore, TableRecord

if TYPE_CHECKING:
    from wal2lake.executor import Event

SEEDS = range(25)


@dataclass
class Loop:
    """The loop of a group that runs until it is stopped, or fails after some time."""

    executor: SimulatedExecutor
    fails_after: float | None = None
    error: Wal2LakeError = field(default_factory=lambda: ConnectionFailed(server="the source", cause="it is gone"))
    has_streamed: bool = True
    begins_again: bool = False
    """it ends instead of failing, and another loop of the group follows"""

    def run(self, stop: Stop, once: bool = False) -> tuple[TableRecord, ...]:
        began = self.executor.clock.monotonic()
        while not stop.is_set():
            if self.fails_after is not None and self.executor.clock.monotonic() - began >= self.fails_after:
                if self.begins_again:
                    return ()
                raise self.error
            self.executor.sleep(0.5)
        return ()


class Store:
    """The parts of a state store that a supervisor asks."""

    def __init__(self, executor: SimulatedExecutor) -> None:
        self._executor = executor
        self.specs: dict[str, GroupSpec] = {}
        self.notified = executor.event()

    def create(self) -> None:
        self._executor.yield_()

    def group_specs(self) -> dict[str, GroupSpec]:
        self._executor.yield_()
        return dict(self.specs)

    def listener(self) -> Listener:
        return cast("Listener", self)

    def wait(self, seconds: float) -> bool:
        heard = self.notified.wait(seconds)
        self.notified.clear()
        return heard

    def release(self) -> None: ...


class Run:
    """A supervisor with groups `a` and `b` of the configuration, and what it did."""

    def __init__(self, seed: int, **loops: Loop | Iterator[Loop]) -> None:
        self.executor = SimulatedExecutor(seed)
        self.store = Store(self.executor)
        self.began: list[tuple[str, float]] = []
        self.dropped: list[str] = []
        self._loops = loops
        config = Config(
            source={"dsn": "postgresql://db/shop"}, lake={"path": "lake"}, groups=[{"name": "a"}, {"name": "b"}]
        )
        self._supervisor = Supervisor(config, cast("StateStore", self.store), self._make, self._drop, self.executor)

    def _make(self, group: GroupConfig) -> GroupLoop:
        self.began.append((group.name, self.executor.clock.elapsed))
        loops = self._loops.get(group.name)
        loop = (loops if isinstance(loops, Loop) else next(loops or iter(()), None)) or Loop(self.executor)
        loop.executor = self.executor
        return cast("GroupLoop", loop)

    def _drop(self, group: GroupConfig) -> None:
        self.executor.yield_()
        self.dropped.append(group.name)
        del self.store.specs[group.name]

    def for_seconds(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Run until some seconds have passed; raises what the supervisor does."""

        def main() -> None:
            stop = self.executor.event()
            self.executor.start("stops", partial(self._stop, stop, seconds), daemon=True)
            self.executor.start("meanwhile", meanwhile)
            self._supervisor.run(stop, once=False)

        self.executor.run(main)

    def _stop(self, stop: Event, seconds: float) -> None:
        self.executor.sleep(seconds)
        stop.set()

    def times(self, group: str) -> list[float]:
        return [at for name, at in self.began if name == group]


def failing(after: float, **facts: object) -> Loop:
    return Loop(cast("SimulatedExecutor", None), after, **facts)  # type: ignore[arg-type]  # checked by the dataclass


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_that_fails_is_started_again_after_growing_pauses_while_the_other_runs(seed: int) -> None:
    run = Run(seed, a=failing(after=1.0))
    run.for_seconds(600)
    assert len(run.times("b")) == 1
    pauses = [later - earlier for earlier, later in zip(run.times("a"), run.times("a")[1:], strict=False)]
    assert len(pauses) > 3
    for number, pause in enumerate(pauses, 1):
        # It takes a second to fail, and up to two turns of the supervisor to see that and to see that it is time.
        assert GROUP.after(number) + 0.99 < pause < GROUP.after(number) + 2.0


@pytest.mark.parametrize("seed", SEEDS)
def test_when_every_group_has_failed_for_good_the_run_ends_with_the_error(seed: int) -> None:
    held = GroupHeld(group="a", holder="another process")
    run = Run(seed, a=failing(after=1.0, error=held), b=failing(after=5.0, error=held))
    with pytest.raises(GroupHeld):
        run.for_seconds(3600)
    assert run.executor.clock.elapsed < 10


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("begins_again", [False, True])
def test_a_group_that_has_streamed_is_started_again_however_often_it_then_fails_at_its_start(
    seed: int, begins_again: bool
) -> None:
    """`begins_again`: its first loop has not failed but has changed the capture mode, and the server goes down then."""

    def loops() -> Iterator[Loop]:
        yield failing(after=5.0, begins_again=begins_again)
        for _ in range(4):
            yield failing(after=0.0, has_streamed=False)

    run = Run(seed, a=loops(), b=loops())
    run.for_seconds(3600)
    assert [len(run.times(group)) for group in "ab"] == [6, 6]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_command_starts_and_drops_a_group_at_once_while_the_others_run(seed: int) -> None:
    run = Run(seed)

    def meanwhile() -> None:
        run.executor.sleep(100)
        run.store.specs["c"] = GroupSpec("c", made=True, tables=("public.t",))
        run.store.notified.set()
        run.executor.sleep(1)
        # The configured groups begin side by side.
        *configured, last = (name for name, _ in run.began)
        assert (sorted(configured), last) == (["a", "b"], "c")
        run.store.specs["c"] = GroupSpec("c", made=True, tables=("public.t",), dropping=True)
        run.store.notified.set()
        run.executor.sleep(LOOK_SECONDS)
        assert run.dropped == ["c"]

    run.for_seconds(200, meanwhile)
    assert run.executor.clock.elapsed < 202, "a stop ends all of them"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_workers_are_never_too_many_and_none_of_those_who_wait_is_forgotten(seed: int) -> None:
    executor, decide = SimulatedExecutor(seed), random.Random(seed)
    names = [f"t{number}" for number in range(8)]
    done = dict.fromkeys(names, 0)
    under_way: list[str] = []

    def work(name: str) -> None:
        under_way.append(name)
        assert len(under_way) <= 3
        executor.sleep(decide.random())
        under_way.remove(name)
        done[name] += 1

    def main() -> None:
        slots, wake, jobs = WorkerSlots("apply", 3, executor), executor.event(), []
        while min(done.values()) < 5:
            wake.clear()
            for name in decide.sample(names, len(names)):
                if name not in under_way and slots.may_begin(name, wake.set):
                    jobs.append(slots.begin(name, partial(work, name)))
            assert wake.wait(60), "whoever waits is called"
        end(jobs, lambda: None, executor)
        slots.close()
        assert not under_way

    executor.run(main)
    assert max(done.values()) <= min(done.values()) + 5, "nobody is passed over again and again"


@pytest.mark.parametrize("seed", SEEDS)
def test_background_tasks_are_done_one_at_a_time_of_each_kind_and_their_failures_end_nothing_else(seed: int) -> None:
    executor, decide = SimulatedExecutor(seed), random.Random(seed)
    running: list[str] = []
    finished: list[str] = []

    def work(kind: str) -> str:
        assert kind not in running
        running.append(kind)
        executor.sleep(decide.random())
        running.remove(kind)
        if decide.random() < 0.3:
            raise OSError("no space left on device")
        return kind

    def main() -> None:
        woken = executor.event()
        background = BackgroundTasks("g", woken.set, executor)
        while len(finished) < 30:
            woken.clear()
            background.finish()
            for kind in ("look", "save", "delete", "drop"):
                background.begin(kind, partial(work, kind), finished.append)
            # Work that failed is not started again at once, and then nothing may be under way.
            assert woken.wait(60) or not running, "the loop is woken when something is done"
        background.close()
        background.finish(ending=True)
        assert not running and not background.begin("look", partial(work, "look"))

    executor.run(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_background_task_that_fails_at_once_does_not_keep_the_loop_busy(seed: int) -> None:
    executor = SimulatedExecutor(seed)
    begun: list[float] = []

    def work() -> None:
        begun.append(executor.clock.elapsed)
        raise OSError("no space left on device")

    def main() -> None:
        woken = executor.event()
        background = BackgroundTasks("g", woken.set, executor)
        while executor.clock.elapsed < 60.0:
            woken.clear()
            background.finish()
            background.begin("look", work)
            woken.wait(0.5)
        background.close()

    executor.run(main)
    assert 10 < len(begun) < 25, "with growing pauses, of some seconds at most"
