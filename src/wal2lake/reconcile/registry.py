"""The tables of a group: which are wanted, what the catalog says of them, and where the lake says that they stand.

A table is awake while there is something to do for it or to wait for; one that streams and has all that was captured
is at rest, and no turn of the loop looks at it. It is woken by a manifest that names it and by what is wanted of it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

from ..changelog import ChangeLog
from ..changelog.backlog import Backlog
from ..changelog.manifest import Manifest
from ..errors import ForeignTable, LakeRolledBack, SlotLost, TableRecreated, Wal2LakeError, advise
from ..lake import Lake
from ..lake.model import Applied
from ..position import Lsn
from ..schema import TableId, TableSchema
from ..source.database import Source
from ..state import HistoryEntry, StateStore, TableRecord, TableSpec
from ..state.lifecycle import TableState, Transition
from .desired_state import DesiredState
from .desired_tables import arrives
from .lake_names import LakeNames
from .table_runtime import TableRuntime

log = logging.getLogger(__name__)

ASKERS = 4
"""threads that ask the lake where tables stand"""


@dataclass(frozen=True)
class Unsaved:
    """What is to be written of a table, as it was at one moment."""

    table: TableRuntime
    record: TableRecord
    transitions: list[Transition]
    history: list[HistoryEntry]
    upto: int = 0
    """the last manifest that the table had"""


class TableRegistry:
    def __init__(
        self, group: str, source: Source, store: StateStore, lake: Lake, changelog: ChangeLog, backlog: Backlog,
        lake_names: LakeNames, who: str, raise_epoch: Callable[[int], int],
    ) -> None:  # fmt: skip
        self._raise_epoch = raise_epoch
        self.group, self._source, self._store, self._lake = group, source, store, lake
        self._log, self._backlog, self._lake_names, self._who = changelog, backlog, lake_names, who
        self._tables: dict[int, TableRuntime] = {}
        self._awake: dict[int, TableRuntime] = {}
        self._unsaved: dict[int, TableRuntime] = {}
        self._unwanted: set[int] = set()
        self._let_go: dict[int, float] = {}
        """tables that go to another group, and when that was decided"""
        self.elsewhere: Mapping[TableId, TableRecord] = {}
        """the live tables of other groups, by their lake tables"""
        self.patient = True
        """whether the waiting time of an error of an earlier run is kept"""

    def __iter__(self) -> Iterator[TableRuntime]:
        return iter(self._tables.values())

    def get(self, oid: int) -> TableRuntime | None:
        return self._tables.get(oid)

    @property
    def oids(self) -> frozenset[int]:
        return frozenset(self._tables)

    # ---- who is awake

    @property
    def awake(self) -> list[TableRuntime]:
        return list(self._awake.values())

    def wake(self, table: TableRuntime) -> None:
        self._awake.setdefault(table.schema.oid, table)

    def wake_all(self) -> None:
        self._awake = dict(self._tables)

    def rest(self) -> None:
        """Let those rest for which there is nothing to do."""
        for oid in [oid for oid, table in self._awake.items() if table.at_rest]:
            table = self._awake.pop(oid)
            if table.dirty or table.transitions:
                self._unsaved[oid] = table

    def arrive(self, oid: int, manifest: Manifest) -> None:
        """A manifest names a table."""
        if (table := self._tables.get(oid)) is not None:
            table.arrive(manifest)
            self.wake(table)

    # ---- who is wanted

    def reconcile(self, wanted: DesiredState) -> None:
        """Take in the wanted tables: new ones, altered ones, those to be re-copied, those that are gone."""
        self.elsewhere = wanted.elsewhere
        self._let_go = {oid: at for oid, at in self._let_go.items() if at >= wanted.began}
        removed = {oid for oid, spec in wanted.specs.items() if spec.wanted is False}
        kept = {schema.oid for schema in wanted.schemas} | (wanted.dropped - removed)
        self._unwanted = (set(wanted.records) | self.oids) - kept
        self._forget(self._unwanted)
        self.note_masks(wanted.schemas)
        self.note_partitions(wanted.schemas)
        new: dict[int, TableRuntime] = {}
        for schema in wanted.schemas:
            oid = schema.oid
            if oid in self._let_go:
                continue
            table, asked, spec = self._tables.get(oid), wanted.resyncs.get(oid), wanted.specs.get(oid)
            if table is not None and table.arriving and not arrives(spec, self.group):
                # It came in another way than it was expected.
                self._awake.pop(oid, None)
                table = None
            if table is None:
                table = TableRuntime(
                    schema, wanted.records[oid], resync_wanted=asked, arriving=arrives(spec, self.group)
                )
                self._tables[oid] = new[oid] = table
            elif (
                # What one that arrives is asked for is part of its taking over.
                asked is not None
                and not table.arriving
                and (table.resync_wanted is None or asked > table.resync_wanted)
            ):
                table.request_copy(asked)
                self.wake(table)
            if table.schema != schema or table.spec != spec:
                self.wake(table)
            if oid not in new and _resumed(spec) not in (None, _resumed(table.spec)):
                table.retry_now()
            former = table.record.id
            table.describe(schema, spec, wanted.rounds.get(oid))
            self._note_refusal(table, wanted.refused.get(oid))
            if schema.id != former:
                log.info("%s is now named %s; its lake table is %s", former, schema.id, table.target)
            self.aim(table)
        self._begin(list(new.values()))
        self._take_leave(wanted)

    def _note_refusal(self, table: TableRuntime, refused: Wal2LakeError | None) -> None:
        """Whether a table can be captured now, as the last look says; it is put aside when no work is under way."""
        before = table.set_refusal(refused)
        if refused is not None:
            self.wake(table)
            if table.state is TableState.ERRORED and before is not None and str(before) != str(refused):
                table.refuse()
        elif before is not None:
            table.retry_now()

    def aim(self, table: TableRuntime) -> None:
        """See what name a table's lake table is to have; one that has none yet may have any."""
        if not table.made and not table.arriving:
            table.update(target=self._lake_names.naming.first(table.schema.id, table.spec))
        new = self._lake_names.naming.renamed(table.schema, table.target, table.spec)
        table.aim_at(new)
        if new is not None:
            self.wake(table)

    def note_partitions(self, schemas: Iterable[TableSchema]) -> None:
        """Have the change log know of partitions: changes may be decoded after their partition was detached."""
        self._log.leaves.note({heap.oid: s.oid for s in schemas if s.partitioned for heap in s.heaps})

    def note_masks(self, schemas: Iterable[TableSchema]) -> None:
        """Have the change log know of masks and filters before the first row: a rename or a DETACH may come with it."""
        for schema in schemas:
            if schema.narrowed and ((known := self._log.schemas.last(schema.oid)) is None or not known.narrowed):
                self._log.schemas.version(schema)

    def _begin(self, tables: Sequence[TableRuntime]) -> None:
        """Tables that are new here."""
        now = datetime.now(UTC)
        ready = []
        for table in tables:
            copied = table.resync_wanted is None
            if table.arriving:
                self.wake(table)
            elif self.patient and table.still_waits(now):
                # The lake has not been asked where it stands, so it holds every manifest meanwhile.
                table.await_retry(copy=not copied)
                self.wake(table)
            else:
                ready.append(table)
        self._place(ready, {table.schema.oid for table in ready if table.resync_wanted is not None})

    def _take_leave(self, wanted: DesiredState) -> None:
        """Tables that the source has no more: what was captured of them is still applied."""
        for oid in wanted.dropped:
            table, record, spec = self._tables.get(oid), wanted.records.get(oid), wanted.specs.get(oid)
            if spec is not None and spec.wanted is False:
                continue
            if table is None and record is not None and record.state is not TableState.DROPPED:
                table = self._revived(record)
            if table is not None and table.leaving is None:
                log.warning("%s was dropped at the source; its lake table %s stays", table.name, table.target)
                table.dropped_at_source(wanted.position)
                self.wake(table)

    def _revived(self, record: TableRecord) -> TableRuntime | None:
        """A table that was dropped while nothing ran: the lake alone knows what it was."""
        try:
            applied = self._lake.applied(record.lake_table, self._source.table_id(record.oid))
        except Wal2LakeError:
            applied = None
        if applied is None:
            self._store.forget_tables(self.group, [record.oid])
            return None
        table = TableRuntime(applied.schema, record)
        self._tables[record.oid] = table
        self._settle(table, applied)
        return table

    def apply_requests(self, logged: Lsn) -> None:
        """Do what is asked of tables, as soon as no work on them is under way."""
        resumed = []
        for table in self.awake:
            if table.job is not None:
                continue
            if table.schema.oid in self._unwanted:
                self._forget({table.schema.oid})
            elif table.leaving is not None and _has_all(table, logged):
                self._part(table)
            elif table.refused is not None and not table.arriving and not table.paused:
                if table.state is not TableState.ERRORED:
                    table.refuse()
            elif table.paused and table.state is not TableState.PAUSED and not table.arriving:
                table.become(TableState.PAUSED, error=None, remedy=None, retry_at=None, kind=None, failures=0)
            elif not table.paused and table.state is TableState.PAUSED:
                resumed.append(table)
        self._place(resumed, {table.schema.oid for table in resumed if table.resync or table.copy_failed})

    def retry(self) -> None:
        """Try those again whose time has come."""
        now = datetime.now(UTC)
        due = [table for table in self._awake.values() if table.retry_due(now)]
        self._place(due, {table.schema.oid for table in due if table.copy_failed})

    def retry_interrupted(self) -> None:
        """Spark is back: try those again that failed with its end."""
        for table in self._awake.values():
            table.spark_is_back()

    def _place(self, tables: Sequence[TableRuntime], to_copy: Collection[int]) -> None:
        """Find out from the lake where tables stand, when a run begins and when an error is tried again."""
        for table in tables:
            if table.refused is not None:
                self.wake(table)
                table.refuse()
        tables = [table for table in tables if table.refused is None]
        if not tables:
            return
        asked = [table for table in tables if table.schema.oid not in to_copy]
        for table in tables:
            self.wake(table)
            table.try_again()
            if table.schema.oid in to_copy:
                table.await_copy()
        if len(asked) == 1:
            self._settle(asked[0], self._ask(asked[0]))
        elif asked:
            with ThreadPoolExecutor(ASKERS, thread_name_prefix=f"ask-{self.group}") as pool:
                for table, answer in zip(asked, pool.map(self._ask, asked), strict=True):
                    self._settle(table, answer)

    def _ask(self, table: TableRuntime) -> Applied | Wal2LakeError | None:
        try:
            return self._lake_names.where(table)
        except ForeignTable as error:
            return self._lake_names.judged(table, error)
        except Wal2LakeError as error:
            return error

    def _settle(self, table: TableRuntime, answer: Applied | Wal2LakeError | None) -> None:
        if isinstance(answer, Applied) and not self._log.stretch.continues(answer.manifest, answer.lsn):
            answer = SlotLost(slot=self._log.origin.slot, lsn=answer.lsn, cause="was re-created")
        if isinstance(answer, Applied) and answer.version < table.record.version:
            known = table.record.applied_lsn or "a later version"
            answer = LakeRolledBack(table=table.name, lsn=answer.lsn, known=known)
        match answer:
            case None:
                table.await_copy()
            case Applied():
                self._raise_epoch(answer.version.epoch - 1)
                table.found(answer)
                self.aim(table)
                table.advance(answer, self._backlog.after(table.schema.oid, answer.manifest))
            case error:
                # While somebody else's table is in its place its own may come back, and needs its changes then.
                table.not_found(detached=isinstance(error, SlotLost | TableRecreated | LakeRolledBack))
                table.fail(advise(error.about(table.name)))

    def _forget(self, oids: Collection[int]) -> None:
        gone = []
        for oid in list(oids):
            table = self._tables.get(oid)
            if table is None or table.job is None:
                for tables in (self._tables, self._awake, self._unsaved):
                    tables.pop(oid, None)
                gone.append(oid)
                if table is not None:
                    log.warning("%s is no longer wanted; its lake table stays", table.name)
        if gone:
            self._store.forget_tables(self.group, gone)
            self._unwanted -= set(gone)

    def let_go(self, table: TableRuntime) -> None:
        """Do nothing more for a table: another group is to have it. What was asked before that says otherwise."""
        for tables in (self._tables, self._awake, self._unsaved):
            tables.pop(table.schema.oid, None)
        self._let_go[table.schema.oid] = math.inf

    def gone(self, table: TableRuntime) -> None:
        """Whether another group has it is in the state store: whoever asks from here on is told the truth."""
        self._let_go[table.schema.oid] = monotonic()

    def _part(self, table: TableRuntime) -> None:
        """Keep the record of a table that is gone, and nothing else."""
        table.become(TableState.DROPPED, error=None, remedy=None, retry_at=None, behind_since=None)
        oid = table.schema.oid
        self._tables.pop(oid, None)
        self._awake.pop(oid, None)
        self._unsaved[oid] = table

    # ---- the books

    @property
    def dirty(self) -> bool:
        return bool(self._unsaved) or any(table.dirty for table in self._awake.values())

    def unsaved(self) -> list[Unsaved]:
        """What the state store has older records of; it counts as saved, until `not_saved` says otherwise."""
        tables = {table.schema.oid: table for table in self._awake.values() if table.dirty and not table.arriving}
        tables |= self._unsaved
        self._unsaved = {}
        return [self._noted(table) for table in tables.values()]

    def saved(self, written: Sequence[Unsaved]) -> None:
        for each in written:
            each.table.saved(each.record, each.upto)

    def not_saved(self, unsaved: Sequence[Unsaved]) -> None:
        for each in unsaved:
            each.table.not_saved(each.transitions)
            self._unsaved[each.table.schema.oid] = each.table

    def _noted(self, table: TableRuntime) -> Unsaved:
        transitions = table.take_unsaved()
        history = [
            HistoryEntry(
                self.group, table.schema.oid, table.record.id, each.at, self._who, each.before.value,
                each.after.value, each.error,
            )
            for each in transitions
        ]  # fmt: skip
        upto = table.applied.manifest if table.applied is not None else 0
        return Unsaved(table, table.record, transitions, history, upto)


def _resumed(spec: TableSpec | None) -> datetime | None:
    """When somebody last asked for it to go on."""
    return spec.resumed_at if spec is not None else None


def _has_all(table: TableRuntime, logged: Lsn) -> bool:
    """Whether a table that is gone has all that was captured of it, or will never have."""
    return not table.active or (table.waiting is None and table.leaving is not None and logged >= table.leaving)
