"""Giving an Iceberg table other columns and other rows, in one commit that fails if another came before it.

`REPLACE TABLE … AS SELECT` commits upon whatever is current by then. Here Spark writes into the same transaction of
Iceberg's, and its metadata is committed by a comparison with the version that the transaction began from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .java import jvm
from .layout import Layout
from .names import CATALOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Replacement:
    """A table's next rows and columns, which nobody sees before `commit`."""

    def __init__(
        self, session: SparkSession, loaded: Any, columns: DataFrame, layout: Layout, properties: Mapping[str, str]
    ) -> None:
        """`loaded`: Iceberg's own object of the table; `columns`: a frame with those that it is to have."""
        self._session, self._jvm = session, jvm(session)
        iceberg = self._jvm.org.apache.iceberg
        # A column that has no NULL now may have one later.
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
        """Iceberg's own object of the table as it will be."""
        return self._transaction.table()

    def append(self, frame: DataFrame) -> None:
        """What `frame.writeTo(…).append()` does, into a table that no catalog knows."""
        sql, option = self._jvm.org.apache.spark.sql, self._jvm.scala.Option
        # It has the functions by which the table may be partitioned.
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
        """Make it the current version of the table, of which `loaded` is an object, or fail if that is not current.

        What others have committed since this began, and `loaded` has, gives way as with any replacement.
        """
        operations = loaded.operations()
        operations.commit(operations.current(), self._transaction.currentMetadata())
