"""Iceberg tables: the catalog, their properties, and the position record in the snapshot summary.

Metadata is read through Iceberg's Java objects, which takes milliseconds and no Spark job. Spark's catalog cache is
off, because each session has its own, which would not see commits of other sessions.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ... import faults
from ...errors import CommitFailed
from ...schema import TableId, TableSchema
from ..format import DataFile, FailureKind, Found, Merge, NeedsSession, Record, Rewrite
from ..model import Facts
from ..names import CATALOG, quoted, sql_name
from ..spark.gateway import jvm
from ..spark.java_errors import chain
from . import compaction, orphans, without_spark
from .catalog import IcebergCatalog
from .evolving import change_columns
from .history import newest_record, staged_version
from .layout import Layout
from .metadata import (
    NOTED,
    SCHEMA,
    TABLE_PROPERTIES,
    WAP,
    facts_of,
    found,
    identity,
    local,
    properties_of,
    record_of,
    schema_text,
)
from .replacing import Replacement
from .runtime import RUNTIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_STAGED = "wal2lake_staged_"
_STAGED_NAME = re.compile(_STAGED + "[0-9a-f]{32}")
_GUARD = "wal2lake_guard"
_WAP_ID = "spark.wap.id"
_ATTEMPTS = 3
_GAINS = {"added-records": 1, "deleted-records": -1, "added-position-deletes": -1, "removed-position-deletes": 1}

_EXCEPTIONS = "org.apache.iceberg.exceptions."
_FAILURES = {
    FailureKind.COMMIT_UNKNOWN: (_EXCEPTIONS + "CommitStateUnknownException",),
    FailureKind.COMMIT_FAILED: (_EXCEPTIONS + "CommitFailedException", _EXCEPTIONS + "ValidationException"),
    FailureKind.CATALOG: ("org.sqlite.SQLiteException",),
}
"""in the order of the search"""


class IcebergTables(IcebergCatalog):
    """TableFormat for Iceberg."""

    name = "Iceberg"
    runtime = RUNTIME
    reserved_columns = frozenset(
        {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
    )
    row_address = ("_file", "_pos")

    def commit_settings(self, record: Record, staged: str | None = None) -> dict[str, str]:
        settings = {_SNAPSHOT_PROPERTY + name: value for name, value in properties_of(record).items()}
        return settings if staged is None else {**settings, _WAP_ID: staged}

    def new_stage(self) -> str:
        return _STAGED + uuid4().hex

    def sql_name(self, table: TableId) -> str:
        return sql_name(table)

    def find(self, session: SparkSession, table: TableId) -> Found | None:
        loaded = self.load(session, table)
        if loaded is None:
            return None
        return self._found(session, loaded)

    def _found(self, session: SparkSession, loaded: Any) -> Found:
        current = loaded.currentSnapshot()
        summary = self._summary(session, current)
        record = newest_record(session, self._java(session), loaded, current, summary)
        return found(loaded.properties(), str(loaded.location()), summary, record, _facts(loaded, current, summary))

    def find_without_session(self, table: TableId) -> Found | None:
        if self._lake.catalog:
            raise NeedsSession
        return without_spark.find(self._path, table)

    def create(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, location: str | None
    ) -> None:
        with self._namespaces:
            # Two copies into one schema would both find it missing, and the catalog accepts only one CREATE.
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quoted(schema.id.schema)}")
        writer = frame.writeTo(sql_name(schema.id)).using("iceberg")
        for name, value in {**TABLE_PROPERTIES, **self._lake.properties, **identity(schema, source)}.items():
            writer = writer.tableProperty(name, value)
        if location is not None:
            writer = writer.tableProperty("location", location)
        writer.create()
        self.note_record(session, schema.id)

    def replace(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        loaded = self.load(session, schema.id)
        if _columns(frame) == _columns(session.table(sql_name(schema.id))):
            self._refill(session, loaded, frame, schema, source, parent)
            return
        layout = Layout.of(loaded, schema.names)
        replacement = Replacement(session, loaded, frame, layout, identity(schema, source))
        replacement.append(frame)
        replacement.set_properties(self._note(session, replacement.table.currentSnapshot()))
        faults.reached(faults.LAKE_STAGED)
        self._commit_replacement(session, replacement, schema.id, parent, loaded.currentSnapshot())

    def _commit_replacement(
        self, session: SparkSession, replacement: Replacement, table: TableId, parent: Record | None, began: Any
    ) -> None:
        """Commit on top of the version that it began from, or of compactions of that by others."""
        from py4j.protocol import Py4JJavaError

        for attempt in range(_ATTEMPTS):
            loaded = self.load(session, table)
            if loaded is None or not self._same_rows(session, loaded, began, parent):
                raise _outrun(table)
            try:
                replacement.commit(loaded)
                return
            except Py4JJavaError as error:
                refused = any(link.name.endswith("CommitFailedException") for link in chain(error))
                if not refused or attempt == _ATTEMPTS - 1:
                    raise

    def _same_rows(self, session: SparkSession, loaded: Any, began: Any, record: Record | None) -> bool:
        """Whether a table has this record, and only compactions came after the snapshot `began`."""
        current = loaded.currentSnapshot()
        if began is None or current is None:
            return began is current is record is None
        if not self._stands(session, loaded, current.snapshotId(), record):
            return False
        while current is not None and current.snapshotId() != began.snapshotId():
            parent = current.parentId() if current.operation() == "replace" else None
            current = None if parent is None else loaded.snapshot(parent)
        return current is not None

    def _refill(
        self, session: SparkSession, loaded: Any, frame: DataFrame, schema: TableSchema, source: str,
        parent: Record | None,
    ) -> None:  # fmt: skip
        """Replace all rows; everything else of the table stays."""
        staged = self.new_stage()
        self._enable_staging(loaded)
        session.conf.set(_WAP_ID, staged)
        try:
            self.overwrite(session, frame, schema.id)
        finally:
            session.conf.unset(_WAP_ID)
        self.publish(session, schema.id, staged, parent, identity(schema, source))

    def evolve(self, session: SparkSession, before: TableSchema, after: TableSchema, parent: Record | None) -> None:
        transaction = self.existing(session, before.id).newTransaction()
        self._guard(session, transaction, before.id, parent)
        change_columns(self._java(session), transaction, before, after)
        _set_properties(transaction, {SCHEMA: schema_text(after)})
        transaction.commitTransaction()

    def append(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:  # noqa: ARG002 - the contract
        frame.writeTo(sql_name(table)).append()

    def overwrite(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:  # noqa: ARG002
        from pyspark.sql.functions import lit

        frame.writeTo(sql_name(table)).overwrite(lit(True))

    def merge(self, session: SparkSession, table: TableId, merge: Merge) -> None:
        head = f"MERGE INTO {sql_name(table)} AS t USING ({merge.source}) AS s ON {merge.on}"
        session.sql("\n".join([head, *merge.clauses]))

    def restate(self, session: SparkSession, table: TableId, record: Record, parent: Record | None) -> None:
        transaction = self.load(session, table).newTransaction()
        self._guard(session, transaction, table, parent)
        append = transaction.newAppend()
        for name, value in properties_of(record).items():
            append = append.set(name, value)
        append.commit()
        _set_properties(transaction, self._note(session, transaction.table().currentSnapshot()))
        transaction.commitTransaction()

    def stage(self, session: SparkSession, table: TableId, found: Found) -> None:
        if not found.stages:
            self._enable_staging(self.load(session, table))

    def _enable_staging(self, loaded: Any) -> None:
        """Tables made by earlier versions need this property for staging."""
        if loaded.properties().get(WAP) != "true":
            loaded.updateProperties().set(WAP, "true").commit()

    def publish(
        self, session: SparkSession, table: TableId, staged: str, parent: Record | None,
        properties: Mapping[str, str] | None = None,
    ) -> Found:  # fmt: skip
        """Staged versions of a dead or late writer are never published, and expire with the old versions.

        Iceberg would rebase a commit on whatever is current. But the catalog refuses to move the main branch if
        anything was committed since the table was loaded here.
        """
        loaded = self.load(session, table)
        head = None if loaded is None else staged_version(loaded, staged)
        if head is None:
            raise CommitFailed(table=str(table), cause="the staged version does not exist")
        transaction = loaded.newTransaction()
        if not self._stands(session, transaction.table(), head.parentId(), parent):
            raise _outrun(table)
        update = transaction.manageSnapshots().replaceBranch("main", head.snapshotId())
        # As text, it is one call into the JVM whatever their number.
        for name in _STAGED_NAME.findall(loaded.refs().keySet().toString()):
            # Left by a version that staged on branches.
            update = update.removeBranch(name)
        update.commit()
        _set_properties(transaction, {**(properties or {}), **self._note(session, head)})
        transaction.commitTransaction()
        return self._found(session, transaction.table())

    def gained(self, session: SparkSession, table: TableId, staged: str) -> int:
        loaded = self.load(session, table)
        head = None if loaded is None else staged_version(loaded, staged)
        if head is None:
            return 0
        # Counted by the commit itself: totals are missing if an earlier writer left them out.
        summary = self._summary(session, head)
        return sum(sign * int(summary.get(name, 0)) for name, sign in _GAINS.items())

    def note_record(self, session: SparkSession, table: TableId) -> None:
        """Copy the record of the current version into the table's properties, which survive the version."""
        loaded = self.load(session, table)
        current = None if loaded is None else loaded.currentSnapshot()
        note = {} if current is None else self._note(session, current)
        if note and loaded.properties().get(NOTED) != note[NOTED]:
            loaded.updateProperties().set(NOTED, note[NOTED]).commit()

    def _note(self, session: SparkSession, snapshot: Any) -> dict[str, str]:
        record = record_of(self._summary(session, snapshot))
        if record is None:
            return {}
        return {NOTED: json.dumps({"snapshot": snapshot.snapshotId(), **properties_of(record)})}

    def _guard(self, session: SparkSession, transaction: Any, table: TableId, parent: Record | None) -> None:
        """Make a transaction fail if anything is committed before it; Iceberg would rebase most updates.

        Changes of references are the updates that Iceberg never retries on a newer version.
        """
        current = transaction.table().currentSnapshot().snapshotId()
        if not self._stands(session, transaction.table(), current, parent):
            raise _outrun(table)
        transaction.manageSnapshots().createTag(_GUARD, current).removeTag(_GUARD).commit()

    def _stands(self, session: SparkSession, loaded: Any, snapshot: int, record: Record | None) -> bool:
        """Whether a snapshot is the current one and has this record."""
        current = loaded.currentSnapshot()
        if current is None or current.snapshotId() != snapshot:
            return False
        return newest_record(session, self._java(session), loaded, current, self._summary(session, current)) == record

    def rename(self, session: SparkSession, table: TableId, new: TableId) -> None:
        with self._namespaces:
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quoted(new.schema)}")
        java = self._java(session)
        self._catalog(session).renameTable(java.identifier(table), java.identifier(new))

    def describe(
        self, session: SparkSession, table: TableId, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        transaction = self.load(session, table).newTransaction()
        self._guard(session, transaction, table, parent)
        _set_properties(transaction, identity(schema, source))
        transaction.commitTransaction()

    def drop(self, session: SparkSession, table: TableId) -> None:
        self._catalog(session).dropTable(self._java(session).identifier(table), True)

    def files(self, session: SparkSession, table: TableId) -> frozenset[str]:
        loaded = self.load(session, table)
        if loaded is None:
            return frozenset()
        reachable = jvm(session).org.apache.iceberg.ReachableFileUtil
        found = set(map(str, reachable.metadataFileLocations(loaded, True)))
        found |= set(map(str, reachable.manifestListLocations(loaded)))
        found |= set(map(str, reachable.statisticsFilesLocations(loaded)))
        for part, column in (("all_manifests", "path"), ("all_files", "file_path")):
            listed = session.table(f"{sql_name(table)}.{part}").select(column).distinct()
            found |= {str(row[0]) for row in listed.collect()}
        return frozenset(local(file) for file in found)

    def facts(self, session: SparkSession, table: TableId) -> Facts:
        loaded = self.load(session, table)
        return Facts() if loaded is None else self._loaded_facts(session, loaded)

    def _loaded_facts(self, session: SparkSession, loaded: Any) -> Facts:
        current = loaded.currentSnapshot()
        return _facts(loaded, current, self._summary(session, current))

    def data_files(self, session: SparkSession, table: TableId) -> list[DataFile]:
        return compaction.data_files(session, table)

    def compact(
        self, session: SparkSession, table: TableId, rewrite: Rewrite | None, most: int, record: Record
    ) -> None:
        loaded = self.existing(session, table)
        if rewrite is not None:
            compaction.rewrite_files(session, loaded, rewrite, most, properties_of(record))
            loaded.refresh()
        if not compaction.has_vectors(session, loaded) and self._loaded_facts(session, loaded).delete_files:
            compaction.rewrite_deletes(session, loaded, properties_of(record))

    def expire(self, session: SparkSession, table: TableId, keep: int, before: float, record: Record) -> None:
        compaction.expire(session, self.existing(session, table), keep, before, properties_of(record))

    def clean_up(
        self, session: SparkSession, location: str, table: TableId, source: str, since: float, free: bool
    ) -> None:
        directory = Path(location)
        if not directory.is_relative_to(self._path) or not directory.exists():
            return
        # The table may have been renamed, and a user's catalog may put two tables into one directory.
        placed = self.placed(session, location)
        if not placed and free:
            shutil.rmtree(directory, ignore_errors=True)
        elif placed == {table} and (now := self.find(session, table)) is not None and now.source == source:
            referenced = self.files(session, table)
            for path in [path for path in orphans.newer(directory, since) if orphans.owner(path) not in referenced]:
                path.unlink(missing_ok=True)

    def remove_orphans(self, session: SparkSession, table: TableId, before: float) -> int:
        location = Path(str(self.existing(session, table).location()))
        data = location / "data"
        if not data.is_relative_to(self._path):
            return 0
        if self._lake.catalog and self.placed(session, str(location)) != {table}:
            # The user's own catalog may put two tables into one directory.
            return 0
        # Listed before the table is loaded, so that files of later commits are never taken for orphans.
        old = orphans.older(data, before)
        found = orphans.unreferenced(data, old, self.files(session, table)) if old else []
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def failure_kind(self, causes: Sequence[str]) -> FailureKind | None:
        return next((kind for kind, names in _FAILURES.items() if any(name in names for name in causes)), None)

    def _summary(self, session: SparkSession, snapshot: Any) -> Mapping[str, str]:
        return {} if snapshot is None else self._java(session).summary(snapshot)


def _set_properties(transaction: Any, properties: Mapping[str, str]) -> None:
    update = transaction.updateProperties()
    for name, value in properties.items():
        update = update.set(name, value)
    update.commit()


def _outrun(table: TableId) -> CommitFailed:
    return CommitFailed(table=str(table), cause="another writer changed the table at the same time")


def _columns(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def _facts(loaded: Any, current: Any, summary: Mapping[str, str]) -> Facts:
    if current is None:
        return Facts()
    snapshots = loaded.snapshots()
    oldest = snapshots.get(0).timestampMillis()
    return facts_of(summary, snapshots.size(), oldest, current.timestampMillis())
