"""The initial copy as one commit: the table is created or replaced, and readers see all of it or none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ... import faults
from ...errors import RowsNotKept
from ...position import LakeVersion
from ...source import CopySource, ExportedSnapshot
from ..applying.carriable import require_carriable
from ..applying.lookup import Lookup
from ..applying.records import applied_of, table_gone
from ..format import Found, Record, TableFormat
from ..maintenance.pending_files import PendingFiles
from ..model import Applied, Into
from ..spark.service import SparkService

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)


class CopyWriter:
    def __init__(self, spark: SparkService, tables: TableFormat, lookup: Lookup, pending_files: PendingFiles) -> None:
        self._spark, self._tables, self._lookup, self._pending_files = spark, tables, lookup, pending_files

    def write(
        self, source: CopySource, snapshot: ExportedSnapshot, source_id: str, manifest: int,
        progress: Callable[[int], None], into: Into, epoch: int,
    ) -> Applied:  # fmt: skip
        """Create or replace a table from the source at a snapshot."""
        table = into.table
        require_carriable(source.schema, self._tables)
        source = replace(source, schema=replace(source.schema, id=table))
        with self._spark.work("copying", table, copy=True) as quiet:
            found = self._lookup.own(quiet, table, source_id, into.formerly)
            self._pending_files.clear(quiet, source_id)
            before = found.record.version.commit if found is not None and found.record is not None else 0
            version = LakeVersion(epoch, max(before + 1, into.least))
            record = Record(snapshot.lsn, manifest, 0, version, snapshot.visibility)
            settings = self._tables.commit_settings(record)
            if found is not None and not into.rows and found.source == source_id:
                self._tables.restate(quiet, table, record, found.record)
                return self._lookup.now(quiet, table, source_id)
            location = self._pending_files.copying(table, source_id, found)
            try:
                with self._spark.driver.session(f"copy of {table}", settings) as session:
                    source, kept = _keeping(session, self._tables, source, found if into.keep else None, source_id)
                    write = (
                        partial(self._tables.replace, parent=found.record)
                        if found is not None
                        else partial(self._tables.create, location=location)
                    )
                    self._write_copy(session, source, snapshot, source_id, write, progress, into.rows, kept)
            except BaseException as error:
                self._after_failed_copy(source_id, error)
                raise
            faults.reached(faults.COPY_WRITTEN)
            self._pending_files.done(source_id)
            made = self._lookup.own(quiet, table, source_id)
        if made is None:
            raise table_gone(table)
        progress(made.rows)
        return applied_of(made, table)

    def _write_copy(
        self, session: SparkSession, source: CopySource, snapshot: ExportedSnapshot, source_id: str,
        write: Callable[..., None], progress: Callable[[int], None], filled: bool,
        kept: DataFrame | None,
    ) -> None:  # fmt: skip
        from . import initial_copy

        rows = initial_copy.read(session, source, snapshot, self._spark.driver.cores)
        if not filled:
            rows = rows.where("false")
        if kept is not None:
            rows = rows.unionByName(kept)
        with initial_copy.watched(session, self._spark.driver.group(), progress):
            write(session, rows, source.schema, source_id)

    def _after_failed_copy(self, source_id: str, error: BaseException) -> None:
        if not isinstance(error, Exception):
            return
        try:
            with self._spark.driver.session("cleaning up after a copy") as session:
                self._pending_files.clear(session, source_id)
        except Exception:
            # The note of pending files stays, and the next use of the table cleans up.
            log.debug("cleaning up after a failed copy", exc_info=True)


def _keeping(
    session: SparkSession, tables: TableFormat, source: CopySource, found: Found | None, source_id: str
) -> tuple[CopySource, DataFrame | None]:
    """Rows of a lake table that a copy must keep, and the source schema that records them. Raises RowsNotKept."""
    from ..applying.alter import selection
    from ..applying.partition import Untranslatable
    from .exchange import archived

    if found is None or found.schema is None or found.source != source_id or not found.schema.partitioned:
        return source, None
    try:
        kept, condition = archived(found.schema, source.schema)
    except Untranslatable:
        raise RowsNotKept(table=str(source.schema.id)) from None
    source = replace(source, schema=replace(source.schema, archived=kept))
    rows = selection(tables.sql_name(found.schema.id), found.schema, source.schema)
    return source, session.sql(f"{rows} WHERE {condition}") if kept else None
