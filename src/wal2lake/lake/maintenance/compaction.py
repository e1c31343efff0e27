"""Maintenance of lake tables: small files compacted, deleted rows dropped, snapshots expired, orphan files removed.

Rows, position record and every version within the retention stay. The table's own worker does it between two applies,
in steps of bounded size; a failed or cancelled step leaves the table unchanged.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ... import faults
from ...schema import TableId
from ..format import Record, TableFormat
from ..model import Facts, Work
from . import policy
from .policy import FULL_SIZE, STEP_SIZE, Memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...config import MaintenanceConfig

log = logging.getLogger(__name__)

ORPHAN_AGE = 24 * 3600.0
"""minimum age of orphan files, in seconds: longer than any writer takes to commit"""
_SWEEP_INTERVAL = 24 * 3600.0
_numbers = itertools.count(1)


class Maintenance:
    """Decides on and does the maintenance of tables, one piece of work at a time per table."""

    def __init__(self, settings: MaintenanceConfig, tables: TableFormat) -> None:
        self._settings, self._tables = settings, tables
        self._memories: dict[TableId, Memory] = {}
        self._tidy_after = 0.0
        self._under_way: dict[str, tuple[TableId, SparkSession]] = {}
        self._lock = threading.Lock()

    def due(self, table: TableId, facts: Facts) -> Work | None:
        """The work that a table needs, if any; decided from numbers, without reading the table."""
        memory = self._memory(table)
        if (lower := policy.seen(memory, facts)) is not memory:
            self._memories[table] = memory = lower
        now = time.time()
        return policy.due(facts, memory, self._settings, now, may_tidy=now >= self._tidy_after)

    def failed(self, table: TableId) -> None:
        """Do nothing on a table for a while."""
        self._memories[table] = policy.after_failure(self._memory(table), time.time())

    def cancel(self, tables: Collection[TableId] | None = None) -> None:
        """Make running work, or that on some tables, fail soon.

        The format's jobs may use job groups of their own, so they are found by a tag.
        """
        with self._lock:
            under_way = list(self._under_way.items())
        for tag, (table, session) in under_way:
            if tables is None or table in tables:
                session.sparkContext.cancelJobsWithTag(tag)

    def work(self, session: SparkSession, table: TableId, record: Record) -> None:
        """Do a step of the work that is due. `record` is the position record for its commits."""
        before = self._tables.facts(session, table)
        work = self.due(table, before)
        if work is None:
            return
        complete = True
        with self._tagged(session, table):
            if work.compact:
                complete = self._compact(session, table, before, work, record)
                faults.reached(faults.LAKE_COMPACTED)
            if work.expire:
                since = time.time() - self._settings.snapshot_retention
                self._tables.expire(session, table, self._settings.snapshots_kept, since, record)
                faults.reached(faults.SNAPSHOTS_EXPIRED)
            after = self._tables.facts(session, table)
            memory = policy.after_success(self._memory(table), work, before, after, complete, time.time())
            self._memories[table] = memory
            self._remove_orphans(session, table)

    def _memory(self, table: TableId) -> Memory:
        return self._memories.get(table, Memory())

    def _compact(self, session: SparkSession, table: TableId, before: Facts, work: Work, record: Record) -> bool:
        """Return whether nothing is left to do."""
        files = self._tables.data_files(session, table)
        rewrite = policy.choose(files, policy.enough(before, self._settings, time.time()) // 2, work.tidy)
        began = time.monotonic()
        self._tables.compact(session, table, rewrite, STEP_SIZE + FULL_SIZE, record)
        seconds = time.monotonic() - began
        if work.tidy:
            self._tidy_after = policy.tidied_until(time.time(), seconds)
        log.debug("compacted %s of %d files in %.1f s", table, len(files), seconds)
        return rewrite is None or rewrite.complete

    def _remove_orphans(self, session: SparkSession, table: TableId) -> None:
        """Remove files of writes that were never committed: rarely, because it lists all files."""
        memory, now = self._memory(table), time.time()
        if now - memory.swept < _SWEEP_INTERVAL:
            return
        self._memories[table] = replace(memory, swept=now)
        if removed := self._tables.remove_orphans(session, table, now - ORPHAN_AGE):
            log.info("removed %d files of %s that no version refers to", removed, table)

    @contextmanager
    def _tagged(self, session: SparkSession, table: TableId) -> Iterator[None]:
        tag = f"wal2lake-maintenance-{id(self):x}-{next(_numbers)}"
        with self._lock:
            self._under_way[tag] = (table, session)
        session.sparkContext.addJobTag(tag)
        try:
            yield
        finally:
            session.sparkContext.removeJobTag(tag)
            with self._lock:
                del self._under_way[tag]
