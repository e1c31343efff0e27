"""A round of first copies: several tables, all read at one exported snapshot.

The snapshot is opened by the first copy that begins and closed by the last that ends, whatever its outcome; opening it
may wait for transactions of others to end, so it never happens on the scheduler's own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Protocol

from ..lake.model import Applied
from ..source.model import ExportedSnapshot
from .tables import TableRun


class OpenSnapshot(Protocol):
    """An exported snapshot and the connection that keeps it alive."""

    @property
    def snapshot(self) -> ExportedSnapshot: ...

    def close(self) -> None: ...


class CopyRound:
    def __init__(
        self, tables: Sequence[TableRun], open_snapshot: Callable[[], OpenSnapshot],
        copy: Callable[[TableRun, ExportedSnapshot], Applied],
    ) -> None:  # fmt: skip
        self._tables, self._open, self._copy = tables, open_snapshot, copy
        self._lock = threading.Lock()
        self._opened: OpenSnapshot | None = None
        self._left = len(tables)

    def start(self, pool: Executor, done: Callable[[Future[Applied]], None]) -> None:
        for table in self._tables:
            table.job = pool.submit(self._run, table)
            table.job.add_done_callback(self._ended)
            table.job.add_done_callback(done)

    def _run(self, table: TableRun) -> Applied:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            snapshot = self._opened.snapshot
        return self._copy(table, snapshot)

    def _ended(self, _: Future[Applied]) -> None:
        with self._lock:
            self._left -= 1
            finished = self._left == 0
        if finished:
            self.close()

    @property
    def finished(self) -> bool:
        return self._left == 0

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
