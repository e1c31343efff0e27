"""Iceberg's classes in the JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ...schema import TableId
from ...types import LakeType
from ..names import CATALOG
from ..spark.gateway import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Java:
    """Iceberg's classes and objects that are used often. Finding a class takes a call for each package."""

    def __init__(self, session: SparkSession) -> None:
        iceberg = jvm(session).org.apache.iceberg
        self.gateway: Any = session.sparkContext._gateway
        self._string = self.gateway.jvm.java.lang.String
        self._spark3util = iceberg.spark.Spark3Util
        self._namespace = iceberg.catalog.Namespace
        self._identifier = iceberg.catalog.TableIdentifier
        self._snapshots = iceberg.SnapshotParser
        self._types = iceberg.types.Types
        self._catalogs: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()
        self._identifiers: dict[TableId, Any] = {}

    def catalog(self, session: SparkSession) -> Any:
        found = self._catalogs.get(session)
        if found is None:
            found = self._spark3util.loadIcebergCatalog(session._jsparkSession, CATALOG)
            self._catalogs[session] = found
        return found

    def identifier(self, table: TableId) -> Any:
        found = self._identifiers.get(table)
        if found is None:
            levels = self.gateway.new_array(self._string, 1)
            levels[0] = table.schema
            found = self._identifiers[table] = self._identifier.of(self._namespace.of(levels), table.name)
        return found

    def type(self, lake: LakeType) -> Any:
        element = self._types.fromPrimitiveString(str(lake.element))
        return self._types.ListType.ofOptional(1, element) if lake.is_list else element

    def summary(self, snapshot: Any) -> Mapping[str, str]:
        """The summary of a snapshot, in one call."""
        summary: Mapping[str, str] = json.loads(self._snapshots.toJson(snapshot)).get("summary", {})
        return summary
