"""The port of a lake table format: everything that the lake needs of Iceberg, or of another format.

Every write is one commit with rows and position record. Sessions come from `Driver`; the record is passed as session
configuration (`commit_settings`), so a session serves one commit at a time. Failures raise Spark's exceptions, which
`failure_kind` classifies, or errors of wal2lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from ..position import NO_VERSION, LakeVersion, Lsn
from ..schema import TableId, TableSchema
from ..visibility import Visibility
from .model import Facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Jar:
    """A library for the JVM, by its Maven coordinates."""

    group: str
    artifact: str
    version: str

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file(self) -> str:
        """The file name that Spark's resolution uses."""
        return f"{self.group}_{self.artifact}-{self.version}.jar"


@dataclass(frozen=True)
class Runtime:
    """What a format needs of a Spark driver."""

    jars: Mapping[str, Jar] = field(default_factory=dict)
    """by a class of each, which shows whether a given session has it"""
    extensions: tuple[str, ...] = ()
    """Spark SQL extensions"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """of every session; the user's configuration overrides them"""
    packages: tuple[str, ...] = ()
    """Java packages whose classes are used by name"""


@dataclass(frozen=True)
class Record:
    """The position record of a commit."""

    lsn: Lsn
    manifest: int
    changes: int
    version: LakeVersion = NO_VERSION
    visibility: Visibility | None = None
    """of a copy whose snapshot sees transactions that are in the stream after its position"""


@dataclass(frozen=True)
class Found:
    """The metadata of a lake table."""

    source: str | None
    """the id of its source table; None: wal2lake did not make it"""
    schema: TableSchema | None
    record: Record | None
    """the newest record in the table's current history; None if there is none"""
    rows: int
    location: str
    compaction_facts: Facts = field(default_factory=Facts)
    """facts for deciding about maintenance"""
    stages: bool = False
    """whether writes can be staged"""


@dataclass(frozen=True)
class Merge:
    """A MERGE of Spark SQL: rows `s` of a query into a table whose rows are `t`."""

    source: str
    """the query"""
    on: str
    """the join condition"""
    clauses: tuple[str, ...]
    """WHEN …, in order"""


@dataclass(frozen=True)
class DataFile:
    """A data file of the current version."""

    size: int
    records: int
    """stored rows, including deleted ones"""
    deleted: int
    """stored rows that are known to be deleted"""


@dataclass(frozen=True)
class Rewrite:
    """Which files to rewrite: all smaller than a size below `target`, and all with at least a share of deleted rows."""

    below: int
    share: float
    target: int
    """target size of the new files, in bytes"""
    complete: bool
    """whether nothing is left to do after it"""


class FailureKind(Enum):
    """What an exception says about a commit or the catalog."""

    COMMIT_FAILED = auto()
    """not committed, because another commit came first; it can be retried on top of that"""
    COMMIT_UNKNOWN = auto()
    """the commit may have been made: read the table to find out"""
    CATALOG = auto()
    """the catalog could not be read or written"""


class NeedsSession(Exception):
    """The answer needs a session."""


class TableFormat(Protocol):
    """Lake tables of one configuration. Methods may be called from several threads, but for one table at a time."""

    name: str
    """for people"""
    runtime: Runtime
    reserved_columns: frozenset[str]
    """names that no column of a table can have"""
    row_address: tuple[str, str]
    """two metadata columns that together identify a stored row in a version of the table"""

    # The catalog

    def require_usable(self) -> None:
        """Raise LakeUnwritable, with a remedy, if commits to this kind of catalog could be lost."""

    def settings(self) -> Mapping[str, str]:
        """Session configuration that makes the tables visible to a session."""

    def sql_name(self, table: TableId) -> str:
        """The name of a table in Spark SQL, whether or not it exists."""

    def find(self, session: SparkSession, table: TableId) -> Found | None:
        """The current state of a table, never cached; None if it does not exist."""

    def find_without_session(self, table: TableId) -> Found | None:
        """The same, read without Spark. Raises NeedsSession if that is impossible."""

    def rename(self, session: SparkSession, table: TableId, new: TableId) -> None:
        """Rename a table; its files stay in place. Fails if the new name is taken."""

    def drop(self, session: SparkSession, table: TableId) -> None:
        """Drop a table with its files, if it exists."""

    # Commits

    def commit_settings(self, record: Record, staged: str | None = None) -> Mapping[str, str]:
        """Session configuration that adds the record to each commit of the session.

        With `staged`, a unique name, writes are staged under this name for `publish`.
        """

    def create(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, location: str | None
    ) -> None:
        """Create a table with these rows in one commit. Fails if a table of that name exists.

        Its files go to `location`; None: the catalog decides.
        """

    def replace(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        """Replace rows, columns and properties of a table in one commit.

        Partitioning, sort order and properties that users have set stay, as far as their columns exist. Fails like
        `publish`, but accepts compactions by others.
        """

    def append(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:
        """Add rows, in one commit. Fails if the table does not exist."""

    def overwrite(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:
        """Replace all rows in one commit. Fails if the table does not exist."""

    def merge(self, session: SparkSession, table: TableId, merge: Merge) -> None:
        """Insert, update and delete rows by clauses in one commit. Fails if the table does not exist.

        Also used to delete rows: a DELETE may commit without the record. Fails if two rows of the query match one row
        of the table.
        """

    def evolve(self, session: SparkSession, before: TableSchema, after: TableSchema, parent: Record | None) -> None:
        """Change columns and store the schema, in one commit that changes no row.

        Raises CommitFailed if the current version of the table has another record than `parent`.
        """

    def restate(self, session: SparkSession, table: TableId, record: Record, parent: Record | None) -> None:
        """Commit a record without changing rows. Fails like `evolve`."""

    def describe(
        self, session: SparkSession, table: TableId, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        """Rewrite the description of the source table in the table's properties. Fails like `evolve`."""

    def note_record(self, session: SparkSession, table: TableId) -> None:
        """Copy the record of the current version into the table's properties, which survive it, if the table exists."""

    # Staged commits

    def new_stage(self) -> str:
        """A unique name for staged writes."""

    def stage(self, session: SparkSession, table: TableId, found: Found) -> None:
        """Prepare a table for staged writes."""

    def gained(self, session: SparkSession, table: TableId, staged: str) -> int:
        """By how many rows the version staged under a name is larger than the one before; may be negative."""

    def publish(self, session: SparkSession, table: TableId, staged: str, parent: Record | None) -> Found:
        """Make the staged version the current one, in one step; return the table.

        Raises CommitFailed if it was not staged on the current version, if that has another record than `parent`, or if
        nothing was staged under the name. Unpublished versions expire with the old ones.
        """

    # Files

    def new_location(self, table: TableId) -> str | None:
        """A location that no other table has ever used; None if the catalog chooses locations."""

    def clean_up(
        self, session: SparkSession, location: str, table: TableId, source: str, since: float, free: bool
    ) -> None:
        """Remove what interrupted work has left at the location of a table.

        Where only this table of this source is, files newer than `since` that no version of it refers to. Where no
        table is, everything, but only if the location was `free` before the work, or the table was being dropped.
        Nothing where another table is, or outside of the lake.
        """

    def files(self, session: SparkSession, table: TableId) -> frozenset[str]:
        """Every file that any version of the table refers to; empty if the table does not exist."""

    # Compaction: no step changes the rows; a failed or cancelled step leaves the table unchanged

    def facts(self, session: SparkSession, table: TableId) -> Facts:
        """Facts for deciding about maintenance; empty if the table does not exist."""

    def data_files(self, session: SparkSession, table: TableId) -> Sequence[DataFile]:
        """The data files of the current version. Fails if the table does not exist."""

    def compact(
        self, session: SparkSession, table: TableId, rewrite: Rewrite | None, most: int, record: Record
    ) -> None:
        """Rewrite files, `most` bytes at once, in commits with `record`; deleted rows are dropped from them.

        Without `rewrite`, only what the format itself needs. Fails if the table does not exist.
        """

    def expire(self, session: SparkSession, table: TableId, keep: int, before: float, record: Record) -> None:
        """Expire versions older than a time, in seconds since 1970, except the newest `keep`.

        The newest version with `record` stays, as do versions held by tags and branches of others. Does nothing if the
        user has disabled expiration. Fails if the table does not exist.
        """

    def remove_orphans(self, session: SparkSession, table: TableId, before: float) -> int:
        """Remove files older than a time that no version refers to; return how many.

        Removes none that could belong to another table or are outside of the lake. Fails if the table does not exist.
        """

    # Failures

    def failure_kind(self, causes: Sequence[str]) -> FailureKind | None:
        """The meaning of an exception, by the class names of its causes, outermost first; None: no special meaning."""
