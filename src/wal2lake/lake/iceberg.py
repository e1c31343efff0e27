"""Iceberg tables: the catalog, their properties, and the position record in the snapshot summary.

Metadata is read through Iceberg's own Java objects, which costs milliseconds and no Spark job. Spark's catalog cache
is off, because each session has a cache of its own that would not see the commits of the others.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..position import Lsn
from ..schema import TableId, TableSchema
from .failure import chain
from .names import CATALOG, CATALOG_FILE, directory, quoted, sql_name
from .table import Found, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..config import Config

_PREFIX = f"spark.sql.catalog.{CATALOG}"
_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_LSN, _MANIFEST, _CHANGES = "wal2lake.lsn", "wal2lake.manifest", "wal2lake.changes"
_SOURCE, _SCHEMA = "wal2lake.source", "wal2lake.schema"
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

    def settings(self) -> dict[str, str]:
        given = self._lake.catalog
        catalog = dict(given) if given else _sqlite_catalog(self._path)
        implementation = catalog.pop("spark-catalog", "org.apache.iceberg.spark.SparkCatalog")
        settings = {_PREFIX: implementation, f"{_PREFIX}.cache-enabled": "false"}
        return settings | {f"{_PREFIX}.{name}": value for name, value in catalog.items()}

    def commit_settings(self, record: Record) -> dict[str, str]:
        values = {_LSN: str(record.lsn), _MANIFEST: str(record.manifest), _CHANGES: str(record.changes)}
        return {_SNAPSHOT_PROPERTY + name: value for name, value in values.items()}

    def sql_name(self, table: TableId) -> str:
        return sql_name(table)

    def location(self, table: TableId) -> Path | None:
        """Where the files of a new table go; None if the user's own catalog decides that."""
        return None if self._lake.catalog else directory(self._path, table)

    def find(self, session: SparkSession, table: TableId) -> Found | None:
        loaded = self._load(session, table)
        if loaded is None:
            return None
        properties = loaded.properties()
        schema = properties.get(_SCHEMA)
        current = loaded.currentSnapshot()
        return Found(
            source=properties.get(_SOURCE),
            schema=TableSchema.from_json(json.loads(schema)) if schema else None,
            record=_newest_record(loaded, current),
            rows=_rows(current),
            location=str(loaded.location()),
        )

    def create(self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str) -> None:
        with self._namespaces:
            # Two copies of one schema would both find it missing, and the catalog takes only one of them.
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quoted(schema.id.schema)}")
        writer = frame.writeTo(sql_name(schema.id)).using("iceberg")
        for name, value in {**TABLE_PROPERTIES, **self._lake.properties, **_identity(schema, source)}.items():
            writer = writer.tableProperty(name, value)
        location = self.location(schema.id)
        if location is not None:
            writer = writer.tableProperty("location", str(location))
        writer.create()

    def replace(self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str) -> None:  # noqa: ARG002
        writer = frame.writeTo(sql_name(schema.id)).using("iceberg")
        for name, value in _identity(schema, source).items():
            writer = writer.tableProperty(name, value)
        writer.replace()

    def append(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:  # noqa: ARG002 - the contract
        frame.writeTo(sql_name(table)).append()

    def overwrite(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:  # noqa: ARG002
        from pyspark.sql.functions import lit

        frame.writeTo(sql_name(table)).overwrite(lit(True))

    def drop(self, session: SparkSession, table: TableId) -> None:
        self._catalog(session).dropTable(_identifier(session, table), True)

    def files(self, session: SparkSession, table: TableId) -> frozenset[str]:
        loaded = self._load(session, table)
        if loaded is None:
            return frozenset()
        reachable = _jvm(session).org.apache.iceberg.ReachableFileUtil
        found = set(map(str, reachable.metadataFileLocations(loaded, True)))
        found |= set(map(str, reachable.manifestListLocations(loaded)))
        found |= set(map(str, reachable.statisticsFilesLocations(loaded)))
        for part, column in (("all_manifests", "path"), ("all_files", "file_path")):
            listed = session.table(f"{sql_name(table)}.{part}").select(column).distinct()
            found |= {str(row[0]) for row in listed.collect()}
        return frozenset(_plain(file) for file in found)

    def _catalog(self, session: SparkSession) -> Any:
        spark3util = _jvm(session).org.apache.iceberg.spark.Spark3Util
        return spark3util.loadIcebergCatalog(session._jsparkSession, CATALOG)

    def _load(self, session: SparkSession, table: TableId) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return self._catalog(session).loadTable(_identifier(session, table))
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
    return {_SOURCE: source, _SCHEMA: json.dumps(schema.to_json(), ensure_ascii=False)}


def _jvm(session: SparkSession) -> Any:
    return session._jvm


def _identifier(session: SparkSession, table: TableId) -> Any:
    gateway = session.sparkContext._gateway
    assert gateway is not None
    levels = gateway.new_array(gateway.jvm.java.lang.String, 1)
    levels[0] = table.schema
    names = gateway.jvm.org.apache.iceberg.catalog
    return names.TableIdentifier.of(names.Namespace.of(levels), table.name)


def _newest_record(loaded: Any, snapshot: Any) -> Record | None:
    while snapshot is not None:
        summary = snapshot.summary()
        lsn = summary.get(_LSN)
        if lsn is not None:
            return Record(Lsn.parse(lsn), int(summary.get(_MANIFEST)), int(summary.get(_CHANGES)))
        parent = snapshot.parentId()
        snapshot = loaded.snapshot(parent) if parent is not None else None
    return None


def _rows(snapshot: Any) -> int:
    if snapshot is None:
        return 0
    summary = snapshot.summary()
    total, deleted = summary.get("total-records"), summary.get("total-position-deletes")
    return int(total or 0) - int(deleted or 0)


def _plain(file: str) -> str:
    return "/" + file.removeprefix("file:").lstrip("/") if file.startswith(("file:", "/")) else file
