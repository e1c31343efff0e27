"""The lake, as the rest of the product knows it: where each table stands, copy it, bring changes into it.

Every promise about positions is kept here: a table's rows and its position record appear in one commit, and what a
commit did is always taken from the version that it made, never assumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import faults
from ..errors import (
    CommitFailed,
    SparkUnavailable,
    Wal2LakeError,
)
from ..evolution import facts_differ
from ..schema import TableId, TableSchema
from ..source.model import CopySource, ExportedSnapshot
from . import without_spark
from .carriable import require_carriable
from .commit_plan import How, Plan, plan
from .compaction import Maintenance
from .compaction_policy import Work
from .copy_writer import CopyWriter
from .format import Record
from .iceberg import IcebergTables
from .lookup import Lookup
from .model import Applied, Batch, Into
from .pending_files import PendingFiles
from .records import (
    already_applied,
    applied_of,
    as_record,
    includes,
    next_version,
    not_ours,
    require_own,
    still_at,
)
from .spark_service import SparkService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..config import Config
    from .exchange import Exchange

log = logging.getLogger(__name__)

_SMALL = 500_000
"""rows and changes of a table below which a merge is quicker on one core than on several"""
_ATTEMPTS = 3
"""to commit upon the version that is current"""


class Lake:
    """All lake tables of one configuration. Methods may be called from several threads, one per table at a time."""

    def __init__(self, config: Config, spark: SparkSession | None = None, on_demand: bool = False) -> None:
        """`on_demand`: there may be nothing to do, so Spark is started when it is needed."""
        self._path = Path(config.lake.path).absolute()
        self._tables = IcebergTables(config)
        self._spark = SparkService(config, self._tables, spark, on_demand)
        self._pending_files = PendingFiles(self._path, self._tables)
        self._lookup = Lookup(self._tables)
        self._copies = CopyWriter(self._spark, self._tables, self._lookup, self._pending_files)
        self._maintenance = Maintenance(config.maintenance, self._tables, self._path)
        self._with_copies: set[TableId] = set()
        """tables in which rows that are the same were found; tables that are dropped may stay in it"""
        self._cancelled = 0

    @property
    def ready(self) -> bool:
        """Whether Spark is there to work with; it is not while it is being started again."""
        return self._spark.ready

    @property
    def starts(self) -> int:
        """How many times Spark has been started."""
        return self._spark.starts

    @property
    def failure(self) -> SparkUnavailable | None:
        """Why there will be no Spark any more."""
        return self._spark.failure

    def begin(self) -> None:
        """Start Spark, unless that is left to whoever needs it first."""
        self._spark.begin()

    def start(self) -> None:
        """Start Spark and open the catalog, once. Raises SparkUnavailable, LakeUnwritable or LakeError."""
        self._spark.start()

    def stop(self) -> None:
        """End the Spark that `start` began; a session that was given goes on. Safe from any thread, and twice."""
        self._spark.stop()

    def kill(self) -> None:
        """End the Spark that `start` began at once, also while it starts: work under way fails."""
        self._spark.kill()

    def cancel(self, tables: Collection[TableId] | None = None) -> None:
        """Let the work under way, or that on some tables, fail now, so that a stop is quick; no commit is half made."""
        self._cancelled += 1
        try:
            if tables is None:
                self._spark.driver.cancel()
            else:
                names = tuple(f" {table}" for table in tables)
                self._spark.driver.cancel(lambda label: label.endswith(names))
            self._maintenance.cancel(tables)
        except Exception:
            # The JVM is gone, and what it did with it.
            log.debug("cancelling the work under way", exc_info=True)

    def applied(self, table: TableId, source_id: str) -> Applied | None:
        """Where a table stands; None if the lake has no such table. Raises ForeignTable if it is not ours.

        What a copy or a drop of it left behind when it was cut off is cleared up.
        """
        if self._spark.waits_for_demand and not self._pending_files.noted(source_id) and self._tables.in_sqlite:
            try:
                found = without_spark.find(self._path, table)
                return None if found is None else applied_of(require_own(found, table, source_id), table)
            except without_spark.NotPlain:
                log.debug("%s: only Iceberg itself can read it", table)
        with self._spark.work("reading", table) as session:
            self._pending_files.clear(session, source_id)
            found = self._lookup.own(session, table, source_id)
        return None if found is None else applied_of(found, table)

    def holder(self, table: TableId) -> str | None:
        """The id of the source table that a lake table was made from; None if the lake has no such table.

        Raises ForeignTable if wal2lake did not make it.
        """
        with self._spark.work("reading", table) as session:
            found = self._tables.find(session, table)
        if found is not None and found.source is None:
            raise not_ours(table)
        return None if found is None else found.source

    def has(self, table: TableId, source_id: str) -> bool:
        """Whether the lake has a table of this name that was made from a source table."""
        with self._spark.work("reading", table) as session:
            found = self._tables.find(session, table)
        return found is not None and found.source == source_id

    def copy(
        self,
        source: CopySource,
        snapshot: ExportedSnapshot,
        source_id: str,
        manifest: int,
        progress: Callable[[int], None],
        into: Into | None = None,
        epoch: int = 0,
    ) -> Applied:
        """Make or replace a table from the source at a snapshot, in one commit; `manifest` is the last one before it.

        The lake table is the one that `into` says, or else named like the source's. Without rows, an existing table
        keeps those that it has. Raises ForeignTable, or CopyFailed; with its field `unfit` True, a value did not fit
        its lake type.
        """
        copied = self._copies.write(
            source, snapshot, source_id, manifest, progress, into or Into(source.schema.id), epoch
        )
        self._with_copies.discard(copied.schema.id)
        return copied

    def apply(self, applied: Applied, batch: Batch, source_id: str, epoch: int = 0) -> Applied:
        """Bring a batch into its table in one commit, or find that it is there already; the record afterwards.

        Raises CopyNeeded where the table has to be re-copied, CommitFailed, CommitUnknown or another LakeError.
        """
        planned = plan(applied.schema, batch)
        if batch.schema is not None:
            applied = self.evolve(applied, batch.schema, source_id, epoch)
        if planned.how is How.NOTHING:
            return replace(applied, lsn=batch.to_lsn, manifest=batch.to_manifest)
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._commit(applied, batch, planned, source_id, epoch)
            except CommitFailed as error:
                # Mostly somebody's maintenance came in between; whether it was more than that is looked at again.
                log.debug("%s", error)
        return self._commit(applied, batch, planned, source_id, epoch)

    def _commit(self, applied: Applied, batch: Batch, planned: Plan, source_id: str, epoch: int) -> Applied:
        table = applied.schema.id
        changes = applied.changes + batch.changes
        record = Record(batch.to_lsn, batch.to_manifest, changes, next_version(applied.version, epoch))
        staged = self._tables.new_stage()
        settings = dict(self._tables.commit_settings(record, staged))
        if applied.rows + batch.rows < _SMALL:
            # One task writes one file; more would cost more than they save.
            settings["spark.sql.shuffle.partitions"] = "1"
        if not planned.few:
            # Spark goes by the size of files, and what is small there may be large in memory.
            settings["spark.sql.autoBroadcastJoinThreshold"] = "-1"
        try:
            with self._spark.work("applying changes to", table, settings) as session:
                found = self._lookup.there(session, table, source_id)
                now, already = already_applied(applied_of(found, table), applied, batch, epoch)
                if already:
                    return now
                self._tables.stage(session, table, found)
                staged = self._write(session, applied, batch, planned, staged, record)
                faults.reached(faults.LAKE_STAGED)
                published = self._tables.publish(session, table, staged, as_record(now))
                faults.reached(faults.LAKE_COMMITTED)
                return applied_of(published, table)
        except Wal2LakeError as error:
            # The commit may have gone through all the same: only the table knows.
            return self._despite(error, applied, batch, source_id)

    def _write(
        self, session: SparkSession, applied: Applied, batch: Batch, planned: Plan, staged: str, record: Record
    ) -> str:
        """Write a batch aside; the name that it has there.

        Whole rows are first taken for rows without copies, which most tables have alone.
        """
        from .apply import apply, apply_once

        table = applied.schema.id
        if planned.how is How.MATCH and not planned.gone and not self._counts_copies(applied):
            if apply_once(session, self._tables, applied.schema, batch, planned, applied.rows, staged):
                return staged
            log.debug("%s: it has rows that are the same, which are counted from now on", table)
            self._with_copies.add(table)
            # Under another name, so that the first one can never be taken for it.
            staged = self._tables.new_stage()
            for name, value in self._tables.commit_settings(record, staged).items():
                session.conf.set(name, value)
        apply(session, self._tables, applied.schema, batch, planned, applied.rows)
        return staged

    def _counts_copies(self, applied: Applied) -> bool:
        """Whether whole rows are looked for first: one pass would fail, or move every wide row of the table."""
        return applied.compaction_facts.wide or applied.schema.id in self._with_copies

    def evolve(self, applied: Applied, schema: TableSchema, source_id: str, epoch: int = 0) -> Applied:
        """Give a table the columns of another schema, in one commit, or find that it has them; its position stays."""
        from . import alter

        table, record = applied.schema.id, None
        require_carriable(schema)
        with self._spark.work("changing the columns of", table) as session:
            now = self._lookup.still(session, applied, source_id, epoch)
            if now.schema != schema or now.schema.heaps != schema.heaps or facts_differ(now.schema, schema):
                if alter.rewrites(now.schema, schema, now.rows):
                    record = Record(now.lsn, now.manifest, now.changes, next_version(now.version, epoch))
                else:
                    self._tables.evolve(session, now.schema, schema, as_record(now))
                    faults.reached(faults.LAKE_EVOLVED)
        if record is not None:
            settings = dict(self._tables.commit_settings(record))
            with self._spark.work("changing the columns of", table, settings) as session:
                alter.rewrite(session, self._tables, now.schema, schema, source_id, as_record(now))
                faults.reached(faults.LAKE_EVOLVED)
        with self._spark.work("reading", table) as session:
            now = self._lookup.now(session, table, source_id)
        log.info("%s: its columns follow the source", table)
        # Batches without effect may have moved the position beyond the record.
        return replace(
            applied, rows=now.rows, schema=now.schema, compaction_facts=now.compaction_facts, version=now.version
        )

    def exchange(
        self, applied: Applied, source: CopySource, snapshot: ExportedSnapshot, what: Exchange, schema: TableSchema,
        source_id: str, epoch: int = 0,
    ) -> Applied:  # fmt: skip
        """Put the rows of single partitions at a snapshot into a table that has all else up to it, in one commit.

        `source` are the partitions that are copied, `schema` is what the table knows of its partitions afterwards.
        If it does not come to know it, they are exchanged again: the result is the same.
        """
        from . import exchange, initial_copy

        table = applied.schema.id
        version, staged = next_version(applied.version, epoch), self._tables.new_stage()
        record = Record(snapshot.lsn, applied.manifest, applied.changes, version)
        settings = dict(self._tables.commit_settings(record, staged))
        with self._spark.work("exchanging partitions of", table, settings, True) as session:
            found = self._lookup.there(session, table, source_id)
            now = still_at(applied_of(found, table), applied, epoch)
            if now.lsn > snapshot.lsn:
                raise CommitFailed(table=str(table), cause="the table has moved on since it was looked at")
            self._tables.stage(session, table, found)
            rows = initial_copy.read(session, source, snapshot, self._spark.driver.cores)
            if exchange.write(session, self._tables, applied.schema, rows, source.schema, what):
                self._tables.publish(session, table, staged, as_record(now))
            else:
                self._tables.restate(session, table, record, as_record(now))
            faults.reached(faults.PARTITIONS_EXCHANGED)
        return self.evolve(replace(applied, lsn=snapshot.lsn, version=version), schema, source_id, epoch)

    def due(self, applied: Applied) -> Work | None:
        """The maintenance that a table needs, if any: judged by `applied`, without a look at the lake."""
        return self._maintenance.due(applied.schema.id, applied.compaction_facts)

    def maintain(self, applied: Applied, source_id: str) -> Applied:
        """Do a step of the maintenance that a table needs; the record afterwards, which says the same of its rows.

        What fails is told as a warning and tried again later: the table is as good as it was before.
        """
        table, cancelled = applied.schema.id, self._cancelled
        try:
            with self._spark.work("the maintenance of", table) as session:
                now = self._lookup.still(session, applied, source_id, applied.version.epoch)
                record = as_record(now)
                self._maintenance.work(session, table, self._tables.commit_properties(record))
                self._tables.note_record(session, table)
                now = self._lookup.now(session, table, source_id)
                # Batches without effect may have moved the position beyond the record.
                return replace(applied, rows=now.rows, compaction_facts=now.compaction_facts)
        except Wal2LakeError as error:
            if self._cancelled == cancelled:
                self._maintenance.failed(table)
                log.warning("%s", error)
            log.debug("the cause", exc_info=True)
            return applied

    def restate(self, applied: Applied, source_id: str, epoch: int = 0) -> Applied:
        """Write a position record for the rows that a table has, in a commit without any change of them.

        The version that its schema has in the change log is written, too.
        """
        table = applied.schema.id
        with self._spark.work("noting the position of", table) as session:
            now = self._lookup.still(session, applied, source_id, epoch)
            record = Record(applied.lsn, applied.manifest, applied.changes, next_version(now.version, epoch))
            if now.schema.version != applied.schema.version:
                self._tables.describe(session, table, applied.schema, source_id, as_record(now))
            # Describing it makes no new version.
            self._tables.restate(session, table, record, as_record(now))
            return self._lookup.now(session, table, source_id)

    def rename(self, source_id: str, names: Sequence[TableId], new: TableId) -> Applied | None:
        """Give the table of a source table another name; its files stay where they are. None if the lake has none.

        It has one of `names` now, or the new one already. Raises ForeignTable if that is another's.
        """
        with self._spark.work("renaming", new) as session:
            # What an interrupted copy has left is found by the name that the table had.
            self._pending_files.clear(session, source_id)
            if self._lookup.own(session, new, source_id) is None:
                found = ((name, self._tables.find(session, name)) for name in names)
                old = next((name for name, one in found if one is not None and one.source == source_id), None)
                if old is None:
                    return None
                self._tables.rename(session, old, new)
                log.info("lake table %s is renamed to %s", old, new)
                faults.reached(faults.LAKE_RENAMED)
            now = self._lookup.now(session, new, source_id)
            # The name in the table's own description is set last, so that it is set again after a crash in between.
            self._tables.describe(session, new, now.schema, source_id, as_record(now))
            return now

    def drop(self, table: TableId, source_id: str | None = None) -> None:
        """Remove a table that is ours and its files; nothing happens if there is none. Raises ForeignTable.

        With `source_id`, only if it was made from that source table.
        """
        with self._spark.work("dropping", table) as session:
            if source_id is not None:
                self._pending_files.clear(session, source_id)
            found = self._tables.find(session, table)
            if found is None:
                return
            if found.source is None or source_id not in (None, found.source):
                raise not_ours(table)
            self._pending_files.dropping(table, found.source, found.location)
            self._tables.drop(session, table)
            self._pending_files.clear(session, found.source)

    def _despite(self, error: Wal2LakeError, applied: Applied, batch: Batch, source_id: str) -> Applied:
        try:
            now = self.applied(applied.schema.id, source_id)
        except Wal2LakeError:
            raise error from error.__cause__
        if now is not None and includes(now, batch):
            return now
        raise error
