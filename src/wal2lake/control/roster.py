"""The tables of a group: which are wanted, what the catalog says of them, and where the lake says that they stand."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ..changelog import ChangeLog
from ..changelog.manifest import Manifest
from ..errors import ForeignTable, SlotLost, Wal2LakeError, advise
from ..lake import Lake
from ..schema import TableSchema
from ..source.database import Source
from .state import TableState
from .store import StateStore, TableRecord
from .tables import TableRun, continues

log = logging.getLogger(__name__)


class Roster:
    def __init__(self, group: str, source: Source, store: StateStore, lake: Lake, changelog: ChangeLog) -> None:
        self._group, self._source, self._store, self._lake, self._log = group, source, store, lake, changelog
        self._tables: dict[int, TableRun] = {}

    def __iter__(self) -> Iterator[TableRun]:
        return iter(self._tables.values())

    def get(self, oid: int) -> TableRun | None:
        return self._tables.get(oid)

    @property
    def oids(self) -> set[int]:
        return set(self._tables)

    def adopt(self, schemas: Sequence[TableSchema], manifests: Sequence[Manifest]) -> None:
        """Take in the wanted tables: new ones, altered ones, those to be copied anew, those that are gone."""
        records = {record.oid: record for record in self._store.tables(self._group)}
        self._forget((set(records) | self.oids) - {schema.oid for schema in schemas})
        new = [
            TableRecord(self._group, schema.oid, schema.id, TableState.PENDING)
            for schema in schemas
            if schema.oid not in records
        ]
        self._store.save_tables(new)
        records.update({record.oid: record for record in new})
        resync = self._store.wanted_resyncs(self._group)
        for schema in schemas:
            table = self._tables.get(schema.oid)
            wanted = resync.get(schema.oid)
            if table is None:
                table = self._tables[schema.oid] = TableRun(schema, records[schema.oid], resync_wanted=wanted)
                self.place(table, manifests, copy=wanted is not None)
            elif wanted is not None and (table.resync_wanted is None or wanted > table.resync_wanted):
                table.resync, table.resync_wanted = True, wanted
            table.schema = schema
            table.update(id=schema.id)

    def place(self, table: TableRun, manifests: Sequence[Manifest], *, copy: bool) -> None:
        """Find out from the lake where a table stands, when a run begins and when an error is tried again."""
        table.update(error=None, remedy=None, retry_at=None)
        table.detached = False
        try:
            applied = self._lake.applied(table.schema.id, self._source.table_id(table.schema.oid))
            if copy or applied is None:
                table.become(TableState.PENDING, applied_lsn=None)
                table.resync = True
            elif continues(applied, self._log.start):
                table.become(TableState.CATCHUP)
                table.advance(applied, manifests)
            else:
                raise SlotLost(slot=self._log.origin.slot, lsn=applied.lsn, cause="was made anew")
        except Wal2LakeError as error:
            table.detached = isinstance(error, SlotLost | ForeignTable)
            table.fail(advise(error))

    def retry(self, manifests: Sequence[Manifest]) -> None:
        """Try those again whose time has come."""
        now = datetime.now(UTC)
        for table in self:
            if table.retry_due(now):
                self.place(table, manifests, copy=table.copy_failed)

    def save(self) -> None:
        """Tell the state store what has changed."""
        dirty = [table for table in self if table.dirty]
        self._store.save_tables(table.record for table in dirty)
        for table in dirty:
            table.dirty = False

    def _forget(self, oids: set[int]) -> None:
        gone = []
        for oid in oids:
            table = self._tables.get(oid)
            if table is None or table.job is None:
                self._tables.pop(oid, None)
                gone.append(oid)
                if table is not None:
                    log.warning("%s is no longer wanted or no longer there; its lake table stays", table.name)
        if gone:
            self._store.forget_tables(self._group, gone)
