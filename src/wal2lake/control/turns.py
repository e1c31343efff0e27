"""How many may work at the same time, over all groups of a process: whoever has waited longest goes first.

One Spark driver serves all groups. A pool of workers for each of them would together overload the machine. Tables of
all groups stand in one line, so that one of a large group waits no longer than one of a small group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

CANCEL_SECONDS = 0.25


class Turns:
    """A bound on the work under way, and the threads that do it. Safe to use from several threads."""

    def __init__(self, name: str, most: int) -> None:
        self._most = most
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._busy = 0
        self._line: dict[object, Callable[[], object]] = {}
        """who waits for a turn, longest first, each with how it is called"""

    @property
    def free(self) -> bool:
        """Whether a worker is free and nobody waits for it."""
        with self._lock:
            return self._busy < self._most and not self._line

    def stand(self, who: object, call: Callable[[], object]) -> None:
        """Stand in line, to be called; who stands there keeps the place."""
        with self._lock:
            self._line.setdefault(who, call)

    def mine(self, who: object, call: Callable[[], object]) -> bool:
        """Whether it is this one's turn; if not, it stands in line and is called when it is."""
        with self._lock:
            ahead = list(self._line).index(who) if who in self._line else len(self._line)
            if self._busy + ahead < self._most:
                return True
            self._line.setdefault(who, call)
            return False

    def leave(self, who: object) -> None:
        """Stand in line no more; the next one may go."""
        with self._lock:
            stood = self._line.pop(who, None) is not None
        if stood:
            self._call()

    def begin(self, who: object, work: Callable[[], T]) -> Future[T]:
        """Take the turn; whoever wants another one after it goes to the end of the line."""
        with self._lock:
            self._busy += 1
            self._line.pop(who, None)
        future = self._pool.submit(work)
        future.add_done_callback(self._end)
        return future

    def _end(self, _: Future[T]) -> None:
        with self._lock:
            self._busy -= 1
        self._call()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _call(self) -> None:
        with self._lock:
            called = list(self._line.values())[: max(0, self._most - self._busy)]
        for call in called:
            call()


def end(jobs: Collection[Future[T]], cancel: Callable[[], object]) -> None:
    """Wait until jobs have ended; those that have not begun never will.

    `cancel` is called until then: work that was on its way to what can be cancelled gets there a moment later.
    """
    for job in jobs:
        job.cancel()
    while wait(jobs, CANCEL_SECONDS).not_done:
        cancel()


@dataclass(frozen=True)
class Workforce:
    """The workers of one driver, for all groups."""

    applies: Turns
    copies: Turns

    @classmethod
    def of(cls, applies: int, copies: int) -> Workforce:
        return cls(Turns("apply", applies), Turns("copy", copies))

    def close(self) -> None:
        self.applies.close()
        self.copies.close()
