"""The tables of a group: which are wanted, what the catalog says of them, and where the lake says that they stand.

A table is awake while there is something to do for it or to wait for; one that streams and has all that was captured
is at rest, and no turn of the loop looks at it. It is woken by a manifest that names it and by what is wanted of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ..changelog import ChangeLog
from ..changelog.manifest import Manifest
from ..errors import ForeignTable, SlotLost, Wal2LakeError, advise
from ..lake import Lake
from ..lake.model import Applied
from ..position import ZERO, Lsn
from ..schema import TableSchema
from ..source.database import Source
from .backlog import Backlog
from .state import TableState
from .store import StateStore, TableRecord
from .tables import TableRun, continues

log = logging.getLogger(__name__)

ASKERS = 4
"""threads that ask the lake where tables stand"""


@dataclass(frozen=True)
class Wanted:
    """The tables that are to be mirrored, at one moment."""

    schemas: Sequence[TableSchema]
    records: dict[int, TableRecord]
    """what the state store has of the group's tables, those that are not wanted any more included"""
    resyncs: dict[int, datetime]
    before: Lsn = ZERO
    """the schemas are of a moment between this position and `after`"""
    after: Lsn = ZERO


class Roster:
    def __init__(
        self, group: str, source: Source, store: StateStore, lake: Lake, changelog: ChangeLog, backlog: Backlog
    ) -> None:
        self._group, self._source, self._store, self._lake = group, source, store, lake
        self._log, self._backlog = changelog, backlog
        self._tables: dict[int, TableRun] = {}
        self._awake: dict[int, TableRun] = {}
        self._unsaved: dict[int, TableRun] = {}

    def __iter__(self) -> Iterator[TableRun]:
        return iter(self._tables.values())

    def get(self, oid: int) -> TableRun | None:
        return self._tables.get(oid)

    @property
    def oids(self) -> frozenset[int]:
        return frozenset(self._tables)

    # ---- who is awake

    @property
    def awake(self) -> list[TableRun]:
        return list(self._awake.values())

    def wake(self, table: TableRun) -> None:
        self._awake.setdefault(table.schema.oid, table)

    def wake_all(self) -> None:
        self._awake = dict(self._tables)

    def rest(self) -> None:
        """Let those rest for which there is nothing to do."""
        for oid in [oid for oid, table in self._awake.items() if table.at_rest]:
            table = self._awake.pop(oid)
            if table.dirty:
                self._unsaved[oid] = table

    def arrive(self, oid: int, manifest: Manifest) -> None:
        """A manifest names a table."""
        if (table := self._tables.get(oid)) is not None:
            table.arrive(manifest)
            self.wake(table)

    # ---- who is wanted

    def look(self, known: Collection[int]) -> Wanted:
        """Ask the source and the state store what is wanted; what is new is published and noted. On any thread."""
        before = self._source.written()
        schemas = self._source.discover()
        after = self._source.written()
        if {schema.oid for schema in schemas} != known:
            self._source.publish(schemas)
        return replace(self.note(schemas), before=before, after=after)

    def note(self, schemas: Sequence[TableSchema]) -> Wanted:
        """Let the state store know of tables that are published."""
        records = {record.oid: record for record in self._store.tables(self._group)}
        new = [
            TableRecord(self._group, schema.oid, schema.id, TableState.PENDING)
            for schema in schemas
            if schema.oid not in records
        ]
        self._store.save_tables(new)
        records.update({record.oid: record for record in new})
        return Wanted(schemas, records, self._store.wanted_resyncs(self._group))

    def adopt(self, wanted: Wanted) -> None:
        """Take in the wanted tables: new ones, altered ones, those to be copied anew, those that are gone."""
        self._forget((set(wanted.records) | self.oids) - {schema.oid for schema in wanted.schemas})
        new = []
        for schema in wanted.schemas:
            table, asked = self._tables.get(schema.oid), wanted.resyncs.get(schema.oid)
            if table is None:
                table = TableRun(schema, wanted.records[schema.oid], resync_wanted=asked)
                self._tables[schema.oid] = table
                new.append(table)
            elif asked is not None and (table.resync_wanted is None or asked > table.resync_wanted):
                table.resync, table.resync_wanted = True, asked
                self.wake(table)
            if table.schema != schema:
                table.schema = schema
                self.wake(table)
            table.update(id=schema.id)
        self._place(new, {table.schema.oid for table in new if table.resync_wanted is not None})

    def retry(self) -> None:
        """Try those again whose time has come."""
        now = datetime.now(UTC)
        due = [table for table in self._awake.values() if table.retry_due(now)]
        self._place(due, {table.schema.oid for table in due if table.copy_failed})

    def _place(self, tables: Sequence[TableRun], to_copy: Collection[int]) -> None:
        """Find out from the lake where tables stand, when a run begins and when an error is tried again."""
        if not tables:
            return
        asked = [table for table in tables if table.schema.oid not in to_copy]
        for table in tables:
            self.wake(table)
            table.update(error=None, remedy=None, retry_at=None)
            table.detached = False
            if table.schema.oid in to_copy:
                table.become(TableState.PENDING, applied_lsn=None)
                table.resync = True
        if len(asked) == 1:
            self._settle(asked[0], self._ask(asked[0]))
        elif asked:
            with ThreadPoolExecutor(ASKERS, thread_name_prefix=f"ask-{self._group}") as pool:
                for table, answer in zip(asked, pool.map(self._ask, asked), strict=True):
                    self._settle(table, answer)

    def _ask(self, table: TableRun) -> Applied | Wal2LakeError | None:
        try:
            return self._lake.applied(table.schema.id, self._source.table_id(table.schema.oid))
        except Wal2LakeError as error:
            return error

    def _settle(self, table: TableRun, answer: Applied | Wal2LakeError | None) -> None:
        if isinstance(answer, Applied) and not continues(answer, self._log.start):
            answer = SlotLost(slot=self._log.origin.slot, lsn=answer.lsn, cause="was made anew")
        match answer:
            case None:
                table.become(TableState.PENDING, applied_lsn=None)
                table.resync = True
            case Applied():
                table.become(TableState.CATCHUP)
                table.advance(answer, self._backlog.after(table.schema.oid, answer.manifest))
            case error:
                table.detached = isinstance(error, SlotLost | ForeignTable)
                table.fail(advise(error))

    def _forget(self, oids: set[int]) -> None:
        gone = []
        for oid in oids:
            table = self._tables.get(oid)
            if table is None or table.job is None:
                for tables in (self._tables, self._awake, self._unsaved):
                    tables.pop(oid, None)
                gone.append(oid)
                if table is not None:
                    log.warning("%s is no longer wanted or no longer there; its lake table stays", table.name)
        if gone:
            self._store.forget_tables(self._group, gone)

    # ---- the books

    @property
    def dirty(self) -> bool:
        return bool(self._unsaved) or any(table.dirty for table in self._awake.values())

    def unsaved(self) -> list[TableRecord]:
        """The records that the state store has not; they count as saved, until `not_saved` says otherwise."""
        tables = [*self._unsaved.values(), *(table for table in self._awake.values() if table.dirty)]
        self._unsaved.clear()
        for table in tables:
            table.dirty = False
        return list({table.schema.oid: table.record for table in tables}.values())

    def not_saved(self, records: Sequence[TableRecord]) -> None:
        for record in records:
            if (table := self._tables.get(record.oid)) is not None:
                table.dirty = True
                self._unsaved[record.oid] = table
