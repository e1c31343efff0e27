"""What other packages know of the source: plain values, no connection in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..position import Lsn
from ..schema import TableSchema
from ..types import CopyColumn
from ..visibility import Visibility

BLOCK_BYTES = 8192


def filtered(where: str | None) -> str:
    """A row filter as a condition, as it was written; a comment in it ends with its line."""
    return f"({where}\n)" if where is not None else "true"


@dataclass(frozen=True)
class ExportedSnapshot:
    """One instant of the source: its name for SET TRANSACTION SNAPSHOT, and what of the stream it holds."""

    name: str
    lsn: Lsn
    """all transactions with a commit LSN below it, and without `visibility` no others"""
    visibility: Visibility | None = None
    """of a snapshot that an ordinary session has exported: it holds the transactions that it sees"""
    token: str | None = None
    """what a stream that begins after it resumes from, where a position alone does not say that"""


@dataclass(frozen=True)
class Heap:
    """One table file to read: the table itself, or a leaf of a partitioned table."""

    sql_name: str
    """schema-qualified and quoted"""
    pages: int
    """8 KB blocks in the heap, from the file's size, so that it is right without statistics"""
    average_row_bytes: int
    """an estimate that includes TOAST; at least 1"""


@dataclass(frozen=True)
class CopySource:
    """All that the initial copy of a table needs to know."""

    schema: TableSchema
    heaps: tuple[Heap, ...]
    copy_columns: tuple[CopyColumn, ...]
    """one per column of the schema, in order"""
    jdbc_url: str
    jdbc_properties: Mapping[str, str]
    """user, password, ssl settings; never logged"""

    @property
    def estimated_rows(self) -> int:
        return sum(heap.pages * BLOCK_BYTES // heap.average_row_bytes for heap in self.heaps)

    def __repr__(self) -> str:
        return f"CopySource({self.schema.id})"


@dataclass(frozen=True)
class SourceIdentity:
    """Identifies a database of a cluster."""

    system_identifier: str
    database_oid: int
    database: str


@dataclass(frozen=True)
class Standing:
    """The position of a group's slot, as the source reports it."""

    active: bool
    received_lsn: Lsn | None
    acknowledged_lsn: Lsn | None
    lag_bytes: int
    retained_wal_bytes: int
