"""Concurrent tasks and how they wait: a protocol, so that a simulation can run them one at a time.

All concurrent code gets an `Executor` and asks it for time, tasks, pools and synchronisation objects. In production
these are threads and the objects of the standard library; the executor of `tests/simulation` runs one task at a time,
in simulated time, in an order that a seed decides.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from .clock import SYSTEM_CLOCK, Clock

__all__ = [
    "SYSTEM_EXECUTOR", "CancelledError", "Condition", "Event", "Executor", "Future", "Lock", "Pool", "Queue", "Task",
    "ThreadExecutor", "Wakeup",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")


class Event(Protocol):
    """A flag that tasks wait for."""

    def set(self) -> None:
        """Set it; every waiting task continues, even if it is cleared before that task runs."""

    def clear(self) -> None: ...
    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until it is set; return whether it was."""


class Lock(Protocol):
    """Held by one task at a time; not twice by the same one."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...


class Condition(Lock, Protocol):
    """A reentrant lock with which tasks wait for changes of what it protects."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Release the lock and wait at most `timeout` seconds until `predicate` holds; return its last value."""

    def notify_all(self) -> None:
        """Make every waiting task evaluate its predicate again."""


class Task(Protocol):
    """A function that runs concurrently."""

    def join(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for its end."""

    def is_alive(self) -> bool: ...


class Queue(Protocol[T]):
    """A FIFO queue; any task may use it."""

    def put(self, item: T, /) -> None: ...
    def get(self) -> T:
        """Wait for an item and remove it."""

    def qsize(self) -> int: ...


class Pool(Protocol):
    """Runs submitted functions in their order, a bounded number at a time."""

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on a task of the pool. Raises RuntimeError after `shutdown`."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more; wait for everything submitted, or cancel what has not begun."""


class Wakeup(Protocol):
    """Ends the wait of a task that waits for several things, for example sockets."""

    def fileno(self) -> int:
        """A descriptor for `Executor.wait_readable`; in production also for `select`."""

    def set(self) -> None:
        """Make it readable until `clear`. Any task may call it; it never blocks."""

    def clear(self) -> None: ...
    def close(self) -> None: ...


class Executor(Protocol):
    """Time, tasks and synchronisation objects."""

    @property
    def clock(self) -> Clock: ...

    def event(self) -> Event: ...
    def lock(self) -> Lock: ...
    def condition(self) -> Condition: ...
    def queue(self) -> Queue[Any]: ...
    def wakeup(self) -> Wakeup: ...

    def start(self, name: str, target: Callable[[], object], daemon: bool = False) -> Task:
        """Run a function concurrently. A run does not wait for daemons to end."""

    def pool(self, name: str, workers: int) -> Pool: ...

    def wait(self, futures: Collection[Future[Any]], timeout: float) -> set[Future[Any]]:
        """Wait at most `timeout` seconds for all futures; return those that are not done."""

    def wait_readable(self, descriptors: Sequence[int], timeout: float) -> bool:
        """Wait at most `timeout` seconds until one of the wake-ups is set; return whether one is."""

    def sleep(self, seconds: float) -> None: ...


class PipeWakeup:
    """A wake-up that can be waited for together with sockets."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._readable

    def set(self) -> None:
        # A full pipe is readable anyway.
        with suppress(BlockingIOError):
            os.write(self._writable, b"x")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._readable, 4096)

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)


class ThreadExecutor:
    """Threads and real time; it returns the standard library's own objects."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock

    def event(self) -> threading.Event:
        return threading.Event()

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def queue(self) -> SimpleQueue[Any]:
        return SimpleQueue()

    def wakeup(self) -> PipeWakeup:
        return PipeWakeup()

    def start(self, name: str, target: Callable[[], object], daemon: bool = False) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=daemon)
        thread.start()
        return thread

    def pool(self, name: str, workers: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(workers, thread_name_prefix=name)

    def wait(self, futures: Collection[Future[Any]], timeout: float) -> set[Future[Any]]:
        return wait_for_futures(futures, timeout).not_done

    def wait_readable(self, descriptors: Sequence[int], timeout: float) -> bool:
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_EXECUTOR = ThreadExecutor()
