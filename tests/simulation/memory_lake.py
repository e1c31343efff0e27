"""The lake in memory: the reference for `LakeTables`, and the lake of simulations.

A table is a multiset of rows with its record, its schema and every version that it had. Changes are applied one by one,
in order. A hook before and after each call injects faults.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from simulation import memory_table, predicates
from simulation.memory_table import Read, Row, in_columns
from wal2lake.errors import (
    CommitFailed,
    ForeignTable,
    LakeRolledBack,
    LakeTableGone,
    SparkLost,
    SparkUnavailable,
    Wal2LakeError,
)
from wal2lake.evolution import changes as column_changes
from wal2lake.evolution import facts_differ
from wal2lake.lake import Applied, Batch, Exchange, Facts, Into, Work
from wal2lake.position import LakeVersion
from wal2lake.schema import TableId, TableSchema
from wal2lake.source.model import CopySource, ExportedSnapshot

Source = Callable[[CopySource, ExportedSnapshot], Iterable[Row]]
"""the rows of the source's partitions or table at a snapshot, in the columns of its schema"""


@dataclass(frozen=True)
class Call:
    """A call of the lake, before or after it did its work."""

    method: str
    table: TableId | None
    done: bool


Hook = Callable[[Call], None]
"""what it raises is what the call fails with; after the work was done, that is lost on the caller alone"""


@dataclass(frozen=True)
class Version:
    """One version of a table."""

    record: Applied
    """without facts for compaction"""
    rows: tuple[Row, ...]
    files: int = 1
    """commits since the last compaction"""

    @property
    def applied(self) -> Applied:
        facts = Facts(data_files=self.files, records=len(self.rows), snapshots=self.files)
        return replace(self.record, compaction_facts=facts)


@dataclass
class _Table:
    source: str | None
    """None: wal2lake did not make it"""
    versions: list[Version] = field(default_factory=list)

    @property
    def now(self) -> Version:
        return self.versions[-1]


def read_parquet(uri: str) -> pa.Table:
    return pq.read_table(uri, page_checksum_verification=True)


class MemoryLake:
    """`LakeTables` without Spark. `source` has the rows that a copy takes; `read` gets a segment's changes."""

    def __init__(
        self, source: Source, hook: Hook = lambda _: None, read: Read = read_parquet, *, strict: bool = True,
        compact_after: int = 20,
    ) -> None:  # fmt: skip
        """`strict`: see `memory_table.Rows`. `compact_after`: commits that make maintenance due."""
        self._source, self._hook, self._read = source, hook, read
        self._strict, self._compact_after = strict, compact_after
        self._tables: dict[TableId, _Table] = {}
        self._lock = threading.RLock()
        self._running = self._stopped = False
        self._starts = 0
        self._failure: SparkUnavailable | None = None

    def reopened(self) -> MemoryLake:
        """The same tables for another process, whose driver has not been started."""
        other = MemoryLake(self._source, self._hook, self._read, strict=self._strict, compact_after=self._compact_after)
        other._tables = self._tables
        return other

    # What a test sees and does beside the contract

    def rows(self, table: TableId) -> list[Row]:
        """The rows of a table's current version."""
        with self._lock:
            return list(self._tables[table].now.rows)

    def tables(self) -> frozenset[TableId]:
        return frozenset(self._tables)

    def history(self, table: TableId) -> tuple[Version, ...]:
        """All versions of a table, the oldest first."""
        return tuple(self._tables[table].versions)

    def roll_back(self, table: TableId, versions: int = 1) -> None:
        """Make an earlier version the current one, as somebody who restores a backup does."""
        with self._lock:
            del self._tables[table].versions[-versions:]

    def put_foreign(self, table: TableId) -> None:
        """Make a table that is not ours."""
        self._tables[table] = _Table(None)

    def crash(self) -> None:
        """Work fails from now on, until `restart`."""
        self._running = False

    def restart(self) -> None:
        """What the product does by itself after a crash."""
        self._running, self._starts = True, self._starts + 1

    def give_up(self, failure: SparkUnavailable) -> None:
        """It crashed too often."""
        self._running, self._failure = False, failure

    # Life

    @property
    def ready(self) -> bool:
        return self._running

    @property
    def starts(self) -> int:
        return self._starts

    @property
    def failure(self) -> SparkUnavailable | None:
        return self._failure

    def begin(self) -> None:
        self.start()

    def start(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._running and not self._stopped:
            self._hook(Call("start", None, False))
            self.restart()

    def stop(self) -> None:
        self._running, self._stopped = False, True

    def kill(self) -> None:
        self.stop()

    def cancel(self, tables: Collection[TableId] | None = None) -> None:
        """Nothing is ever under way for longer than a call."""

    # Looks

    def applied(self, table: TableId, source_id: str) -> Applied | None:
        with self._call("applied", table):
            found = self._own(table, source_id)
            return None if found is None else found.now.applied

    def holder(self, table: TableId) -> str | None:
        with self._call("holder", table):
            found = self._tables.get(table)
            if found is not None and found.source is None:
                raise _not_ours(table)
            return None if found is None else found.source

    def has(self, table: TableId, source_id: str) -> bool:
        with self._call("has", table):
            found = self._tables.get(table)
            return found is not None and found.source == source_id

    def due(self, applied: Applied) -> Work | None:
        return Work(True, False, False) if applied.compaction_facts.data_files >= self._compact_after else None

    # Commits

    def copy(
        self, source: CopySource, snapshot: ExportedSnapshot, source_id: str, manifest: int,
        progress: Callable[[int], None], into: Into | None = None, epoch: int = 0,
    ) -> Applied:  # fmt: skip
        into = into or Into(source.schema.id)
        table = into.table
        with self._call("copy", table):
            found = self._own(table, source_id, into.formerly)
            commit = max((found.now.record.version.commit if found else 0) + 1, into.least)
            schema, mine = replace(source.schema, id=table), found is not None and found.source == source_id
            version = LakeVersion(epoch, commit)
            record = Applied(snapshot.lsn, manifest, 0, 0, schema, version=version, visibility=snapshot.visibility)
            if found is not None and mine and not into.rows:
                return self._put(table, found, replace(record, schema=found.now.record.schema), found.now.rows)
            kept: list[Row] = []
            if found is not None and mine and into.keep and found.now.record.schema.partitioned:
                schema, kept = memory_table.archived(found.now.rows, found.now.record.schema, schema)
            rows = [dict(row) for row in self._source(source, snapshot)] if into.rows else []
            made = found or _Table(source_id)
            made.source = source_id
            self._tables[table] = made
            answer = self._put(table, made, replace(record, schema=schema), (*rows, *kept))
            progress(answer.rows)
            return answer

    def apply(self, applied: Applied, batch: Batch, source_id: str, epoch: int = 0) -> Applied:
        with self._call("apply", applied.schema.id):
            conditions = memory_table.conditions(applied.schema, batch)
            if batch.schema is not None:
                applied = self._evolve(applied, batch.schema, source_id, epoch)
            truncations = memory_table.counted_truncations(batch)
            if not batch.segments and not truncations:
                return applied.at(batch.to_lsn, batch.to_manifest)
            found = self._there(applied.schema.id, source_id)
            now = found.now.record
            if now.version < applied.version:
                raise _rolled_back(now, applied)
            if now.manifest >= batch.to_manifest and now.lsn >= batch.to_lsn:
                return found.now.applied
            self._require_same(now, applied, epoch)
            schema = applied.schema
            changes = memory_table.changes(batch, schema, self._read)
            rows = memory_table.applied(found.now.rows, schema, changes, truncations, conditions, self._strict)
            seen = now.visibility
            record = replace(
                now, lsn=batch.to_lsn, manifest=batch.to_manifest, changes=applied.changes + batch.changes,
                version=_next(applied.version, epoch),
                visibility=None if seen is None or batch.to_lsn >= seen.until else seen,
            )  # fmt: skip
            return self._put(schema.id, found, record, rows)

    def evolve(self, applied: Applied, schema: TableSchema, source_id: str, epoch: int = 0) -> Applied:
        with self._call("evolve", applied.schema.id):
            return self._evolve(applied, schema, source_id, epoch)

    def _evolve(self, applied: Applied, schema: TableSchema, source_id: str, epoch: int) -> Applied:
        found = self._still(applied, source_id, epoch)
        before, now = found.now.record.schema, found.now.record
        if before != schema or before.heaps != schema.heaps or facts_differ(before, schema):
            rows = in_columns(found.now.rows, before, schema)
            if rows and column_changes(before, schema).of_rows:
                self._put(schema.id, found, replace(now, schema=schema, version=_next(now.version, epoch)), rows)
            else:
                # Columns alone make no version.
                found.versions[-1] = replace(found.now, record=replace(now, schema=schema), rows=tuple(rows))
        now = found.now.applied
        return replace(
            now, lsn=applied.lsn, manifest=applied.manifest, changes=applied.changes, visibility=applied.visibility
        )

    def exchange(
        self, applied: Applied, source: CopySource, snapshot: ExportedSnapshot, what: Exchange, schema: TableSchema,
        source_id: str, epoch: int = 0,
    ) -> Applied:  # fmt: skip
        table = applied.schema.id
        with self._call("exchange", table):
            assert snapshot.visibility is None
            found = self._still(applied, source_id, epoch)
            if found.now.record.lsn > snapshot.lsn:
                raise _moved_on(table)
            gone = [predicates.condition(text) for text in what.replaced]
            rows = [row for row in found.now.rows if not any(condition(row) for condition in gone)]
            came = self._source(source, snapshot) if what.copied else []
            rows += in_columns(came, source.schema, applied.schema)
            record = replace(found.now.record.at(snapshot.lsn, applied.manifest), version=_next(applied.version, epoch))
            at = self._put(table, found, record, rows)
            return self._evolve(replace(at, schema=applied.schema), schema, source_id, epoch)

    def restate(self, applied: Applied, source_id: str, epoch: int = 0) -> Applied:
        table = applied.schema.id
        with self._call("restate", table):
            found = self._still(applied, source_id, epoch)
            now = found.now.record
            schema = applied.schema if now.schema.version != applied.schema.version else now.schema
            record = replace(
                now, lsn=applied.lsn, manifest=applied.manifest, schema=schema, version=_next(now.version, epoch),
                visibility=applied.visibility,
            )  # fmt: skip
            return self._put(table, found, record, found.now.rows)

    def maintain(self, applied: Applied, source_id: str) -> Applied:
        try:
            with self._call("maintain", applied.schema.id):
                found = self._still(applied, source_id, applied.version.epoch)
                if self.due(found.now.applied) is not None:
                    found.versions[-1] = replace(found.now, files=1)
                now = found.now.applied
                return replace(applied, rows=now.rows, compaction_facts=now.compaction_facts)
        except Wal2LakeError:
            return applied

    # Names

    def rename(self, source_id: str, names: Sequence[TableId], new: TableId) -> Applied | None:
        with self._call("rename", new):
            if self._own(new, source_id) is None:
                held = [name for name in names if name in self._tables and self._tables[name].source == source_id]
                if not held:
                    return None
                self._tables[new] = self._tables.pop(held[0])
            found = self._tables[new]
            schema = replace(found.now.record.schema, id=new)
            found.versions[-1] = replace(found.now, record=replace(found.now.record, schema=schema))
            return found.now.applied

    def drop(self, table: TableId, source_id: str | None = None) -> None:
        with self._call("drop", table):
            found = self._tables.get(table)
            if found is None:
                return
            if found.source is None or source_id not in (None, found.source):
                raise _not_ours(table)
            del self._tables[table]

    # Inside

    @contextmanager
    def _call(self, method: str, table: TableId) -> Iterator[None]:
        # Others may do something while the hook waits.
        self._hook(Call(method, table, False))
        with self._lock:
            if not self._running:
                raise self._failure or SparkLost(cause="it is not running")
            yield
        self._hook(Call(method, table, True))

    def _own(self, table: TableId, source_id: str, formerly: str | None = None) -> _Table | None:
        found = self._tables.get(table)
        if found is not None and found.source not in (source_id, formerly or source_id):
            raise _not_ours(table)
        return found

    def _there(self, table: TableId, source_id: str) -> _Table:
        found = self._own(table, source_id)
        if found is None:
            raise LakeTableGone(table=str(table))
        return found

    def _still(self, applied: Applied, source_id: str, epoch: int) -> _Table:
        """A table that has the record that the work was planned from."""
        found = self._there(applied.schema.id, source_id)
        if found.now.record.version < applied.version:
            raise _rolled_back(found.now.record, applied)
        self._require_same(found.now.record, applied, epoch)
        return found

    def _require_same(self, now: Applied, applied: Applied, epoch: int) -> None:
        if now.version != applied.version or now.changes != applied.changes or now.version.epoch > epoch:
            raise _moved_on(applied.schema.id)

    def _put(self, table: TableId, found: _Table, record: Applied, rows: Iterable[Row]) -> Applied:
        """Make a version."""
        kept = tuple(rows)
        files = found.now.files + 1 if found.versions else 1
        record = replace(record, rows=len(kept), schema=replace(record.schema, id=table))
        found.versions.append(Version(record, kept, files))
        return found.now.applied


def _next(version: LakeVersion, epoch: int) -> LakeVersion:
    return LakeVersion(epoch, version.commit + 1)


def _rolled_back(now: Applied, applied: Applied) -> LakeRolledBack:
    return LakeRolledBack(table=str(now.schema.id), lsn=now.lsn, known=applied.lsn)


def _moved_on(table: TableId) -> CommitFailed:
    return CommitFailed(table=str(table), cause="the table has changed since it was read")


def _not_ours(table: TableId) -> ForeignTable:
    return ForeignTable(table=str(table), lake_table=f"lake.{table}")
