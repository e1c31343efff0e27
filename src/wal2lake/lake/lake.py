"""The lake, for the rest of wal2lake: positions of tables, initial copies, apply.

Every promise about positions is kept here: rows and position record of a table are in one commit, and the result of a
commit is always read from the version that it made, never assumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import faults
from ..changelog import storage_for
from ..errors import CommitFailed, SparkUnavailable, Wal2LakeError
from ..evolution import facts_differ
from ..schema import TableId, TableSchema
from ..source import CopySource, ExportedSnapshot
from .applying.carriable import require_carriable
from .applying.commit_plan import CommitPlan, How, plan_commit
from .applying.lookup import Lookup
from .applying.records import (
    already_applied,
    applied_of,
    as_record,
    includes,
    next_version,
    not_ours,
    require_own,
    still_at,
)
from .choice import table_format
from .copying.copy_writer import CopyWriter
from .format import NeedsSession, Record, TableFormat
from .maintenance.compaction import Maintenance
from .maintenance.pending_files import PendingFiles
from .model import Applied, Batch, Exchange, Into, Work, still_visible
from .spark.service import SparkService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..config import Config

log = logging.getLogger(__name__)

_SMALL = 500_000
"""limit of rows and changes below which a merge is faster on one core"""
_ATTEMPTS = 3
"""retries of a commit on a newer version"""


class Lake:
    """Implements `LakeTables` with Spark and the configured table format."""

    def __init__(
        self, config: Config, spark: SparkSession | None = None, on_demand: bool = False,
        tables: TableFormat | None = None,
    ) -> None:  # fmt: skip
        """`on_demand`: start Spark only when it is needed. `tables`: by default those of the configured format."""
        self._tables = tables if tables is not None else table_format(config)
        self._spark = SparkService(config, self._tables, spark, on_demand)
        self._pending_files = PendingFiles(storage_for(config.changelog_path), self._tables)
        self._lookup = Lookup(self._tables)
        self._copies = CopyWriter(self._spark, self._tables, self._lookup, self._pending_files)
        self._maintenance = Maintenance(config.maintenance, self._tables)
        self._with_copies: set[TableId] = set()
        """tables in which duplicate rows were found; dropped tables may stay in it"""
        self._cancelled = 0

    @property
    def ready(self) -> bool:
        """Whether Spark is available; it is not during a restart."""
        return self._spark.ready

    @property
    def starts(self) -> int:
        """How often Spark has been started."""
        return self._spark.starts

    @property
    def failure(self) -> SparkUnavailable | None:
        """Why Spark will not be started again; None: it may be."""
        return self._spark.failure

    def begin(self) -> None:
        """Start Spark, unless it is to be started on demand."""
        self._spark.begin()

    def start(self) -> None:
        """Start Spark and open the catalog, once. Raises SparkUnavailable, LakeUnwritable or LakeError."""
        self._spark.start()

    def stop(self) -> None:
        """Stop the Spark that `start` started; a session of the user goes on. Any thread may call it, repeatedly."""
        self._spark.stop()

    def kill(self) -> None:
        """Kill the Spark that `start` started, also during its start: running work fails."""
        self._spark.kill()

    def cancel(self, tables: Collection[TableId] | None = None) -> None:
        """Make running work, or that on some tables, fail soon, for a quick stop; commits are atomic."""
        self._cancelled += 1
        try:
            if tables is None:
                self._spark.driver.cancel()
            else:
                names = tuple(f" {table}" for table in tables)
                self._spark.driver.cancel(lambda label: label.endswith(names))
            self._maintenance.cancel(tables)
        except Exception:
            # The JVM has died, and its work with it.
            log.debug("cancelling the work under way", exc_info=True)

    def applied(self, table: TableId, source_id: str) -> Applied | None:
        """The position record of a table; None if it does not exist. Raises ForeignTable if it is not ours.

        Cleans up what an interrupted copy or drop of it has left.
        """
        if self._spark.waits_for_demand and not self._pending_files.noted(source_id):
            try:
                found = self._tables.find_without_session(table)
                return None if found is None else applied_of(require_own(found, table, source_id), table)
            except NeedsSession:
                log.debug("%s: it can't be read without Spark", table)
        with self._spark.work("reading", table) as session:
            self._pending_files.clear(session, source_id)
            found = self._lookup.own(session, table, source_id)
        return None if found is None else applied_of(found, table)

    def holder(self, table: TableId) -> str | None:
        """The id of the source table of a lake table; None if the lake table does not exist.

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
        """Create or replace a table from the source at a snapshot, in one commit; `manifest` is the last one before it.

        `into` names the lake table; the default is the name of the source table. Without rows, an existing table keeps
        its own. Raises ForeignTable, or CopyFailed; its field `unfit` is True if a value did not fit its lake type.
        """
        copied = self._copies.write(
            source, snapshot, source_id, manifest, progress, into or Into(source.schema.id), epoch
        )
        self._with_copies.discard(copied.schema.id)
        return copied

    def apply(self, applied: Applied, batch: Batch, source_id: str, epoch: int = 0) -> Applied:
        """Apply a batch to its table in one commit, unless it was applied before; return the new record.

        Raises CopyNeeded if the table must be re-copied, CommitFailed, CommitUnknown or another LakeError.
        """
        planned = plan_commit(applied.schema, batch)
        if batch.schema is not None:
            applied = self.evolve(applied, batch.schema, source_id, epoch)
        if planned.how is How.NOTHING:
            return applied.at(batch.to_lsn, batch.to_manifest)
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._commit(applied, batch, planned, source_id, epoch)
            except CommitFailed as error:
                # Usually a compaction by others came first; the next attempt reads the table again.
                log.debug("%s", error)
        return self._commit(applied, batch, planned, source_id, epoch)

    def _commit(self, applied: Applied, batch: Batch, planned: CommitPlan, source_id: str, epoch: int) -> Applied:
        table = applied.schema.id
        changes = applied.changes + batch.changes
        visibility = still_visible(applied.visibility, batch.to_lsn)
        record = Record(batch.to_lsn, batch.to_manifest, changes, next_version(applied.version, epoch), visibility)
        staged = self._tables.new_stage()
        settings = dict(self._tables.commit_settings(record, staged))
        if applied.rows + batch.rows < _SMALL:
            # One task writes one file; more files would cost more than the tasks save.
            settings["spark.sql.shuffle.partitions"] = "1"
        if not planned.few:
            # Spark estimates by file sizes, but what is small there may be large in memory.
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
            # The commit may have succeeded: only the table shows it.
            return self._despite(error, applied, batch, source_id)

    def _write(
        self, session: SparkSession, applied: Applied, batch: Batch, planned: CommitPlan, staged: str, record: Record
    ) -> str:
        """Stage a batch; return the name of the stage.

        Whole rows are first matched as if there were no duplicates, which most tables do not have.
        """
        from .applying.apply import apply, apply_once

        table = applied.schema.id
        if planned.how is How.MATCH and not planned.gone and not self._counts_copies(applied):
            if apply_once(session, self._tables, applied.schema, batch, planned, applied.rows, staged):
                return staged
            log.debug("%s: it has duplicate rows, which are counted from here on", table)
            self._with_copies.add(table)
            # Under another name, so that the first result can never be published.
            staged = self._tables.new_stage()
            for name, value in self._tables.commit_settings(record, staged).items():
                session.conf.set(name, value)
        apply(session, self._tables, applied.schema, batch, planned, applied.rows)
        return staged

    def _counts_copies(self, applied: Applied) -> bool:
        """Whether duplicates are counted at once: one pass would fail, or move every wide row of the table."""
        return applied.compaction_facts.wide or applied.schema.id in self._with_copies

    def evolve(self, applied: Applied, schema: TableSchema, source_id: str, epoch: int = 0) -> Applied:
        """Give a table the columns of another schema, in one commit, unless it has them; its position stays."""
        from .applying import alter

        table, record = applied.schema.id, None
        require_carriable(schema, self._tables)
        with self._spark.work("changing the columns of", table) as session:
            now = self._lookup.still(session, applied, source_id, epoch)
            if now.schema != schema or now.schema.heaps != schema.heaps or facts_differ(now.schema, schema):
                if alter.rewrites(now.schema, schema, now.rows):
                    record = replace(as_record(now), version=next_version(now.version, epoch))
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
        """Exchange rows of single partitions at a snapshot, in a table that has all else up to it, in one commit.

        `source` has the partitions that are copied, `schema` the partitions that the table has afterwards. If storing
        `schema` fails, they are exchanged again, with the same result.
        """
        from .copying import exchange, initial_copy

        table = applied.schema.id
        version, staged = next_version(applied.version, epoch), self._tables.new_stage()
        if snapshot.visibility is not None:
            raise ValueError("single partitions are exchanged at a position of the stream")
        after = replace(applied.at(snapshot.lsn, applied.manifest), version=version)
        record = as_record(after)
        settings = dict(self._tables.commit_settings(record, staged))
        with self._spark.work("exchanging partitions of", table, settings, True) as session:
            found = self._lookup.there(session, table, source_id)
            now = still_at(applied_of(found, table), applied, epoch)
            if now.lsn > snapshot.lsn:
                raise CommitFailed(table=str(table), cause="the table has changed since it was read")
            self._tables.stage(session, table, found)
            rows = initial_copy.read(session, source, snapshot, self._spark.driver.cores)
            if exchange.write(session, self._tables, applied.schema, rows, source.schema, what):
                self._tables.publish(session, table, staged, as_record(now))
            else:
                self._tables.restate(session, table, record, as_record(now))
            faults.reached(faults.PARTITIONS_EXCHANGED)
        return self.evolve(after, schema, source_id, epoch)

    def due(self, applied: Applied) -> Work | None:
        """The maintenance that a table needs, if any; decided from `applied`, without reading the table."""
        return self._maintenance.due(applied.schema.id, applied.compaction_facts)

    def maintain(self, applied: Applied, source_id: str) -> Applied:
        """Do a step of the maintenance that a table needs; return the record, which has the same position.

        A failure is logged as a warning and retried later; the table is unchanged then.
        """
        table, cancelled = applied.schema.id, self._cancelled
        try:
            with self._spark.work("the maintenance of", table) as session:
                now = self._lookup.still(session, applied, source_id, applied.version.epoch)
                self._maintenance.work(session, table, as_record(now))
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
        """Write a position record for the present rows of a table, in a commit that changes none.

        The schema version of the change log is written, too.
        """
        table = applied.schema.id
        with self._spark.work("noting the position of", table) as session:
            now = self._lookup.still(session, applied, source_id, epoch)
            record = replace(as_record(applied), version=next_version(now.version, epoch))
            if now.schema.version != applied.schema.version:
                self._tables.describe(session, table, applied.schema, source_id, as_record(now))
            # Describing it creates no new version.
            self._tables.restate(session, table, record, as_record(now))
            return self._lookup.now(session, table, source_id)

    def rename(self, source_id: str, names: Sequence[TableId], new: TableId) -> Applied | None:
        """Rename the lake table of a source table; its files stay in place. None if it does not exist.

        Its present name is one of `names` or the new one. Raises ForeignTable if the new name is another table's.
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
        """Drop a table of ours with its files, if it exists. Raises ForeignTable.

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
