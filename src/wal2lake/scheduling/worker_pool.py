"""Workers for all groups of a process: a limit on running work, and the queue of each group's tables.

One Spark driver serves all groups; a pool for each of them would overload the machine. Tables of all groups wait in one
queue: the one that has waited longest goes first, and a table with more changes goes to the end, so that none starves.
A batch is planned when a worker is free, so it includes what arrived meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from ..executor import Executor, Future, Queue
from ..lake import Applied
from ..reconcile import TableRuntime

T = TypeVar("T")

FEWEST_WORKERS = 2
CLUSTER_WORKERS = 8
CANCEL_SECONDS = 0.25


class WorkerSlots:
    """A limit on running work, and the threads that do it. Thread-safe."""

    def __init__(self, name: str, most: int, executor: Executor) -> None:
        self._most = most
        self._pool = executor.pool(name, most)
        self._lock = executor.lock()
        self._busy = 0
        self._queue: dict[object, Callable[[], object]] = {}
        """the queue, longest wait first, each with its callback"""

    @property
    def free(self) -> bool:
        """Whether a worker is free and the queue is empty."""
        with self._lock:
            return self._busy < self._most and not self._queue

    def wait_in_line(self, who: object, call: Callable[[], object]) -> None:
        """Enter the queue, to be called later; an existing place is kept."""
        with self._lock:
            self._queue.setdefault(who, call)

    def may_begin(self, who: object, call: Callable[[], object]) -> bool:
        """Whether it is this one's turn; if not, it enters the queue and is called when it is."""
        with self._lock:
            earlier = list(self._queue).index(who) if who in self._queue else len(self._queue)
            if self._busy + earlier < self._most:
                return True
            self._queue.setdefault(who, call)
            return False

    def leave(self, who: object) -> None:
        """Leave the queue, so that the next one is called."""
        with self._lock:
            stood = self._queue.pop(who, None) is not None
        if stood:
            self._call()

    def begin(self, who: object, work: Callable[[], T]) -> Future[T]:
        """Use the turn; for another one it must go to the end of the queue."""
        with self._lock:
            self._busy += 1
            self._queue.pop(who, None)
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
            called = list(self._queue.values())[: max(0, self._most - self._busy)]
        for call in called:
            call()


def end(jobs: Collection[Future[T]], cancel: Callable[[], object], executor: Executor) -> None:
    """Wait until jobs have ended; those that have not begun are cancelled.

    `cancel` is called repeatedly until then: work may become cancellable only a moment later.
    """
    for job in jobs:
        job.cancel()
    while executor.wait(jobs, CANCEL_SECONDS):
        cancel()


@dataclass(frozen=True)
class Workers:
    """The workers of one driver, for all groups."""

    applies: WorkerSlots
    copies: WorkerSlots

    @classmethod
    def of(cls, applies: int, copies: int, executor: Executor) -> Workers:
        return cls(WorkerSlots("apply", applies, executor), WorkerSlots("copy", copies, executor))

    def close(self) -> None:
        self.applies.close()
        self.copies.close()


def apply_workers(master: str, configured: int | None = None) -> int:
    """One worker per core: a small batch is mostly one thread of planning and committing in the driver."""
    if configured is not None:
        return configured
    local = re.fullmatch(r"local(?:\[(\d+|\*)[^\]]*\])?", master)
    if local is None:
        return CLUSTER_WORKERS
    cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    return max(FEWEST_WORKERS, cores)


class TableJobs:
    """One group's tables in the shared queue, and the workers."""

    def __init__(self, slots: WorkerSlots, done: Callable[[], object], executor: Executor) -> None:
        self._slots, self._done, self._executor = slots, done, executor
        self._queue: dict[int, TableRuntime] = {}
        self._ended: Queue[TableRuntime] = executor.queue()
        self._under_way: list[Future[Applied]] = []

    @property
    def idle(self) -> bool:
        """Whether the queue is empty and a worker is free."""
        return not self._queue and self._slots.free

    def enqueue(self, table: TableRuntime) -> None:
        """Queue a table until a worker is free; an existing place is kept."""
        if table.schema.oid not in self._queue:
            self._queue[table.schema.oid] = table
            self._slots.wait_in_line((self, table.schema.oid), self._done)

    def leave(self, oid: int) -> None:
        if self._queue.pop(oid, None) is not None:
            self._slots.leave((self, oid))

    @property
    def called(self) -> bool:
        """Whether it is the turn of the table that has waited longest."""
        first = next(iter(self._queue), None)
        return first is not None and self._slots.may_begin((self, first), self._done)

    def next(self) -> TableRuntime | None:
        """The table whose turn it is; None while all workers are busy or none waits."""
        if not self.called:
            return None
        table = next(iter(self._queue.values()))
        self.leave(table.schema.oid)
        return table

    def start(self, table: TableRuntime, work: Callable[[], Any]) -> None:
        # Whatever is begun takes its place in the shared line; one that is kept here would be out of order with it.
        self._queue.pop(table.schema.oid, None)
        job = self._slots.begin((self, table.schema.oid), work)
        table.start(job, began=self._executor.clock.monotonic())
        self._under_way.append(job)
        job.add_done_callback(lambda _: self._end(table))

    def ended(self) -> list[TableRuntime]:
        """Tables whose work has ended since the last call; their workers are free."""
        self._under_way = [job for job in self._under_way if not job.done()]
        return [self._ended.get() for _ in range(self._ended.qsize())]

    def close(self, cancel: Callable[[], object] = lambda: None) -> None:
        """Wait for running work, after `cancel`; what has not begun is dropped."""
        for oid in list(self._queue):
            self.leave(oid)
        end(self._under_way, cancel, self._executor)

    def _end(self, table: TableRuntime) -> None:
        self._ended.put(table)
        self._done()


def outcome(job: Future[Applied]) -> Applied | BaseException | None:
    """The result of a finished job; None if it never began."""
    if job.cancelled():
        return None
    return job.exception() or job.result()
