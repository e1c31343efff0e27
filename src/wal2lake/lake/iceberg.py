"""Iceberg tables: the catalog, their properties, and the position record in the snapshot summary.

Metadata is read through Iceberg's own Java objects, which costs milliseconds and no Spark job. Spark's catalog cache
is off, because each session has a cache of its own that would not see the commits of the others.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..evolution import changes
from ..pgtypes import LakeType
from ..position import Lsn
from ..schema import TableId, TableSchema
from .failure import chain
from .names import CATALOG, CATALOG_FILE, directory, quoted, sql_name
from .table import Found, Record
from .upkeep import Facts, facts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..config import Config

_PREFIX = f"spark.sql.catalog.{CATALOG}"
_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_LSN, _MANIFEST, _CHANGES = "wal2lake.lsn", "wal2lake.manifest", "wal2lake.changes"
_SOURCE, _SCHEMA = "wal2lake.source", "wal2lake.schema"
_MOVING = "wal2lake_moving_"
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
}


class IcebergTables:
    """TableFormat for Iceberg."""

    row_address = ("_file", "_pos")

    def __init__(self, config: Config) -> None:
        self._lake = config.lake
        self._path = Path(config.lake.path).absolute()
        self._namespaces = threading.Lock()
        self._found_java: _Java | None = None

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

    def commit_settings(self, record: Record) -> dict[str, str]:
        return {_SNAPSHOT_PROPERTY + name: value for name, value in self.commit_properties(record).items()}

    def commit_properties(self, record: Record) -> dict[str, str]:
        """The record as it stands in the summary of a snapshot."""
        return {_LSN: str(record.lsn), _MANIFEST: str(record.manifest), _CHANGES: str(record.changes)}

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
            record=_record(summary) or self._older_record(session, loaded, current),
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

    def replace(self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str) -> None:  # noqa: ARG002
        writer = frame.writeTo(sql_name(schema.id)).using("iceberg")
        for name, value in _identity(schema, source).items():
            writer = writer.tableProperty(name, value)
        writer.replace()

    def evolve(self, session: SparkSession, before: TableSchema, after: TableSchema) -> None:
        wanted = changes(before, after)
        java = self._java(session)
        transaction = self._catalog(session).loadTable(java.identifier(before.id)).newTransaction()
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

    def restate(self, session: SparkSession, table: TableId, record: Record) -> None:
        append = self.load(session, table).newAppend()
        for name, value in self.commit_properties(record).items():
            append = append.set(name, value)
        append.commit()

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
        reachable = _jvm(session).org.apache.iceberg.ReachableFileUtil
        found = set(map(str, reachable.metadataFileLocations(loaded, True)))
        found |= set(map(str, reachable.manifestListLocations(loaded)))
        found |= set(map(str, reachable.statisticsFilesLocations(loaded)))
        for part, column in (("all_manifests", "path"), ("all_files", "file_path")):
            listed = session.table(f"{sql_name(table)}.{part}").select(column).distinct()
            found |= {str(row[0]) for row in listed.collect()}
        return frozenset(local(file) for file in found)

    def _summary(self, session: SparkSession, snapshot: Any) -> Mapping[str, str]:
        return {} if snapshot is None else self._java(session).summary(snapshot)

    def _older_record(self, session: SparkSession, loaded: Any, snapshot: Any) -> Record | None:
        """The newest record before a snapshot that has none: maintenance by others does not carry it on."""
        while snapshot is not None and (parent := snapshot.parentId()) is not None:
            snapshot = loaded.snapshot(parent)
            if snapshot is not None and (record := _record(self._java(session).summary(snapshot))) is not None:
                return record
        return None

    def _catalog(self, session: SparkSession) -> Any:
        return self._java(session).catalog(session)

    def _java(self, session: SparkSession) -> _Java:
        # Objects of a JVM that has died mean nothing to the next one.
        if self._found_java is None or self._found_java.gateway is not session.sparkContext._gateway:
            self._found_java = _Java(session)
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


def _sqlite_catalog(path: Path) -> dict[str, str]:
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{path / CATALOG_FILE}",
        "warehouse": str(path),
        "jdbc.schema-version": "V1",
        # Others read the catalog while the JVM commits.
        "jdbc.busy_timeout": "60000",
        "jdbc.journal_mode": "WAL",
    }


def _identity(schema: TableSchema, source: str) -> dict[str, str]:
    return {_SOURCE: source, _SCHEMA: _schema_text(schema)}


def _schema_text(schema: TableSchema) -> str:
    return json.dumps(schema.to_json(), ensure_ascii=False)


def _jvm(session: SparkSession) -> Any:
    return session._jvm


class _Java:
    """Iceberg's classes and objects that are asked again and again. To find a class takes a call for each package."""

    def __init__(self, session: SparkSession) -> None:
        iceberg = _jvm(session).org.apache.iceberg
        self.gateway: Any = session.sparkContext._gateway
        self._string = self.gateway.jvm.java.lang.String
        self._spark3util = iceberg.spark.Spark3Util
        self._namespace = iceberg.catalog.Namespace
        self._identifier = iceberg.catalog.TableIdentifier
        self._snapshots = iceberg.SnapshotParser
        self._types = iceberg.types.Types
        self._catalogs: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()

    def catalog(self, session: SparkSession) -> Any:
        found = self._catalogs.get(session)
        if found is None:
            found = self._spark3util.loadIcebergCatalog(session._jsparkSession, CATALOG)
            self._catalogs[session] = found
        return found

    def identifier(self, table: TableId) -> Any:
        levels = self.gateway.new_array(self._string, 1)
        levels[0] = table.schema
        return self._identifier.of(self._namespace.of(levels), table.name)

    def type(self, lake: LakeType) -> Any:
        element = self._types.fromPrimitiveString(str(lake.element))
        return self._types.ListType.ofOptional(1, element) if lake.is_list else element

    def summary(self, snapshot: Any) -> Mapping[str, str]:
        """All that a snapshot says of itself, in one call."""
        summary: Mapping[str, str] = json.loads(self._snapshots.toJson(snapshot)).get("summary", {})
        return summary


@lru_cache(maxsize=2048)
def _schema(text: str) -> TableSchema:
    return TableSchema.from_json(json.loads(text))


def _record(summary: Mapping[str, str]) -> Record | None:
    lsn = summary.get(_LSN)
    return None if lsn is None else Record(Lsn.parse(lsn), int(summary[_MANIFEST]), int(summary[_CHANGES]))


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
        record=next((record for each in summaries if (record := _record(each)) is not None), None),
        rows=_rows(summary),
        location=location,
        upkeep=Facts() if times is None else facts_of(summary, *times),
    )


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
