"""Finds a lake table that must belong to a source table, and its position record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schema import TableId
from ..format import Found, TableFormat
from ..model import Applied
from .records import applied_of, require_own, still_at, table_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lookup:
    def __init__(self, tables: TableFormat) -> None:
        self._tables = tables

    def own(self, session: SparkSession, table: TableId, source_id: str, formerly: str | None = None) -> Found | None:
        """The lake table, None if there is none. Raises ForeignTable. `formerly`: another accepted source id."""
        found = self._tables.find(session, table)
        return None if found is None else require_own(found, table, source_id, formerly)

    def there(self, session: SparkSession, table: TableId, source_id: str) -> Found:
        """The lake table, which must exist. Raises LakeTableGone."""
        found = self.own(session, table, source_id)
        if found is None:
            raise table_gone(table)
        return found

    def now(self, session: SparkSession, table: TableId, source_id: str) -> Applied:
        """The position record of a table."""
        return applied_of(self.there(session, table, source_id), table)

    def still(self, session: SparkSession, applied: Applied, source_id: str, epoch: int) -> Applied:
        """The position record of a table, which must be the same as before. Raises LakeRolledBack or CommitFailed."""
        return still_at(self.now(session, applied.schema.id, source_id), applied, epoch)
