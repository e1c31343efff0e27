"""The workers that do one table's work each: bring changes into it, or keep it quick to read.

Tables take turns: whoever has waited longest goes first, and a table that has more goes to the end of the line, so
that none can starve the others. What a batch holds is planned when a worker is free, so it has all that came meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

from ..lake.model import Applied
from .tables import TableRun

FEWEST_WORKERS = 2
CLUSTER_WORKERS = 8


def workers(master: str) -> int:
    """A small batch is mostly one thread of planning and committing in the driver: one worker for each of its cores."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)[^\]]*\])?", master)
    if local is None:
        return CLUSTER_WORKERS
    cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    return max(FEWEST_WORKERS, cores)


class Applies:
    def __init__(self, name: str, workers: int, done: Callable[[], object]) -> None:
        self._workers, self._done = workers, done
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=f"apply-{name}")
        self._busy = 0
        self._line: dict[int, TableRun] = {}
        self._ended: SimpleQueue[TableRun] = SimpleQueue()

    @property
    def idle(self) -> bool:
        """Whether nobody waits and a worker is free."""
        return not self._line and self._busy < self._workers

    def stand_in_line(self, table: TableRun) -> None:
        """To be called up when a worker is free; a table that stands there keeps its place."""
        self._line.setdefault(table.schema.oid, table)

    def leave(self, oid: int) -> None:
        self._line.pop(oid, None)

    def next(self) -> TableRun | None:
        """The table whose turn it is; None while all workers are busy or nobody waits."""
        if self._busy >= self._workers or not self._line:
            return None
        return self._line.pop(next(iter(self._line)))

    def start(self, table: TableRun, work: Callable[[], Applied]) -> None:
        self._busy += 1
        table.job = self._pool.submit(work)
        table.job.add_done_callback(lambda _: self._end(table))

    def ended(self) -> list[TableRun]:
        """Tables whose work has ended since the last call; their workers are free."""
        tables = [self._ended.get() for _ in range(self._ended.qsize())]
        self._busy -= len(tables)
        return tables

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, table: TableRun) -> None:
        self._ended.put(table)
        self._done()


def outcome(job: Future[Applied]) -> Applied | BaseException | None:
    """What a job that is done came to; None if it never began."""
    if job.cancelled():
        return None
    return job.exception() or job.result()
