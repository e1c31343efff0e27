"""What other packages know of the source: plain values, no connection in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..pgtypes import Wire
from ..position import Lsn
from ..schema import TableSchema

BLOCK_BYTES = 8192


def filtered(where: str | None) -> str:
    """A row filter as a condition, as it was written; a comment in it ends with its line."""
    return f"({where}\n)" if where is not None else "true"


@dataclass(frozen=True)
class ExportedSnapshot:
    """One instant of the source: its name for SET TRANSACTION SNAPSHOT, and the position it equals."""

    name: str
    lsn: Lsn


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
    wires: tuple[Wire, ...]
    """one per column of the schema, in order"""
    jdbc_url: str
    jdbc_properties: Mapping[str, str]
    """user, password, ssl settings; never logged"""

    @property
    def estimated_rows(self) -> int:
        return sum(heap.pages * BLOCK_BYTES // heap.average_row_bytes for heap in self.heaps)

    def __repr__(self) -> str:
        return f"CopySource({self.schema.id})"
