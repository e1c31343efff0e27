"""Maintenance of Iceberg tables: small files compacted, deleted rows dropped, snapshots expired, orphan files removed.

The rows, the position record and every version within the retention stay as they are. It is done by the table's own
worker between two applies, in steps of bounded size; a step that fails or is cut off leaves the table as it was.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import faults
from ..schema import TableId
from . import compaction_policy
from .compaction_policy import FULL_SIZE, STEP_SIZE, DataFile, Facts, Memory, Rewrite, Work
from .names import sql_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..config import MaintenanceConfig
    from .iceberg import IcebergTables

log = logging.getLogger(__name__)

ORPHAN_AGE = 24 * 3600.0
"""seconds that a file of nobody must have been there: longer than anybody's write to the table takes to commit"""
_SWEEP_INTERVAL = 24 * 3600.0
_UNLIMITED = str(2**62)
_POSITION_DELETES = 1
_VECTORS_SINCE = 3
_numbers = itertools.count(1)


class Maintenance:
    """What is known of the tables' maintenance, and the doing of it. One piece of work at a time for a table."""

    def __init__(self, settings: MaintenanceConfig, tables: IcebergTables, path: Path) -> None:
        self._settings, self._tables, self._path = settings, tables, path
        self._memories: dict[TableId, Memory] = {}
        self._tidy_after = 0.0
        self._under_way: dict[str, tuple[TableId, SparkSession]] = {}
        self._lock = threading.Lock()

    def due(self, table: TableId, facts: Facts) -> Work | None:
        """What a table needs, if anything: a judgement on numbers, without a look at the table."""
        memory = self._memory(table)
        if (lower := compaction_policy.seen(memory, facts)) is not memory:
            self._memories[table] = memory = lower
        now = time.time()
        return compaction_policy.due(facts, memory, self._settings, now, may_tidy=now >= self._tidy_after)

    def failed(self, table: TableId) -> None:
        """Let a table alone for a while."""
        self._memories[table] = compaction_policy.after_failure(self._memory(table), time.time())

    def cancel(self, tables: Collection[TableId] | None = None) -> None:
        """Let what is under way, or that on some tables, fail now.

        Iceberg's jobs have groups of their own, so they are known by a tag.
        """
        with self._lock:
            under_way = list(self._under_way.items())
        for tag, (table, session) in under_way:
            if tables is None or table in tables:
                session.sparkContext.cancelJobsWithTag(tag)

    def work(self, session: SparkSession, table: TableId, record: Mapping[str, str]) -> None:
        """Do a step of what is due. `record` is the position record, for the commits that are made."""
        loaded = self._tables.load(session, table)
        before = Facts() if loaded is None else self._tables.facts(session, loaded)
        work = self.due(table, before)
        if work is None:
            return
        complete = True
        with self._tagged(session, table):
            if work.compact:
                complete = self._compact(session, table, loaded, before, work, record)
                faults.reached(faults.LAKE_COMPACTED)
                loaded.refresh()
            if work.expire:
                _expire(loaded, self._settings, session, record)
                faults.reached(faults.SNAPSHOTS_EXPIRED)
                loaded.refresh()
            after = self._tables.facts(session, loaded)
            memory = compaction_policy.after_success(self._memory(table), work, before, after, complete, time.time())
            self._memories[table] = memory
            self._sweep(session, table, Path(str(loaded.location())))

    def _memory(self, table: TableId) -> Memory:
        return self._memories.get(table, Memory())

    def _compact(
        self, session: SparkSession, table: TableId, loaded: Any, before: Facts, work: Work, record: Mapping[str, str]
    ) -> bool:
        """Whether nothing is left to do."""
        files = _files(session, table)
        rewrite = compaction_policy.choose(
            files, compaction_policy.enough(before, self._settings, time.time()) // 2, work.tidy
        )
        vectors = _format_version(session, loaded) >= _VECTORS_SINCE
        began = time.monotonic()
        if rewrite is not None:
            _rewrite(session, loaded, rewrite, record)
            loaded.refresh()
        if not vectors and self._tables.facts(session, loaded).delete_files:
            _rewrite_deletes(session, loaded, record)
        seconds = time.monotonic() - began
        if work.tidy:
            self._tidy_after = compaction_policy.tidied_until(time.time(), seconds)
        log.debug("compacted %s of %d files in %.1f s", table, len(files), seconds)
        return rewrite is None or rewrite.complete

    def _sweep(self, session: SparkSession, table: TableId, location: Path) -> None:
        """Remove what writes that never came to a commit have left: now and then, as it costs a look at all files."""
        memory, now = self._memory(table), time.time()
        data = location / "data"
        if now - memory.swept < _SWEEP_INTERVAL or not data.is_relative_to(self._path):
            return
        self._memories[table] = replace(memory, swept=now)
        if self._tables.catalog_decides and self._tables.placed(session, str(location)) != {table}:
            return
        # Listed before the table is looked at, so that what is committed in between is never taken for an orphan.
        old = _older(data, now - ORPHAN_AGE)
        orphans = _orphans(data, old, self._tables.files(session, table)) if old else []
        for path in orphans:
            path.unlink(missing_ok=True)
        if orphans:
            log.info("removed %d files of %s that no version refers to", len(orphans), table)

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


def _format_version(session: SparkSession, loaded: Any) -> int:
    jvm: Any = session._jvm
    return int(jvm.org.apache.iceberg.TableUtil.formatVersion(loaded))


def _files(session: SparkSession, table: TableId) -> list[DataFile]:
    """The data files of the current version, each with the deleted rows that are known to be its own."""
    listed = session.table(f"{sql_name(table)}.files").select(
        "content", "file_path", "file_size_in_bytes", "record_count", "referenced_data_file"
    )
    rows = listed.collect()
    deleted: dict[str, int] = {}
    for content, _, _, records, owner in rows:
        if content == _POSITION_DELETES and owner is not None:
            deleted[owner] = deleted.get(owner, 0) + records
    return [
        DataFile(size, records, deleted.get(path, 0)) for content, path, size, records, _ in rows if content == 0
    ]  # fmt: skip


def _actions(session: SparkSession) -> Any:
    jvm: Any = session._jvm
    return jvm.org.apache.iceberg.spark.actions.SparkActions.get(session._jsparkSession)


def _rewrite(session: SparkSession, loaded: Any, rewrite: Rewrite, record: Mapping[str, str]) -> None:
    options = {
        "target-file-size-bytes": str(rewrite.target),
        "min-file-size-bytes": str(rewrite.below),
        # A file that is larger than the target is as good as it is.
        "max-file-size-bytes": _UNLIMITED,
        "max-file-group-size-bytes": str(STEP_SIZE + FULL_SIZE),
        "min-input-files": "2",
        "delete-ratio-threshold": str(rewrite.share),
        "partial-progress.enabled": "false",
    }
    _execute(_actions(session).rewriteDataFiles(loaded).binPack(), options, record)


def _rewrite_deletes(session: SparkSession, loaded: Any, record: Mapping[str, str]) -> None:
    """Of formats without deletion vectors: join the files of deleted positions, and drop the positions in files that
    are gone, which would still be counted as deleted rows.
    """
    _execute(_actions(session).rewritePositionDeletes(loaded), {"rewrite-all": "true"}, record)


def _execute(action: Any, options: Mapping[str, str], record: Mapping[str, str]) -> None:
    for name, value in options.items():
        action.option(name, value)
    for name, value in record.items():
        action.snapshotProperty(name, value)
    action.execute()


def _expire(loaded: Any, settings: MaintenanceConfig, session: SparkSession, record: Mapping[str, str]) -> None:
    """Let old versions go, but never the newest one that has the position record."""
    if loaded.properties().get("gc.enabled") == "false":
        return
    kept = max(settings.snapshots_kept, _depth(loaded, record) + 1)
    before = int((time.time() - settings.snapshot_retention) * 1000)
    oldest = loaded.snapshots().get(0)
    if loaded.refs().size() > 1:
        # Somebody's tags and branches have rules of their own, which only the action knows together with vectors.
        _actions(session).expireSnapshots(loaded).expireOlderThan(before).retainLast(kept).execute()
    elif loaded.snapshots().size() > kept and oldest.timestampMillis() < before:
        # A version that is named makes Iceberg look which files are still reachable. By age alone it removes a file of
        # deletion vectors as soon as one of them is replaced, though the others in it are still needed.
        expiry = loaded.expireSnapshots().expireSnapshotId(oldest.snapshotId())
        expiry.expireOlderThan(before).retainLast(kept).commit()


def _depth(loaded: Any, record: Mapping[str, str]) -> int:
    """How many versions the current one is ahead of the newest that has the record."""
    snapshot, depth = loaded.currentSnapshot(), 0
    while snapshot is not None and not all(snapshot.summary().get(name) == value for name, value in record.items()):
        parent = snapshot.parentId()
        snapshot, depth = (loaded.snapshot(parent) if parent is not None else None), depth + 1
    return depth


def _older(directory: Path, than: float) -> list[Path]:
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            try:
                if path.stat().st_mtime < than:
                    found.append(path)
            except FileNotFoundError:
                continue
    return found


def _orphans(directory: Path, old: list[Path], referenced: frozenset[str]) -> list[Path]:
    """Those that no version refers to; a checksum file belongs to the file that it is named after."""

    def owner(path: Path) -> str:
        checksum = path.name.startswith(".") and path.name.endswith(".crc")
        return str(path.with_name(path.name[1:-4]) if checksum else path)

    # A table that knows none of its files by a path below here names them in another way than the file system does.
    known = any(file.startswith(f"{directory}{os.sep}") for file in referenced)
    return [path for path in old if owner(path) not in referenced] if known else []
