"""Iceberg tables: the catalog, their properties, and the position record in the snapshot summary.

Metadata is read through Iceberg's own Java objects, which costs milliseconds and no Spark job. Spark's catalog cache
is off, because each session has a cache of its own that would not see the commits of the others.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from ..errors import CommitFailed
from ..evolution import changes
from ..position import LakeVersion, Lsn
from ..schema import TableId, TableSchema
from .failure import chain
from .java import Java, jvm
from .layout import Layout
from .lineage import ExpiredVersions
from .names import CATALOG, CATALOG_FILE, directory, literal, quoted, sql_name
from .table import Found, Record
from .upkeep import Facts, facts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..config import Config

_SQLITE = "jdbc:sqlite:"
_PREFIX = f"spark.sql.catalog.{CATALOG}"
_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_LSN, _MANIFEST, _CHANGES = "wal2lake.lsn", "wal2lake.manifest", "wal2lake.changes"
_EPOCH, _COMMIT = "wal2lake.epoch", "wal2lake.commit"
_SOURCE, _SCHEMA, _NOTED = "wal2lake.source", "wal2lake.schema", "wal2lake.record"
_MOVING = "wal2lake_moving_"
_STAGED = "wal2lake_staged_"
_STAGED_NAME = re.compile(_STAGED + "[0-9a-f]{32}")
_GUARD = "wal2lake_guard"
_WAP, _WAP_BRANCH = "write.wap.enabled", "spark.wap.branch"
_GAINS = {"added-records": 1, "deleted-records": -1, "added-position-deletes": -1, "removed-position-deletes": 1}
_MISSING = ("NoSuchTableException", "NoSuchNamespaceException", "NoSuchViewException")

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
    # Commits are made on a branch first, see `stage`.
    "write.wap.enabled": "true",
}


class IcebergTables:
    """TableFormat for Iceberg."""

    row_address = ("_file", "_pos")

    def __init__(self, config: Config) -> None:
        self._lake = config.lake
        self._path = Path(config.lake.path).absolute()
        self._namespaces = threading.Lock()
        self._found_java: Java | None = None

    def settings(self) -> dict[str, str]:
        given = self._lake.catalog
        catalog = dict(given) if given else _sqlite_catalog(self._path)
        implementation = catalog.pop("spark-catalog", "org.apache.iceberg.spark.SparkCatalog")
        settings = {_PREFIX: implementation, f"{_PREFIX}.cache-enabled": "false"}
        return settings | {f"{_PREFIX}.{name}": value for name, value in catalog.items()}

    @property
    def in_sqlite(self) -> bool:
        """Whether the catalog is our own file beside the tables."""
        return not self._lake.catalog

    @property
    def sqlite_file(self) -> Path | None:
        """The file of the catalog, our own or the user's, if it is one of SQLite's."""
        given = self._lake.catalog
        return sqlite_file(given.get("uri", "")) if given else self._path / CATALOG_FILE

    def commit_settings(self, record: Record, staged: str | None = None) -> dict[str, str]:
        settings = {_SNAPSHOT_PROPERTY + name: value for name, value in self.commit_properties(record).items()}
        return settings if staged is None else {**settings, _WAP_BRANCH: staged}

    def new_stage(self) -> str:
        return _STAGED + uuid4().hex

    def commit_properties(self, record: Record) -> dict[str, str]:
        """The record as it stands in the summary of a snapshot."""
        version = record.version
        return {
            _LSN: str(record.lsn), _MANIFEST: str(record.manifest), _CHANGES: str(record.changes),
            _EPOCH: str(version.epoch), _COMMIT: str(version.commit),
        }  # fmt: skip

    def sql_name(self, table: TableId) -> str:
        return sql_name(table)

    def new_location(self, table: TableId) -> Path | None:
        """A directory that no other table has or had; None if the user's own catalog decides where a table goes."""
        return None if self._lake.catalog else directory(self._path, table, secrets.token_hex(4))

    @property
    def catalog_decides(self) -> bool:
        """Whether the user's own catalog says where tables go, so that two may have one directory."""
        return bool(self._lake.catalog)

    def placed(self, session: SparkSession, location: str) -> frozenset[TableId]:
        """The tables whose files are in a directory."""
        if self.catalog_decides:
            catalog = self._catalog(session)
            ids = [each for space in catalog.listNamespaces() for each in catalog.listTables(space)]
            found = {each: local(str(catalog.loadTable(each).location())) for each in ids}
            return frozenset(_table_id(each) for each, place in found.items() if place == location)
        # Asked of the catalog's own file: one table that can't be read must not hinder another.
        with closing(sqlite3.connect(f"{(self._path / CATALOG_FILE).as_uri()}?mode=ro", uri=True, timeout=60)) as db:
            rows = db.execute("SELECT table_namespace, table_name, metadata_location FROM iceberg_tables").fetchall()
        return frozenset(TableId(space, name) for space, name, file in rows if local(file).startswith(location + "/"))

    def find(self, session: SparkSession, table: TableId) -> Found | None:
        loaded = self.load(session, table)
        if loaded is None:
            return None
        properties = loaded.properties()
        schema = properties.get(_SCHEMA)
        current = loaded.currentSnapshot()
        summary = self._summary(session, current)
        return Found(
            source=properties.get(_SOURCE),
            schema=_schema(schema) if schema else None,
            record=self._newest_record(session, loaded, current, summary),
            rows=_rows(summary),
            location=str(loaded.location()),
            upkeep=_facts(loaded, current, summary),
        )

    def facts(self, session: SparkSession, loaded: Any) -> Facts:
        """What the current version of a loaded table says that upkeep goes by."""
        current = loaded.currentSnapshot()
        return _facts(loaded, current, self._summary(session, current))

    def create(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, location: str | None
    ) -> None:
        with self._namespaces:
            # Two copies of one schema would both find it missing, and the catalog takes only one of them.
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quoted(schema.id.schema)}")
        writer = frame.writeTo(sql_name(schema.id)).using("iceberg")
        for name, value in {**TABLE_PROPERTIES, **self._lake.properties, **_identity(schema, source)}.items():
            writer = writer.tableProperty(name, value)
        if location is not None:
            writer = writer.tableProperty("location", location)
        writer.create()
        self.note_record(session, schema.id)

    def replace(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        if _columns(frame) == _columns(session.table(sql_name(schema.id))):
            self._refill(session, frame, schema, source, parent)
            return
        layout = Layout.of(self.load(session, schema.id), schema.names)
        view = f"wal2lake_rows_{uuid4().hex}"
        frame.createTempView(view)
        try:
            properties = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in _identity(schema, source).items())
            name, by = sql_name(schema.id), layout.partitioned_by
            session.sql(
                f"REPLACE TABLE {name} USING iceberg {by} TBLPROPERTIES ({properties}) AS SELECT * FROM {view}"  # noqa: S608 - quoted
            )
        finally:
            session.catalog.dropTempView(view)
        layout.restore_order(jvm(session), self.load(session, schema.id))
        self.note_record(session, schema.id)

    def _refill(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        """Put rows in the place of all rows: the table keeps all that it has beside them."""
        staged = self.new_stage()
        self.stage(session, schema.id, staged, parent)
        session.conf.set(_WAP_BRANCH, staged)
        try:
            self.overwrite(session, frame, schema.id)
        finally:
            session.conf.unset(_WAP_BRANCH)
        self.publish(session, schema.id, staged, parent, _identity(schema, source))

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
        transaction.updateProperties().set(_SCHEMA, _schema_text(after)).commit()
        transaction.commitTransaction()

    def append(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:  # noqa: ARG002 - the contract
        frame.writeTo(sql_name(table)).append()

    def overwrite(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:  # noqa: ARG002
        from pyspark.sql.functions import lit

        frame.writeTo(sql_name(table)).overwrite(lit(True))

    def restate(self, session: SparkSession, table: TableId, record: Record, parent: Record | None) -> None:
        staged = self.new_stage()
        self.stage(session, table, staged, parent)
        append = self.load(session, table).newAppend().toBranch(staged)
        for name, value in self.commit_properties(record).items():
            append = append.set(name, value)
        append.commit()
        self.publish(session, table, staged, parent)

    def stage(self, session: SparkSession, table: TableId, staged: str, parent: Record | None) -> None:
        """Make the branch: one that a write makes by itself begins to count its rows and files at 0."""
        loaded = self.load(session, table)
        if loaded.properties().get(_WAP) != "true":
            # Tables of earlier versions take no branch from a session before they have this property.
            loaded.updateProperties().set(_WAP, "true").commit()
        current = loaded.currentSnapshot()
        if current is None or not self._stands(session, loaded, current.snapshotId(), parent):
            raise _outrun(table)
        update = loaded.manageSnapshots()
        # As text, it is one call into the JVM however many there are.
        for name in _STAGED_NAME.findall(loaded.refs().keySet().toString()):
            # Left by a writer that never came to publish it.
            update = update.removeBranch(name)
        update.createBranch(staged, current.snapshotId()).commit()

    def publish(
        self, session: SparkSession, table: TableId, staged: str, parent: Record | None,
        properties: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Of a branch that a dead or late writer has left nothing is ever published.

        Iceberg itself would put a commit upon whatever is current. Moving the main branch is refused by the catalog if
        anything was committed since the table was loaded here.
        """
        loaded = self.load(session, table)
        branch = None if loaded is None else loaded.refs().get(staged)
        if loaded is None or branch is None:
            raise CommitFailed(table=str(table), cause="what was written is not there")
        transaction = loaded.newTransaction()
        head = loaded.snapshot(branch.snapshotId())
        if not self._stands(session, transaction.table(), head.parentId(), parent):
            loaded.manageSnapshots().removeBranch(staged).commit()
            raise _outrun(table)
        transaction.manageSnapshots().fastForwardBranch("main", staged).removeBranch(staged).commit()
        update = transaction.updateProperties()
        for name, value in {**(properties or {}), **self._note(session, head)}.items():
            update = update.set(name, value)
        update.commit()
        transaction.commitTransaction()

    def gained(self, session: SparkSession, table: TableId, staged: str) -> int:
        loaded = self.load(session, table)
        head, current = loaded.refs().get(staged).snapshotId(), loaded.currentSnapshot().snapshotId()
        if head == current:
            return 0
        # What the commit itself has counted: totals are missing where a writer before it has left them out.
        summary = self._summary(session, loaded.snapshot(head))
        return sum(sign * int(summary.get(name, 0)) for name, sign in _GAINS.items())

    def note_record(self, session: SparkSession, table: TableId) -> None:
        """Write the record of the current version into the table's properties, too, where it outlives the version."""
        loaded = self.load(session, table)
        current = None if loaded is None else loaded.currentSnapshot()
        note = {} if current is None else self._note(session, current)
        if note and loaded.properties().get(_NOTED) != note[_NOTED]:
            loaded.updateProperties().set(_NOTED, note[_NOTED]).commit()

    def _note(self, session: SparkSession, snapshot: Any) -> dict[str, str]:
        summary = self._summary(session, snapshot)
        if _record(summary) is None:
            return {}
        record = {name: summary[name] for name in (_LSN, _MANIFEST, _CHANGES, _EPOCH, _COMMIT)}
        return {_NOTED: json.dumps({"snapshot": snapshot.snapshotId(), **record})}

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

    def describe(self, session: SparkSession, table: TableId, schema: TableSchema, source: str) -> None:
        update = self.load(session, table).updateProperties()
        for name, value in _identity(schema, source).items():
            update = update.set(name, value)
        update.commit()

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
            record = _record(summary)
            found, parent = _later(found, record), snapshot.parentId()
            if parent is None or (record is not None and summary.get("operation") != "replace"):
                break
            snapshot = loaded.snapshot(parent)
            if snapshot is None:
                noted = json.loads(loaded.properties().get(_NOTED) or "{}")
                if parent == noted.get("snapshot"):
                    return _later(found, _record(noted))
                snapshot = expired.snapshot(parent) if found is None else None
            summary = self._summary(session, snapshot)
        return found

    def _catalog(self, session: SparkSession) -> Any:
        return self._java(session).catalog(session)

    def _java(self, session: SparkSession) -> Java:
        # Objects of a JVM that has died mean nothing to the next one.
        if self._found_java is None or self._found_java.gateway is not session.sparkContext._gateway:
            self._found_java = Java(session)
        return self._found_java

    def load(self, session: SparkSession, table: TableId) -> Any:
        """Iceberg's own object of a table, as the table is now; None if there is none."""
        from py4j.protocol import Py4JJavaError

        try:
            return self._catalog(session).loadTable(self._java(session).identifier(table))
        except Py4JJavaError as error:
            if any(link.name.endswith(_MISSING) for link in chain(error)):
                return None
            raise


def _outrun(table: TableId) -> CommitFailed:
    return CommitFailed(table=str(table), cause="another writer changed the table at the same time")


def _sqlite_catalog(path: Path) -> dict[str, str]:
    return {
        "type": "jdbc",
        "uri": f"{_SQLITE}{path / CATALOG_FILE}",
        "warehouse": str(path),
        "jdbc.schema-version": "V1",
        # Others read the catalog while the JVM commits.
        "jdbc.busy_timeout": "60000",
        "jdbc.journal_mode": "WAL",
    }


def sqlite_file(uri: str) -> Path | None:
    """The file that a JDBC address of SQLite means; None for another database, or one in memory."""
    kind, rest = uri[: len(_SQLITE)], uri[len(_SQLITE) :]
    name, _, options = rest.partition("?")
    if kind.lower() != _SQLITE or not name or name.startswith(":") or "mode=memory" in options:
        return None
    if not name.startswith("file:"):
        return Path(name)
    path = unquote(name.removeprefix("file:"))
    # file:/path, file:///path and file://localhost/path are the same.
    return Path(re.sub("^//(localhost)?(?=/)", "", path))


def _columns(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def _identity(schema: TableSchema, source: str) -> dict[str, str]:
    return {_SOURCE: source, _SCHEMA: _schema_text(schema)}


def _schema_text(schema: TableSchema) -> str:
    return json.dumps(schema.to_json(), ensure_ascii=False)


@lru_cache(maxsize=2048)
def _schema(text: str) -> TableSchema:
    return TableSchema.from_json(json.loads(text))


def _record(summary: Mapping[str, str]) -> Record | None:
    lsn = summary.get(_LSN)
    if lsn is None:
        return None
    version = LakeVersion(int(summary.get(_EPOCH, 0)), int(summary.get(_COMMIT, 0)))
    return Record(Lsn.parse(lsn), int(summary[_MANIFEST]), int(summary[_CHANGES]), version)


def described(
    properties: Mapping[str, str],
    location: str,
    summaries: Sequence[Mapping[str, str]],
    times: tuple[int, int, int] | None,
) -> Found:
    """What a table's metadata comes to. `summaries` are those of the current snapshot and of the ones before it;
    `times` the number of snapshots, and when the oldest and the current one were made.
    """
    schema, summary = properties.get(_SCHEMA), summaries[0] if summaries else {}
    return Found(
        source=properties.get(_SOURCE),
        schema=_schema(schema) if schema else None,
        record=_newest(summaries),
        rows=_rows(summary),
        location=location,
        upkeep=Facts() if times is None else facts_of(summary, *times),
    )


def _newest(summaries: Sequence[Mapping[str, str]]) -> Record | None:
    """The record of the first of these that has one; of compaction, which restates what it found, the newest."""
    found: Record | None = None
    for summary in summaries:
        record = _record(summary)
        found = _later(found, record)
        if record is not None and summary.get("operation") != "replace":
            break
    return found


def _later(one: Record | None, other: Record | None) -> Record | None:
    return max(filter(None, (one, other)), key=lambda each: each.version, default=None)


def _rows(summary: Mapping[str, str]) -> int:
    return int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))


def _facts(loaded: Any, current: Any, summary: Mapping[str, str]) -> Facts:
    if current is None:
        return Facts()
    snapshots = loaded.snapshots()
    oldest = snapshots.get(0).timestampMillis()
    return facts_of(summary, snapshots.size(), oldest, current.timestampMillis())


def _table_id(identifier: Any) -> TableId:
    return TableId(str(identifier.namespace()), str(identifier.name()))


def local(file: str) -> str:
    """The path of a local file that Iceberg names, as a URI or as it is."""
    return "/" + file.removeprefix("file:").lstrip("/") if file.startswith(("file:", "/")) else file
