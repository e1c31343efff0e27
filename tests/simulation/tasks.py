"""Simulated tasks, and what they wait for and share: each wait goes through the executor's `park` and `unpark`."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from greenlet import greenlet

if TYPE_CHECKING:
    from simulation.executor import SimulatedExecutor

P = ParamSpec("P")
T = TypeVar("T")

_OWN_FILES = {__file__, str(Path(__file__).with_name("executor.py"))}


class TaskKilled(BaseException):
    """The process of a task has crashed."""


class SimulatedTask:
    def __init__(
        self, executor: SimulatedExecutor, name: str, process: str, daemon: bool, target: Callable[[], object]
    ) -> None:
        self.name, self.process, self.daemon = name, process, daemon
        self._executor, self._target = executor, target
        self._joining: list[SimulatedTask] = []
        self.ready = True
        self.notified = False
        self.killed = False
        self.done = False
        self.due: float | None = None
        """when its wait is over without what it waits for"""
        self.waits_for = "its start"
        self.coroutine = greenlet(self._body, executor.hub)
        """runs while it has the baton; switches to that of another task where it waits"""

    def join(self, timeout: float | None = None) -> None:
        if not self.done:
            self._executor.park([self._joining], timeout, f"the end of {self.name}")

    def is_alive(self) -> bool:
        return not self.done

    def stack(self) -> str:
        """Where it waits, without the steps of the executor itself."""
        frame = sys._getframe() if self._executor.current is self else self.coroutine.gr_frame
        steps = traceback.extract_stack(frame) if frame is not None else []
        return "".join(traceback.format_list([step for step in steps if step.filename not in _OWN_FILES][-8:]))

    def _body(self) -> None:
        error: BaseException | None = None
        try:
            if not self.killed:
                self._target()
        except BaseException as raised:
            # That of a task that was killed vanishes with it, whatever it is.
            error = None if self.killed else raised
        self.done = True
        self._executor.unpark(self._joining, by_task=False)
        self._executor.ended(self, error)


class SimulatedEvent:
    def __init__(self, executor: SimulatedExecutor) -> None:
        self._executor = executor
        self._set = False
        self._waiting: list[SimulatedTask] = []

    def set(self) -> None:
        if not self._executor.muted:
            self._set = True
            self._executor.unpark(self._waiting)

    def clear(self) -> None:
        if not self._executor.muted:
            self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            self._executor.yield_()
            return True
        return self._executor.park([self._waiting], timeout, "an event")


class SimulatedCondition:
    """A lock that its holder may take again, and waiting for a change under it. Serves as the plain lock, too."""

    def __init__(self, executor: SimulatedExecutor, again: bool = True) -> None:
        self._executor, self._again = executor, again
        self._holder: SimulatedTask | None = None
        self._times = 0
        self._contending: list[SimulatedTask] = []
        self._waiting: list[SimulatedTask] = []

    def __enter__(self) -> bool:
        me = self._executor.current
        if me is not None and self._holder is me and not self._again:
            raise AssertionError(f"{me.name} takes a lock that it holds")
        self._await_turn(me)
        if me is not None:
            self._holder = me
            self._times += 1
        return True

    def _await_turn(self, me: SimulatedTask | None) -> None:
        while self._holder is not None and self._holder is not me:
            self._executor.park([self._contending], None, f"a lock that {self._holder.name} holds")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        # A task that was killed while it waited does not hold it.
        if self._holder is not None and self._holder is self._executor.current:
            self._times -= 1
            if not self._times:
                self._release()

    def _release(self) -> None:
        self._holder = None
        self._executor.unpark(self._contending, by_task=False)

    def wait(self, timeout: float | None = None) -> bool:
        me, times = self._executor.current, self._times
        assert me is not None and self._holder is me, "the lock is not held"
        self._times = 0
        self._release()
        notified = self._executor.park([self._waiting], timeout, "a condition")
        self._await_turn(me)
        self._holder, self._times = me, times
        return notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else self._executor.clock.monotonic() + timeout
        while not (holds := predicate()):
            left = None if until is None else until - self._executor.clock.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return holds

    def notify_all(self) -> None:
        self._executor.unpark(self._waiting)


class SimulatedQueue:
    def __init__(self, executor: SimulatedExecutor) -> None:
        self._executor = executor
        self._items: deque[Any] = deque()
        self._waiting: list[SimulatedTask] = []

    def put(self, item: Any, /) -> None:
        if not self._executor.muted:
            self._items.append(item)
            self._executor.unpark(self._waiting)

    def get(self) -> Any:
        self._executor.yield_()
        while not self._items:
            self._executor.park([self._waiting], None, "a queue")
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)


class SimulatedFuture(Future[T]):
    def __init__(self, executor: SimulatedExecutor) -> None:
        super().__init__()
        # All its waiting goes through this one attribute.
        self._condition = executor.condition()  # type: ignore[assignment]  # it has the methods that a future calls


class SimulatedPool:
    def __init__(self, executor: SimulatedExecutor, name: str, workers: int) -> None:
        self._executor, self._name, self._most = executor, name, workers
        self._work: deque[tuple[SimulatedFuture[Any], Callable[[], Any]]] = deque()
        self._changed: list[SimulatedTask] = []
        self._workers: list[SimulatedTask] = []
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: SimulatedFuture[T] = SimulatedFuture(self._executor)
        if self._executor.muted:
            return future
        self._work.append((future, lambda: work(*args, **kwargs)))
        if self._idle < len(self._work) and len(self._workers) < self._most:
            name = f"{self._name}_{len(self._workers)}"
            self._workers.append(self._executor.start(name, self._serve, daemon=True))
        self._executor.unpark(self._changed)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if cancel_futures:
            while self._work:
                self._work.popleft()[0].cancel()
        self._executor.unpark(self._changed)
        for worker in self._workers if wait else ():
            worker.join()

    def _serve(self) -> None:
        while True:
            while not self._work:
                if self._closed:
                    return
                self._idle += 1
                try:
                    self._executor.park([self._changed], None, "work")
                finally:
                    self._idle -= 1
            future, work = self._work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            self._do(future, work)

    def _do(self, future: SimulatedFuture[Any], work: Callable[[], Any]) -> None:
        try:
            result = work()
        except BaseException as error:
            if isinstance(error, TaskKilled) or self._executor.muted:
                raise
            future.set_exception(error)
        else:
            future.set_result(result)


class SimulatedWakeup:
    def __init__(self, executor: SimulatedExecutor, number: int) -> None:
        self._executor, self._number = executor, number
        self.readable = False
        self.waiting: list[SimulatedTask] = []

    def fileno(self) -> int:
        return self._number

    def set(self) -> None:
        if not self._executor.muted:
            self.readable = True
            self._executor.unpark(self.waiting)

    def clear(self) -> None:
        self.readable = False

    def close(self) -> None:
        self._executor.forget(self._number)
