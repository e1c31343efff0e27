"""The contract of a lake table format: what the copy and the apply ask of it.

Every write is one commit that carries the position record with the rows. Sessions come from `session.Driver`; the
record travels as session configuration (`commit_settings`), so a session serves one commit at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..position import NO_VERSION, LakeVersion, Lsn
from ..schema import TableId, TableSchema
from .compaction_policy import Facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Record:
    """The position record of a commit."""

    lsn: Lsn
    manifest: int
    changes: int
    version: LakeVersion = NO_VERSION


@dataclass(frozen=True)
class Found:
    """What a lake table says of itself."""

    source: str | None
    """the id of the source table that it was made from; None: wal2lake did not make it"""
    schema: TableSchema | None
    record: Record | None
    """the newest record in the table's current history; None if no commit of ours is in it"""
    rows: int
    location: str
    compaction_facts: Facts = field(default_factory=Facts)
    """what tells whether the table needs maintenance"""
    stages: bool = False
    """whether writes can be kept aside"""


class TableFormat(Protocol):
    row_address: tuple[str, str]
    """two metadata columns that together tell one stored row from every other, at one version of the table"""

    def settings(self) -> Mapping[str, str]:
        """Session configuration that lets a session see the tables."""

    def commit_settings(self, record: Record, staged: str | None = None) -> Mapping[str, str]:
        """Session configuration that puts the record into each commit of the session.

        With `staged`, a name that no other commit has, what it writes is kept aside under that name for `publish`.
        """

    def new_stage(self) -> str:
        """A name for what is kept aside."""

    def sql_name(self, table: TableId) -> str:
        """The table in Spark SQL, whether or not it exists."""

    def find(self, session: SparkSession, table: TableId) -> Found | None:
        """The table as it is now, never from a cache; None if there is no table of that name."""

    def create(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, location: str | None
    ) -> None:
        """Make the table with these rows, in one commit. Fails if a table of that name exists.

        Its files go to `location`; None: where the catalog puts them.
        """

    def replace(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        """Put these rows, columns and properties in the place of the table's, in one commit.

        Partitioning, sort order and properties that somebody has given to the table stay, as far as its columns do.
        It fails like `publish`; a compaction by somebody since is no obstacle.
        """

    def evolve(self, session: SparkSession, before: TableSchema, after: TableSchema, parent: Record | None) -> None:
        """Change columns and remember the schema, in one commit that touches no row.

        Fails if the current version of the table has another record than `parent` by then.
        """

    def append(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:
        """Add rows, in one commit. Fails if the table does not exist."""

    def overwrite(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:
        """Put these rows in the place of all rows, in one commit. Fails if the table does not exist."""

    def restate(self, session: SparkSession, table: TableId, record: Record, parent: Record | None) -> None:
        """Put a record into a commit of its own, which changes no row. Fails like `evolve`."""

    def stage(self, session: SparkSession, table: TableId, found: Found) -> None:
        """Make a table, as it was found, ready for writes that are kept aside."""

    def publish(
        self, session: SparkSession, table: TableId, staged: str, parent: Record | None,
        properties: Mapping[str, str] | None = None,
    ) -> Found:  # fmt: skip
        """Make what was kept aside the current version, and set properties, in one step; the table as it is then.

        Fails if that was not written upon the current version, or if this has another record than `parent`.
        """

    def gained(self, session: SparkSession, table: TableId, staged: str) -> int:
        """How many rows more than before what was written under a name has; fewer are negative."""

    def rename(self, session: SparkSession, table: TableId, new: TableId) -> None:
        """Give the table another name. Fails if there is one of that name."""

    def describe(
        self, session: SparkSession, table: TableId, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        """Write again what the table says of the source table that it was made from. Fails like `evolve`."""

    def drop(self, session: SparkSession, table: TableId) -> None:
        """Remove the table and its files; nothing happens if there is none."""

    def files(self, session: SparkSession, table: TableId) -> frozenset[str]:
        """Every file that any version of the table refers to; empty if there is no table."""
