"""The port of the lake: everything that the rest of wal2lake needs of it.

`Lake` implements it with Spark; `tests/simulation/memory_lake.py` implements it in memory, as the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ..errors import SparkUnavailable
from ..schema import TableId, TableSchema
from ..source import CopySource, ExportedSnapshot
from .model import Applied, Batch, Exchange, Into, Work


class LakeTables(Protocol):
    """All lake tables of one configuration. Methods may be called from several threads, but for one table at a time.

    Rows and position record of a table are in one commit. A call that changes a table gets the record that it was
    planned from (`applied`) and the epoch of the run, and commits only on top of that record:

    - LakeRolledBack: the table has an older version than `applied`.
    - CommitFailed: nothing was committed, because the table has another record, or one of a higher epoch; read the
      table (`applied()`) to continue.
    - CommitUnknown, SparkLost or another LakeError: it may have been committed. The same call can be repeated safely:
      it finds what was committed or raises CommitFailed, and nothing is done twice.
    - LakeTableGone, ForeignTable: the table does not exist, or was made from another source table (`source_id`).
    """

    # Availability: calls fail with SparkLost while it is down

    @property
    def ready(self) -> bool:
        """Whether it is available; it is not during a restart."""

    @property
    def starts(self) -> int:
        """How often it was started: work that failed with one start can be retried after the next."""

    @property
    def failure(self) -> SparkUnavailable | None:
        """Why it will not become available again; None: it may."""

    def begin(self) -> None:
        """Start it, unless it is started on demand. Raises like `start`."""

    def start(self) -> None:
        """Start it unless it runs. Raises SparkUnavailable, LakeUnwritable or LakeError."""

    def stop(self) -> None:
        """Stop it; no more work is begun. Any thread may call it, repeatedly."""

    def kill(self) -> None:
        """Kill it, also during its start: running work fails; commits are atomic."""

    def cancel(self, tables: Collection[TableId] | None = None) -> None:
        """Make running work, or that on some tables, fail soon; commits are atomic. Never raises."""

    # Reads

    def applied(self, table: TableId, source_id: str) -> Applied | None:
        """The record of a table; None if it does not exist. Raises ForeignTable or LakePositionLost.

        Cleans up what an interrupted copy or drop of it has left.
        """

    def holder(self, table: TableId) -> str | None:
        """The id of the source table of a lake table; None if the lake table does not exist.

        Raises ForeignTable if wal2lake did not make it.
        """

    def has(self, table: TableId, source_id: str) -> bool:
        """Whether there is a table of this name that was made from this source table."""

    def due(self, applied: Applied) -> Work | None:
        """The maintenance that a table needs, if any; decided from its record, without reading the table."""

    # Commits

    def copy(
        self,
        source: CopySource,
        snapshot: ExportedSnapshot,
        source_id: str,
        manifest: int,
        progress: Callable[[int], None],
        into: Into | None = None,
        epoch: int = 0,
    ) -> Applied:
        """Create or replace a table from the source at a snapshot, in one commit; `manifest` is the last one before it.

        `into` names the lake table; the default is the name of the source table. Without rows, an existing table keeps
        its own. Replaces any record of the table. Raises ForeignTable, RowsNotKept, or CopyFailed; its field `unfit` is
        True if a value did not fit its lake type. `progress` gets the rows so far.
        """

    def apply(self, applied: Applied, batch: Batch, source_id: str, epoch: int = 0) -> Applied:
        """Apply a batch to its table in one commit, unless it was applied before; return the new record.

        A batch without effect moves the position only in the result. Raises CopyNeeded if the table must be re-copied,
        and LakeInconsistent if the table lacks a row that the changes refer to.
        """

    def evolve(self, applied: Applied, schema: TableSchema, source_id: str, epoch: int = 0) -> Applied:
        """Give a table the columns of another schema, in one commit, unless it has them; its position stays."""

    def exchange(
        self, applied: Applied, source: CopySource, snapshot: ExportedSnapshot, what: Exchange, schema: TableSchema,
        source_id: str, epoch: int = 0,
    ) -> Applied:  # fmt: skip
        """Exchange rows of single partitions at a snapshot, in a table that has all else up to it, in one commit.

        `source` has the partitions that are copied, `schema` the partitions that the table has afterwards. If storing
        `schema` fails, they are exchanged again, with the same result.
        """

    def restate(self, applied: Applied, source_id: str, epoch: int = 0) -> Applied:
        """Write a position record for the present rows of a table, in a commit that changes none.

        The schema version of the change log is written, too.
        """

    def maintain(self, applied: Applied, source_id: str) -> Applied:
        """Do a step of the maintenance that a table needs; return the record, which has the same position.

        A failure is logged as a warning and retried later; the table is unchanged then.
        """

    # Names: renaming and dropping create no version

    def rename(self, source_id: str, names: Sequence[TableId], new: TableId) -> Applied | None:
        """Rename the lake table of a source table; its files stay in place. None if it does not exist.

        Its present name is one of `names` or the new one. Raises ForeignTable if the new name is another table's.
        """

    def drop(self, table: TableId, source_id: str | None = None) -> None:
        """Drop a table of ours with its files, if it exists. Raises ForeignTable.

        With `source_id`, only if it was made from that source table.
        """
