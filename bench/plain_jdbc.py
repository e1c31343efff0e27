"""The Spark JDBC read as it is written in tutorials, with Iceberg's own writer behind it: what people use otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal2lake.demo.server import HOST, SUPERUSER
from wal2lake.lake.iceberg.metadata import TABLE_PROPERTIES

from .ground import DATABASE, Ground

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, FETCH_SIZE = 8, 10_000


@dataclass(frozen=True)
class PlainJdbc:
    """A whole table, by ranges of its key."""

    url: str
    properties: Mapping[str, str]
    table: str

    @classmethod
    def of(cls, ground: Ground, table: str) -> PlainJdbc:
        properties = {
            "user": SUPERUSER, "password": ground.server.password, "driver": "org.postgresql.Driver",
            "fetchsize": str(FETCH_SIZE),
        }  # fmt: skip
        return cls(f"jdbc:postgresql://{HOST}:{ground.server.port}/{DATABASE}", properties, table)

    def read(self, session: SparkSession, low: int, high: int) -> DataFrame:
        """`low` and `high` only say how the ranges are cut; rows outside of them are read too."""
        return session.read.jdbc(
            self.url, self.table, column="id", lowerBound=low, upperBound=high, numPartitions=PARTITIONS,
            properties=dict(self.properties),
        )  # fmt: skip

    def overwrite(self, session: SparkSession, low: int, high: int) -> None:
        """The lake's table, made or put in the place of what was there, with the properties that wal2lake gives it."""
        writer = self.read(session, low, high).writeTo(f"lake.public.{self.table}").using("iceberg")
        for key, value in TABLE_PROPERTIES.items():
            writer = writer.tableProperty(key, value)
        writer.createOrReplace()

    def drop(self, session: SparkSession) -> None:
        session.sql("CREATE NAMESPACE IF NOT EXISTS lake.public")
        session.sql(f"DROP TABLE IF EXISTS lake.public.{self.table} PURGE")

    def extract(self, session: SparkSession, low: int, high: int) -> None:
        """The read alone: every row is fetched and decoded, none is written."""
        self.read(session, low, high).write.format("noop").mode("overwrite").save()
