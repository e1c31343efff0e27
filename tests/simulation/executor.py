"""Tasks that run one at a time under simulated time, in an order that a seed decides.

A task is a coroutine of one thread (a greenlet), so exactly one runs: the one that has the baton. It gives the baton up
at waits and at `yield_`, which ports call where another task may get in between; who has it next is drawn by the seed's
generator.
When no task can run, time jumps to the next timeout. The same seed gives the same run, as long as the code that runs
takes its decisions from nothing but its input, this executor's clock and `random`, seeded too.

A process that crashes is all tasks that were started in it: `kill` raises TaskKilled in each at its wait, and at every
wait and `yield_` after that; what such a task sets, puts, submits or starts while it ends has no effect.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import greenlet

from simulation.tasks import (
    SimulatedCondition,
    SimulatedEvent,
    SimulatedPool,
    SimulatedQueue,
    SimulatedTask,
    SimulatedWakeup,
    TaskKilled,
)

T = TypeVar("T")

START_SECONDS = 1_000_000.0
"""what the clock that only goes forward begins with: it is as far from zero as that of a machine"""
START = datetime(2030, 1, 1, tzinfo=UTC)
MOST_SWITCHES = 100_000
"""so often the baton may be handed over while time stands still"""
REAL_SECONDS = 60.0
"""so long a task may run, in real time, without a wait: one that takes longer waits for what is not the executor's"""
MAIN = "main"


class Stuck(AssertionError):
    """No task can go on, or they go on without end; names each with what it waits for and its stack."""


class SimulatedClock:
    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return START_SECONDS + self.elapsed


class SimulatedExecutor:
    def __init__(self, seed: int) -> None:
        self.clock = SimulatedClock()
        self.random = random.Random(seed)
        self.current: SimulatedTask | None = None
        self.trace: list[tuple[float, str]] = []
        """who got the baton, and when"""
        self._tasks: list[SimulatedTask] = []
        self._wakeups: dict[int, SimulatedWakeup] = {}
        self._made = 0
        self._steps = 0
        self._switches = 0
        """steps since time moved"""
        self._limit = 0.0
        self._error: BaseException | None = None
        self.hub = greenlet.getcurrent()
        """what a task goes back to when it ends"""

    # ---- the run

    def run(self, main: Callable[[], T], limit: float = 86_400.0) -> T:
        """Run a function as the first task, and all that it starts; what it returns.

        Ends when every task that is no daemon has ended; the others are killed then. Raises what a task raised, and
        Stuck if nobody can go on, or simulated time passes `limit` seconds.
        """
        results: list[T] = []
        self._limit = self.clock.elapsed + limit
        self.hub = greenlet.getcurrent()
        self._start(MAIN, lambda: results.append(main()), MAIN)
        with self._watched():
            while self._tasks:
                # Comes back here whenever a task ends.
                self._pass_on(self._next())
        self.current = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return results[0]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """End a task with Stuck that waits for something real. Signals reach the main thread alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        over, watched = threading.Event(), threading.get_ident()

        def watch() -> None:
            seen = -1
            while not over.wait(REAL_SECONDS):
                if seen == self._steps:
                    signal.pthread_kill(watched, signal.SIGUSR1)
                seen = self._steps

        def end(*_: object) -> None:
            name = self.current.name if self.current is not None else "nobody"
            raise Stuck(self._described(f"{name} keeps the baton: does it wait for a lock that is not simulated?"))

        before = signal.signal(signal.SIGUSR1, end)
        watching = threading.Thread(target=watch, name="watches-simulation", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
            signal.signal(signal.SIGUSR1, before)

    def kill(self, process: str) -> None:
        """Crash a process: all tasks that were started in it."""
        self._kill([task for task in self._tasks if task.process == process])
        if self.muted:
            raise TaskKilled(process)

    def processes(self, wanted: Callable[[str], bool]) -> list[str]:
        """The processes with tasks that have not ended nor been killed, in the order of their start."""
        return [*dict.fromkeys(task.process for task in self._tasks if wanted(task.process) and not task.killed)]

    def spawn(self, process: str, name: str, target: Callable[[], object], daemon: bool = False) -> SimulatedTask:
        """Start a task in a process of its own; what it starts is in that process, too."""
        return self._start(name, target, process, daemon)

    def yield_(self) -> None:
        """Another task may run here."""
        task = self._running()
        if not task.killed:
            task.waits_for = "its turn"
            self._switch(task)
        if task.killed:
            raise TaskKilled(task.process)

    # ---- the contract of an executor

    def event(self) -> SimulatedEvent:
        return SimulatedEvent(self)

    def lock(self) -> SimulatedCondition:
        return SimulatedCondition(self, again=False)

    def condition(self) -> SimulatedCondition:
        return SimulatedCondition(self)

    def queue(self) -> SimulatedQueue:
        return SimulatedQueue(self)

    def wakeup(self) -> SimulatedWakeup:
        self._made += 1
        # Negative: no descriptor of a machine is.
        made = self._wakeups[-self._made] = SimulatedWakeup(self, -self._made)
        return made

    def start(self, name: str, target: Callable[[], object], daemon: bool = False) -> SimulatedTask:
        process = self.current.process if self.current is not None else MAIN
        return self._start(name, target, process, daemon)

    def pool(self, name: str, workers: int) -> SimulatedPool:
        return SimulatedPool(self, name, workers)

    def wait(self, futures: Collection[Future[Any]], timeout: float) -> set[Future[Any]]:
        until = self.clock.monotonic() + timeout
        one_is_done = self.event()
        for future in futures:
            future.add_done_callback(lambda _: one_is_done.set())
        while True:
            one_is_done.clear()
            left = {future for future in futures if not future.done()}
            if not left or self.clock.monotonic() >= until:
                return left
            one_is_done.wait(until - self.clock.monotonic())

    def wait_readable(self, descriptors: Sequence[int], timeout: float) -> bool:
        wakeups = [self._wakeups[number] for number in descriptors]
        if any(wakeup.readable for wakeup in wakeups):
            self.yield_()
            return True
        return self.park([wakeup.waiting for wakeup in wakeups], timeout, "a wake-up")

    def sleep(self, seconds: float) -> None:
        self.park([], seconds, "some time to pass")

    # ---- what the objects above are made of

    @property
    def muted(self) -> bool:
        """Whether what runs has no effect: its process has crashed."""
        return self.current is not None and self.current.killed

    def park(self, places: Sequence[list[SimulatedTask]], timeout: float | None, waits_for: str) -> bool:
        """Wait in several places; whether one of them was unparked in time."""
        task = self._running()
        if not task.killed:
            for place in places:
                place.append(task)
            task.ready = task.notified = False
            task.waits_for = waits_for
            task.due = None if timeout is None else self.clock.elapsed + max(0.0, timeout)
            self._switch(task)
            for place in places:
                if task in place:
                    place.remove(task)
            task.due = None
        if task.killed:
            raise TaskKilled(task.process)
        return task.notified

    def unpark(self, place: list[SimulatedTask], by_task: bool = True) -> None:
        """Have those who wait somewhere go on. `by_task`: it is the doing of the task that runs."""
        if by_task and self.muted:
            return
        for task in place:
            task.ready = task.notified = True
        place.clear()

    def forget(self, number: int) -> None:
        self._wakeups.pop(number, None)

    def ended(self, task: SimulatedTask, error: BaseException | None) -> None:
        """A task has come to its end, with the baton in its hand."""
        self._tasks.remove(task)
        self._error = self._error or error
        if self._error is not None or all(other.daemon for other in self._tasks):
            self._kill(self._tasks)

    def _start(self, name: str, target: Callable[[], object], process: str, daemon: bool = False) -> SimulatedTask:
        task = SimulatedTask(self, name, process, daemon, target)
        self._tasks.append(task)
        # What a crashed process starts never begins.
        task.killed = self.muted
        return task

    def _running(self) -> SimulatedTask:
        if self.current is None:
            raise RuntimeError("only a task can wait: call it within run()")
        return self.current

    def _switch(self, task: SimulatedTask) -> None:
        chosen = self._next()
        if chosen is not task:
            self._pass_on(chosen)

    def _pass_on(self, task: SimulatedTask) -> None:
        self.current = task
        self.trace.append((self.clock.elapsed, task.name))
        task.coroutine.switch()

    def _next(self) -> SimulatedTask:
        """Who runs next; time moves on if nobody can run otherwise."""
        now = self.clock.elapsed
        able = [task for task in self._tasks if task.ready or (task.due is not None and task.due <= now)]
        self._steps += 1
        self._switches += 1
        if not able:
            timed = [task.due for task in self._tasks if task.due is not None]
            if timed and min(timed) <= self._limit:
                self._switches = 0
                now = self.clock.elapsed = min(timed)
                able = [task for task in self._tasks if task.due is not None and task.due <= now]
        if not able or self._switches > MOST_SWITCHES:
            reason = "tasks run without end" if able else "no task can go on"
            self._error = self._error or Stuck(self._described(reason))
            self._switches = 0
            self._kill(self._tasks)
            able = self._tasks
        chosen = self.random.choice(able)
        chosen.ready = True
        return chosen

    def _described(self, reason: str) -> str:
        tasks = [f"-- {task.name} ({task.process}) waits for {task.waits_for}\n{task.stack()}" for task in self._tasks]
        return "\n".join([f"{reason}, after {self.clock.elapsed:.3f} s", *tasks])

    def _kill(self, tasks: Collection[SimulatedTask]) -> None:
        for task in tasks:
            task.killed = task.ready = True
