"""Replaces columns and rows of an Iceberg table in one commit that fails if another commit came first.

`REPLACE TABLE … AS SELECT` commits on top of whatever version is current. Here Spark writes into an Iceberg transaction
whose metadata is committed by a compare-and-swap with the version that the transaction began from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..names import CATALOG
from ..spark.gateway import jvm
from .layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Replacement:
    """The next rows and columns of a table, invisible before `commit`."""

    def __init__(
        self, session: SparkSession, loaded: Any, columns: DataFrame, layout: Layout, properties: Mapping[str, str]
    ) -> None:
        """`loaded`: Iceberg's object of the table; `columns`: a frame with its new columns."""
        self._session, self._jvm = session, jvm(session)
        iceberg = self._jvm.org.apache.iceberg
        # A column without NULLs may get some later, so all are optional.
        schema = iceberg.spark.SparkSchemaUtil.convert(columns._jdf.schema().asNullable())
        operations = loaded.operations()
        base = operations.current()
        replaced = base.buildReplacement(
            schema, layout.spec(self._jvm, schema), layout.sort_order(self._jvm, schema), base.location(),
            self._jvm.java.util.HashMap(dict(properties)),
        )  # fmt: skip
        self._transaction = iceberg.Transactions.replaceTableTransaction(loaded.name(), operations, replaced)

    @property
    def table(self) -> Any:
        """Iceberg's object of the table after the replacement."""
        return self._transaction.table()

    def append(self, frame: DataFrame) -> None:
        """As `frame.writeTo(…).append()`, into a table that is in no catalog."""
        sql, option = self._jvm.org.apache.spark.sql, self._jvm.scala.Option
        # It has the functions of partition transforms.
        catalog = option.apply(self._session._jsparkSession.sessionState().catalogManager().catalog(CATALOG))
        target = self._jvm.org.apache.iceberg.spark.source.SparkTable(self.table)
        relation = sql.execution.datasources.v2.DataSourceV2Relation.create(target, catalog, option.empty())
        append = sql.catalyst.plans.logical.AppendData
        no_options = getattr(append, "byName$default$3")()
        plan = append.byName(relation, frame._jdf.queryExecution().logical(), no_options)
        sql.classic.Dataset.ofRows(self._session._jsparkSession, plan)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        update = self._transaction.updateProperties()
        for name, value in properties.items():
            update = update.set(name, value)
        update.commit()

    def commit(self, loaded: Any) -> None:
        """Make it the current version of the table; fails if `loaded` is not the current version.

        Commits of others that are in `loaded` are replaced, as by any replacement.
        """
        operations = loaded.operations()
        operations.commit(operations.current(), self._transaction.currentMetadata())
