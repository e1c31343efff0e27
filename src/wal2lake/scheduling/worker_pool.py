"""Who works next, over all groups of a process: the bound on the work under way, and one group's place in the line.

One Spark driver serves all groups; a pool of workers for each of them would together overload the machine. Tables of
all groups wait in one line: the one that has waited longest goes first, and a table that has more goes to the end, so
that none can starve the others. A batch is planned when a worker is free, so it has all that came meanwhile.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from ..lake.model import Applied
from ..reconcile.table_runtime import TableRuntime

T = TypeVar("T")

FEWEST_WORKERS = 2
CLUSTER_WORKERS = 8
CANCEL_SECONDS = 0.25


class WorkerSlots:
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
        """Enter the queue, to be called; who is in it keeps the place."""
        with self._lock:
            self._line.setdefault(who, call)

    def mine(self, who: object, call: Callable[[], object]) -> bool:
        """Whether it is this one's turn; if not, it enters the queue and is called when it is."""
        with self._lock:
            ahead = list(self._line).index(who) if who in self._line else len(self._line)
            if self._busy + ahead < self._most:
                return True
            self._line.setdefault(who, call)
            return False

    def leave(self, who: object) -> None:
        """Leave the queue; the next one may go."""
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
class Workers:
    """The workers of one driver, for all groups."""

    applies: WorkerSlots
    copies: WorkerSlots

    @classmethod
    def of(cls, applies: int, copies: int) -> Workers:
        return cls(WorkerSlots("apply", applies), WorkerSlots("copy", copies))

    def close(self) -> None:
        self.applies.close()
        self.copies.close()


def apply_workers(master: str, wanted: int | None = None) -> int:
    """A small batch is mostly one thread of planning and committing in the driver: one worker for each of its cores."""
    if wanted is not None:
        return wanted
    local = re.fullmatch(r"local(?:\[(\d+|\*)[^\]]*\])?", master)
    if local is None:
        return CLUSTER_WORKERS
    cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    return max(FEWEST_WORKERS, cores)


class TableJobs:
    """One group's tables in the line that all groups share, with the workers."""

    def __init__(self, slots: WorkerSlots, done: Callable[[], object]) -> None:
        self._slots, self._done = slots, done
        self._line: dict[int, TableRuntime] = {}
        self._ended: SimpleQueue[TableRuntime] = SimpleQueue()
        self._under_way: list[Future[Applied]] = []

    @property
    def idle(self) -> bool:
        """Whether nobody waits and a worker is free."""
        return not self._line and self._slots.free

    def enqueue(self, table: TableRuntime) -> None:
        """To be called up when a worker is free; a table that stands there keeps its place."""
        if table.schema.oid not in self._line:
            self._line[table.schema.oid] = table
            self._slots.stand((self, table.schema.oid), self._done)

    def leave(self, oid: int) -> None:
        if self._line.pop(oid, None) is not None:
            self._slots.leave((self, oid))

    @property
    def called(self) -> bool:
        """Whether it is the turn of the table that has waited longest."""
        first = next(iter(self._line), None)
        return first is not None and self._slots.mine((self, first), self._done)

    def next(self) -> TableRuntime | None:
        """The table whose turn it is; None while all workers are busy or nobody waits."""
        if not self.called:
            return None
        table = next(iter(self._line.values()))
        self.leave(table.schema.oid)
        return table

    def start(self, table: TableRuntime, work: Callable[[], Any]) -> None:
        job = self._slots.begin((self, table.schema.oid), work)
        table.start(job, began=monotonic())
        self._under_way.append(job)
        job.add_done_callback(lambda _: self._end(table))

    def ended(self) -> list[TableRuntime]:
        """Tables whose work has ended since the last call; their workers are free."""
        self._under_way = [job for job in self._under_way if not job.done()]
        return [self._ended.get() for _ in range(self._ended.qsize())]

    def close(self, cancel: Callable[[], object] = lambda: None) -> None:
        """Wait for what is under way, which `cancel` hastens; what has not begun is left."""
        for oid in list(self._line):
            self.leave(oid)
        end(self._under_way, cancel)

    def _end(self, table: TableRuntime) -> None:
        self._ended.put(table)
        self._done()


def outcome(job: Future[Applied]) -> Applied | BaseException | None:
    """What a job that is done came to; None if it never began."""
    if job.cancelled():
        return None
    return job.exception() or job.result()
