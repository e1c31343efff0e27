"""Iceberg tables: the catalog, their properties, and the position record in the snapshot summary.

Metadata is read through Iceberg's own Java objects, which costs milliseconds and no Spark job. Spark's catalog cache
is off, because each session has a cache of its own that would not see the commits of the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .. import faults
from ..errors import CommitFailed
from ..evolution import changes
from ..schema import TableId, TableSchema
from .compaction_policy import Facts, facts_of
from .expired_versions import ExpiredVersions
from .format import Found, Record
from .iceberg_catalog import IcebergCatalog
from .java import jvm
from .java_errors import chain
from .layout import Layout
from .metadata import NOTED, RECORD, SCHEMA, WAP, found, identity, later, local, properties_of, record_of, schema_text
from .names import CATALOG, quoted, sql_name
from .replacing import Replacement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_MOVING = "wal2lake_moving_"
_STAGED = "wal2lake_staged_"
_STAGED_NAME = re.compile(_STAGED + "[0-9a-f]{32}")
_GUARD = "wal2lake_guard"
_WAP_ID, _WAP_SUMMARY = "spark.wap.id", "wap.id"
_ATTEMPTS = 3
_GAINS = {"added-records": 1, "deleted-records": -1, "added-position-deletes": -1, "removed-position-deletes": 1}

TABLE_PROPERTIES: Mapping[str, str] = {
    "format-version": "3",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # Rows stay in the task that has them: a shuffle before each small write would cost more than a file saves.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.update.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    # Commits are staged first, see `publish`.
    WAP: "true",
}


class IcebergTables(IcebergCatalog):
    """TableFormat for Iceberg."""

    row_address = ("_file", "_pos")

    def commit_settings(self, record: Record, staged: str | None = None) -> dict[str, str]:
        settings = {_SNAPSHOT_PROPERTY + name: value for name, value in self.commit_properties(record).items()}
        return settings if staged is None else {**settings, _WAP_ID: staged}

    def new_stage(self) -> str:
        return _STAGED + uuid4().hex

    def commit_properties(self, record: Record) -> dict[str, str]:
        """The record as it stands in the summary of a snapshot."""
        return properties_of(record)

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
        record = self._newest_record(session, loaded, current, summary)
        return found(loaded.properties(), str(loaded.location()), summary, record, _facts(loaded, current, summary))

    def facts(self, session: SparkSession, loaded: Any) -> Facts:
        """What the current version of a loaded table says that maintenance goes by."""
        current = loaded.currentSnapshot()
        return _facts(loaded, current, self._summary(session, current))

    def create(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, location: str | None
    ) -> None:
        with self._namespaces:
            # Two copies of one schema would both find it missing, and the catalog takes only one of them.
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
        """Commit upon the version that it began from, or upon a compaction of that by somebody."""
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
        """Whether a table has this record, and nothing but compactions came upon the snapshot `began`."""
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
        """Put rows in the place of all rows: the table keeps all that it has beside them."""
        staged = self.new_stage()
        self._enable_staging(loaded)
        session.conf.set(_WAP_ID, staged)
        try:
            self.overwrite(session, frame, schema.id)
        finally:
            session.conf.unset(_WAP_ID)
        self.publish(session, schema.id, staged, parent, identity(schema, source))

    def evolve(self, session: SparkSession, before: TableSchema, after: TableSchema, parent: Record | None) -> None:
        wanted = changes(before, after)
        java = self._java(session)
        transaction = self._catalog(session).loadTable(java.identifier(before.id)).newTransaction()
        self._guard(session, transaction, before.id, parent)
        if wanted.dropped or wanted.renamed:
            # Names are free again before others take them: two columns may change places.
            first = transaction.updateSchema()
            for column in wanted.dropped:
                first.deleteColumn(column.name)
            for place, (old, _) in enumerate(wanted.renamed):
                first.renameColumn(old.name, _MOVING + str(place))
            first.commit()
        if wanted.renamed or wanted.widened or wanted.added:
            second = transaction.updateSchema()
            for place, (_, new) in enumerate(wanted.renamed):
                second.renameColumn(_MOVING + str(place), new.name)
            moved = {old.attnum: _MOVING + str(place) for place, (old, _) in enumerate(wanted.renamed)}
            for old, new in wanted.widened:
                second.updateColumn(moved.get(old.attnum, old.name), java.type(new.lake))
            for column in wanted.added:
                second.addColumn(None, column.name, java.type(column.lake), None)
            second.commit()
        _set_properties(transaction, {SCHEMA: schema_text(after)})
        transaction.commitTransaction()

    def append(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:  # noqa: ARG002 - the contract
        frame.writeTo(sql_name(table)).append()

    def overwrite(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:  # noqa: ARG002
        from pyspark.sql.functions import lit

        frame.writeTo(sql_name(table)).overwrite(lit(True))

    def restate(self, session: SparkSession, table: TableId, record: Record, parent: Record | None) -> None:
        transaction = self.load(session, table).newTransaction()
        self._guard(session, transaction, table, parent)
        append = transaction.newAppend()
        for name, value in self.commit_properties(record).items():
            append = append.set(name, value)
        append.commit()
        _set_properties(transaction, self._note(session, transaction.table().currentSnapshot()))
        transaction.commitTransaction()

    def stage(self, session: SparkSession, table: TableId, found: Found) -> None:
        if not found.stages:
            self._enable_staging(self.load(session, table))

    def _enable_staging(self, loaded: Any) -> None:
        """Tables of earlier versions stage nothing before they have this property."""
        if loaded.properties().get(WAP) != "true":
            loaded.updateProperties().set(WAP, "true").commit()

    def publish(
        self, session: SparkSession, table: TableId, staged: str, parent: Record | None,
        properties: Mapping[str, str] | None = None,
    ) -> Found:  # fmt: skip
        """What a dead or late writer has staged is never published, and expires with the old versions.

        Iceberg itself would put a commit upon whatever is current. Moving the main branch is refused by the catalog if
        anything was committed since the table was loaded here.
        """
        loaded = self.load(session, table)
        head = None if loaded is None else _staged(loaded, staged)
        if head is None:
            raise CommitFailed(table=str(table), cause="what was written is not there")
        transaction = loaded.newTransaction()
        if not self._stands(session, transaction.table(), head.parentId(), parent):
            raise _outrun(table)
        update = transaction.manageSnapshots().replaceBranch("main", head.snapshotId())
        # As text, it is one call into the JVM however many there are.
        for name in _STAGED_NAME.findall(loaded.refs().keySet().toString()):
            # Left by a version that staged on branches.
            update = update.removeBranch(name)
        update.commit()
        _set_properties(transaction, {**(properties or {}), **self._note(session, head)})
        transaction.commitTransaction()
        return self._found(session, transaction.table())

    def gained(self, session: SparkSession, table: TableId, staged: str) -> int:
        loaded = self.load(session, table)
        head = None if loaded is None else _staged(loaded, staged)
        if head is None:
            return 0
        # What the commit itself has counted: totals are missing where a writer before it has left them out.
        summary = self._summary(session, head)
        return sum(sign * int(summary.get(name, 0)) for name, sign in _GAINS.items())

    def note_record(self, session: SparkSession, table: TableId) -> None:
        """Write the record of the current version into the table's properties, too, where it outlives the version."""
        loaded = self.load(session, table)
        current = None if loaded is None else loaded.currentSnapshot()
        note = {} if current is None else self._note(session, current)
        if note and loaded.properties().get(NOTED) != note[NOTED]:
            loaded.updateProperties().set(NOTED, note[NOTED]).commit()

    def _note(self, session: SparkSession, snapshot: Any) -> dict[str, str]:
        summary = self._summary(session, snapshot)
        if record_of(summary) is None:
            return {}
        return {NOTED: json.dumps({"snapshot": snapshot.snapshotId(), **{name: summary[name] for name in RECORD}})}

    def _guard(self, session: SparkSession, transaction: Any, table: TableId, parent: Record | None) -> None:
        """Let a transaction fail if anything is committed before it: most updates would be made upon that instead.

        Changes of references are the ones that Iceberg never repeats on a newer version.
        """
        current = transaction.table().currentSnapshot().snapshotId()
        if not self._stands(session, transaction.table(), current, parent):
            raise _outrun(table)
        transaction.manageSnapshots().createTag(_GUARD, current).removeTag(_GUARD).commit()

    def _stands(self, session: SparkSession, loaded: Any, snapshot: int, record: Record | None) -> bool:
        """Whether a snapshot is the current one, and has this record."""
        current = loaded.currentSnapshot()
        if current is None or current.snapshotId() != snapshot:
            return False
        return self._newest_record(session, loaded, current, self._summary(session, current)) == record

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

    def _summary(self, session: SparkSession, snapshot: Any) -> Mapping[str, str]:
        return {} if snapshot is None else self._java(session).summary(snapshot)

    def _newest_record(
        self, session: SparkSession, loaded: Any, current: Any, summary: Mapping[str, str]
    ) -> Record | None:
        """The record of the newest version that has one: maintenance by others does not carry it on.

        Compaction restates the record that it found, and Iceberg may have put it upon a later commit; so of it and the
        versions before it the newest record counts. Where others have expired the version that had the record, its
        note in the properties tells, if the current version descends from that one.
        """
        found: Record | None = None
        expired, snapshot = ExpiredVersions(session, loaded), current
        while snapshot is not None:
            record = record_of(summary)
            found, parent = later(found, record), snapshot.parentId()
            if parent is None or (record is not None and summary.get("operation") != "replace"):
                break
            snapshot = loaded.snapshot(parent)
            if snapshot is None:
                noted = json.loads(loaded.properties().get(NOTED) or "{}")
                if parent == noted.get("snapshot"):
                    return later(found, record_of(noted))
                snapshot = expired.snapshot(parent) if found is None else None
            summary = self._summary(session, snapshot)
        return found


def _staged(loaded: Any, staged: str) -> Any:
    """The snapshot that was written under a name; None if there is none. It is among the last."""
    snapshots = loaded.snapshots()
    listed = (snapshots.get(place) for place in range(snapshots.size() - 1, -1, -1))
    return next((each for each in listed if each.summary().get(_WAP_SUMMARY) == staged), None)


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
