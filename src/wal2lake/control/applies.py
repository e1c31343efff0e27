"""The workers that do one table's work each: bring changes into it, or keep it quick to read.

Tables take turns: whoever has waited longest goes first, and a table that has more goes to the end of the line, so
that none can starve the others. What a batch holds is planned when a worker is free, so it has all that came meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import Any

from ..lake.model import Applied
from .tables import TableRun
from .turns import Turns, end

FEWEST_WORKERS = 2
CLUSTER_WORKERS = 8


def workers(master: str, wanted: int | None = None) -> int:
    """A small batch is mostly one thread of planning and committing in the driver: one worker for each of its cores."""
    if wanted is not None:
        return wanted
    local = re.fullmatch(r"local(?:\[(\d+|\*)[^\]]*\])?", master)
    if local is None:
        return CLUSTER_WORKERS
    cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    return max(FEWEST_WORKERS, cores)


class Applies:
    """One group's tables in the line that all groups share, with the workers."""

    def __init__(self, turns: Turns, done: Callable[[], object]) -> None:
        self._turns, self._done = turns, done
        self._line: dict[int, TableRun] = {}
        self._ended: SimpleQueue[TableRun] = SimpleQueue()
        self._under_way: list[Future[Applied]] = []

    @property
    def idle(self) -> bool:
        """Whether nobody waits and a worker is free."""
        return not self._line and self._turns.free

    def stand_in_line(self, table: TableRun) -> None:
        """To be called up when a worker is free; a table that stands there keeps its place."""
        if table.schema.oid not in self._line:
            self._line[table.schema.oid] = table
            self._turns.stand((self, table.schema.oid), self._done)

    def leave(self, oid: int) -> None:
        if self._line.pop(oid, None) is not None:
            self._turns.leave((self, oid))

    @property
    def called(self) -> bool:
        """Whether it is the turn of the table that has waited longest."""
        first = next(iter(self._line), None)
        return first is not None and self._turns.mine((self, first), self._done)

    def next(self) -> TableRun | None:
        """The table whose turn it is; None while all workers are busy or nobody waits."""
        if not self.called:
            return None
        table = next(iter(self._line.values()))
        self.leave(table.schema.oid)
        return table

    def start(self, table: TableRun, work: Callable[[], Any]) -> None:
        table.job = job = self._turns.begin((self, table.schema.oid), work)
        table.began = monotonic()
        self._under_way.append(job)
        job.add_done_callback(lambda _: self._end(table))

    def ended(self) -> list[TableRun]:
        """Tables whose work has ended since the last call; their workers are free."""
        self._under_way = [job for job in self._under_way if not job.done()]
        return [self._ended.get() for _ in range(self._ended.qsize())]

    def close(self, cancel: Callable[[], object] = lambda: None) -> None:
        """Wait for what is under way, which `cancel` hastens; what has not begun is left."""
        for oid in list(self._line):
            self.leave(oid)
        end(self._under_way, cancel)

    def _end(self, table: TableRun) -> None:
        self._ended.put(table)
        self._done()


def outcome(job: Future[Applied]) -> Applied | BaseException | None:
    """What a job that is done came to; None if it never began."""
    if job.cancelled():
        return None
    return job.exception() or job.result()
