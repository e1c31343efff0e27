"""Initial copies, in rounds: one table, or several that are read at one exported snapshot.

Usually each table is copied at its own snapshot, several at once, so that none waits for another. Tables of a first
start share the snapshot of the group's own slot, and those that were requested together share another one. The first
copy of a round opens the snapshot and the last one closes it, whatever its outcome. Opening may wait for transactions
of others, so it never happens on the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from ..errors import CopyFailed
from ..executor import Executor, Future, Queue
from ..lake import Applied, Into, LakeTables
from ..observe import Progress
from ..reconcile import LakeNames, TableRuntime
from ..schema import TableSchema
from ..source import ExportedSnapshot, SourceDatabase
from ..source.sessions import Patience
from .worker_pool import WorkerSlots, end

log = logging.getLogger(__name__)


class OpenSnapshot(Protocol):
    """An exported snapshot and the connection that holds it."""

    @property
    def snapshot(self) -> ExportedSnapshot: ...

    def close(self) -> None: ...


class Copies:
    """The workers that copy tables of one group. `copied` is called for each committed copy, on its thread.

    `may_copy` raises if a table, as it is when its copy begins, must not be copied.
    """

    def __init__(
        self, slots: WorkerSlots, source: SourceDatabase, lake: LakeTables, progress: Progress,
        may_copy: Callable[[TableSchema], object], copied: Callable[[TableRuntime], object], done: Callable[[], object],
        patience: Patience, lake_names: LakeNames, keeps: Callable[[TableSchema], bool], epoch: Callable[[], int],
        executor: Executor,
    ) -> None:  # fmt: skip
        """`keeps`: whether rows of dropped partitions stay in the lake."""
        self._may_copy, self._patience, self._lake_names, self._keeps = may_copy, patience, lake_names, keeps
        self._epoch, self._executor = epoch, executor
        self._source, self._lake, self._progress, self._copied, self._done = source, lake, progress, copied, done
        self._slots = slots
        self._rounds: list[CopyRound] = []
        self._ended: Queue[TableRuntime] = executor.queue()
        self._parts: list[Future[Applied]] = []

    @property
    def may_start(self) -> bool:
        """Whether a worker is free for a copy; if not, `done` is called when one is."""
        return self._slots.may_begin(self, self._done)

    def start(self, tables: Sequence[TableRuntime], opened: OpenSnapshot | None = None) -> None:
        """Copy tables at an open snapshot, or at one that is opened for them."""
        open_snapshot = partial(self._source.open_snapshot, self._patience)
        copy_round = CopyRound(tables, open_snapshot, self._copy, self._executor, opened)
        self._rounds.append(copy_round)
        copy_round.start(partial(self._slots.begin, self), self._end)

    def start_part(self, table: TableRuntime, work: Callable[[], Applied]) -> None:
        """Exchange partitions of a table, which continues at its position."""
        job = self._slots.begin(self, work)
        table.start(job)
        self._parts = [part for part in self._parts if not part.done()]
        self._parts.append(job)
        job.add_done_callback(lambda _: self._end(table))

    def leave_queue(self) -> None:
        """No table waits for a copy."""
        self._slots.leave(self)

    def ended(self) -> list[TableRuntime]:
        """Tables whose copies have ended since the last call."""
        tables = [self._ended.get() for _ in range(self._ended.qsize())]
        if tables:
            self._rounds = [copy_round for copy_round in self._rounds if not copy_round.finished]
        return tables

    def close(self, cancel: Callable[[], object] = lambda: None) -> None:
        """Wait for running copies, after `cancel`; those that have not begun are dropped."""
        self._slots.leave(self)
        end(self._parts, cancel, self._executor)
        for copy_round in self._rounds:
            copy_round.end(cancel)

    def _end(self, table: TableRuntime) -> None:
        self._ended.put(table)
        self._done()

    def _copy(self, table: TableRuntime, snapshot: ExportedSnapshot) -> Applied:
        with self._source.held_still(table.schema, snapshot.name) as source:
            self._may_copy(source.schema)
            self._progress.copy_started(table.name, source.estimated_rows)
            log.info("copying %s at %s", table.name, snapshot.lsn)
            try:
                applied = self._lake.copy(
                    source,
                    snapshot,
                    self._source.table_id(table.schema.oid),
                    table.held or 0,
                    lambda rows: self._progress.copy_advanced(table.name, rows),
                    self._into(table),
                    self._epoch(),
                )
            except BaseException as error:
                self._progress.copy_failed(table.name)
                unfit = isinstance(error, CopyFailed) and error.fields.get("unfit")
                if unfit and (refused := self._source.find_unfit(source.schema)) is not None:
                    raise refused from error
                raise
        self._progress.copy_finished(table.name, applied.rows)
        log.info("copied %s: %d rows", table.name, applied.rows)
        self._copied(table)
        return applied

    def _into(self, table: TableRuntime) -> Into:
        formerly = self._lake_names.take(table)
        # Only a new table may start without its rows: a resync is requested because of the rows.
        filled = table.spec is None or table.spec.copy or table.record.last_commit_at is not None
        return Into(table.target, formerly, filled, self._keeps(table.schema), table.record.version.commit)


def rounds(tables: Sequence[TableRuntime]) -> list[list[TableRuntime]]:
    """Groups of tables that are copied at one snapshot: those requested together, otherwise each alone."""
    found: dict[object, list[TableRuntime]] = {}
    for table in tables:
        found.setdefault(table.round or table.schema.oid, []).append(table)
    return list(found.values())


class CopyRound:
    def __init__(
        self, tables: Sequence[TableRuntime], open_snapshot: Callable[[], OpenSnapshot],
        copy: Callable[[TableRuntime, ExportedSnapshot], Applied], executor: Executor,
        opened: OpenSnapshot | None = None,
    ) -> None:  # fmt: skip
        self._tables, self._open, self._copy = tables, open_snapshot, copy
        self._executor, self._lock = executor, executor.lock()
        self._opened = opened
        self._left = len(tables)
        self._jobs: list[Future[Applied]] = []

    def start(
        self, begin: Callable[[Callable[[], Applied]], Future[Applied]], done: Callable[[TableRuntime], object]
    ) -> None:
        for table in self._tables:
            job = begin(partial(self._run, table))
            table.start(job)
            self._jobs.append(job)
            job.add_done_callback(self._ended)
            job.add_done_callback(lambda _, table=table: done(table))  # type: ignore[misc]  # its own table

    def _run(self, table: TableRuntime) -> Applied:
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

    def end(self, cancel: Callable[[], object]) -> None:
        """Wait for running copies, after `cancel`; those that have not begun are dropped."""
        end(self._jobs, cancel, self._executor)
        self.close()

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
