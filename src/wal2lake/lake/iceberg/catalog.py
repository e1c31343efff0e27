"""The catalog of the lake's Iceberg tables, by default a SQLite file, and the directories of tables."""

from __future__ import annotations

import re
import secrets
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ...errors import LakeUnwritable
from ...quoting import toml
from ...schema import TableId
from ..names import CATALOG, CATALOG_FILE, directory
from ..spark.java_errors import chain
from .filesystem import network_file_system
from .java import Java
from .metadata import local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...config import Config

_SQLITE = "jdbc:sqlite:"
_PREFIX = f"spark.sql.catalog.{CATALOG}"
_MISSING = ("NoSuchTableException", "NoSuchNamespaceException", "NoSuchViewException")


class IcebergCatalog:
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
    def sqlite_file(self) -> Path | None:
        """The file of the catalog, if it is in SQLite."""
        given = self._lake.catalog
        return sqlite_file(given.get("uri", "")) if given else self._path / CATALOG_FILE

    def require_usable(self) -> None:
        """Refuse a SQLite catalog on a network file system: its locks do not work between machines."""
        file = self.sqlite_file
        kind = None if file is None else network_file_system(file)
        if kind is not None:
            raise LakeUnwritable(
                path=str(self._path),
                cause=f"its catalog {file} would be a SQLite file on a network file system ({kind})",
                remedy="keep the catalog in a database, as in: [lake.catalog] type = 'jdbc', uri ="
                " 'jdbc:postgresql://host/database', 'jdbc.user' = 'user', 'jdbc.password' = 'password', warehouse ="
                f" {toml(str(self._path))}; or keep it on a local disk",
            )  # fmt: skip

    def new_location(self, table: TableId) -> str | None:
        # A catalog of the user's own chooses directories.
        return None if self._lake.catalog else str(directory(self._path, table, secrets.token_hex(4)))

    def placed(self, session: SparkSession, location: str) -> frozenset[TableId]:
        """The tables whose files are in a directory."""
        if self._lake.catalog:
            catalog = self._catalog(session)
            ids = [each for space in catalog.listNamespaces() for each in catalog.listTables(space)]
            found = {each: local(str(catalog.loadTable(each).location())) for each in ids}
            return frozenset(_table_id(each) for each, place in found.items() if place == location)
        # Read from the catalog file itself, so that a damaged table does not affect others.
        with closing(sqlite3.connect(f"{(self._path / CATALOG_FILE).as_uri()}?mode=ro", uri=True, timeout=60)) as db:
            rows = db.execute("SELECT table_namespace, table_name, metadata_location FROM iceberg_tables").fetchall()
        return frozenset(TableId(space, name) for space, name, file in rows if local(file).startswith(location + "/"))

    def _catalog(self, session: SparkSession) -> Any:
        return self._java(session).catalog(session)

    def _java(self, session: SparkSession) -> Java:
        # Objects of a dead JVM are invalid in the next one.
        if self._found_java is None or self._found_java.gateway is not session.sparkContext._gateway:
            self._found_java = Java(session)
        return self._found_java

    def load(self, session: SparkSession, table: TableId) -> Any:
        """Iceberg's object of the current table; None if it does not exist."""
        from py4j.protocol import Py4JJavaError

        try:
            return self._catalog(session).loadTable(self._java(session).identifier(table))
        except Py4JJavaError as error:
            if any(link.name.endswith(_MISSING) for link in chain(error)):
                return None
            raise

    def existing(self, session: SparkSession, table: TableId) -> Any:
        """The same for a table that must exist."""
        return self._catalog(session).loadTable(self._java(session).identifier(table))


def _sqlite_catalog(path: Path) -> dict[str, str]:
    return {
        "type": "jdbc",
        "uri": f"{_SQLITE}{path / CATALOG_FILE}",
        "warehouse": str(path),
        "jdbc.schema-version": "V1",
        # Other processes read the catalog while the JVM commits.
        "jdbc.busy_timeout": "60000",
        "jdbc.journal_mode": "WAL",
    }


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite JDBC URL; None for another database, or one in memory."""
    kind, rest = uri[: len(_SQLITE)], uri[len(_SQLITE) :]
    name, _, options = rest.partition("?")
    if kind.lower() != _SQLITE or not name or name.startswith(":") or "mode=memory" in options:
        return None
    if not name.startswith("file:"):
        return Path(name)
    path = unquote(name.removeprefix("file:"))
    # file:/path, file:///path and file://localhost/path are the same.
    return Path(re.sub("^//(localhost)?(?=/)", "", path))


def _table_id(identifier: Any) -> TableId:
    return TableId(str(identifier.namespace()), str(identifier.name()))
