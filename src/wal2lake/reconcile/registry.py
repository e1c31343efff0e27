"""The tables of a group: the desired ones, their definitions in the catalog and their positions in the lake.

A table is awake while there is work for it, or something to wait for. A streaming table that has everything captured is
at rest, and the loop skips it; a manifest that names it or a change of its desired state wakes it.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from ..changelog import Backlog, ChangeLog, Manifest
from ..errors import ForeignTable, LakeRolledBack, SlotLost, TableRecreated, Wal2LakeError
from ..executor import Executor
from ..lake import Applied, LakeTables
from ..position import ZERO, Lsn
from ..schema import TableId, TableSchema
from ..source import SourceDatabase
from ..state import HistoryEntry, StateStore, TableRecord, TableSpec
from ..state.lifecycle import Mode, TableState
from .desired_state import DesiredState
from .desired_tables import moves_in
from .lake_names import LakeNames
from .table_runtime import TableRuntime
from .unsaved import Unsaved

log = logging.getLogger(__name__)

QUERY_THREADS = 4
"""threads that read positions of tables from the lake"""


class TableRegistry:
    def __init__(
        self, group: str, source: SourceDatabase, store: StateStore, lake: LakeTables, changelog: ChangeLog,
        backlog: Backlog, lake_names: LakeNames, who: str, raise_epoch: Callable[[int], int], executor: Executor,
        jitter: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        """`jitter`: from 0 to 1, for the spread of retries."""
        self._raise_epoch, self._jitter, self._executor, self._clock = raise_epoch, jitter, executor, executor.clock
        self.group, self._source, self._store, self._lake = group, source, store, lake
        self._log, self._backlog, self._lake_names, self._who = changelog, backlog, lake_names, who
        self._tables: dict[int, TableRuntime] = {}
        self._awake: dict[int, TableRuntime] = {}
        self._unsaved: dict[int, TableRuntime] = {}
        self._to_forget: set[int] = set()
        self._dropped: set[int] = set()
        """dropped at the source and done with; the state store may not know of it yet"""
        self._handed_off: dict[int, float] = {}
        """tables that move to another group, and when that was decided"""
        self.elsewhere: Mapping[TableId, TableRecord] = {}
        """the live tables of other groups, by lake table"""
        self._keeps_retry_times = True
        self._mode_changes: list[tuple[TableRuntime, Mode, Mode]] = []

    def forget_retry_times(self) -> None:
        """Do not keep waits after errors of an earlier run: `run --once` tries at once."""
        self._keeps_retry_times = False

    def __iter__(self) -> Iterator[TableRuntime]:
        return iter(self._tables.values())

    def get(self, oid: int) -> TableRuntime | None:
        return self._tables.get(oid)

    def target_of(self, oid: int) -> TableId | None:
        """The lake table of a table. On any thread."""
        table = self._tables.get(oid)
        return table.target if table is not None else None

    def take_mode_changes(self) -> list[tuple[TableRuntime, Mode, Mode]]:
        """Tables that are captured in another way since the last call: how before, and how since."""
        taken, self._mode_changes = self._mode_changes, []
        return taken

    @property
    def oids(self) -> frozenset[int]:
        return frozenset(self._tables)

    # ---- awake tables

    @property
    def awake(self) -> list[TableRuntime]:
        return list(self._awake.values())

    def wake(self, table: TableRuntime) -> None:
        self._awake.setdefault(table.schema.oid, table)

    def wake_all(self) -> None:
        self._awake = dict(self._tables)

    def suspend_idle(self) -> None:
        """Put tables without work to rest."""
        for oid in [oid for oid, table in self._awake.items() if table.is_idle]:
            table = self._awake.pop(oid)
            if table.dirty or table.transitions:
                self._unsaved[oid] = table

    def note_manifest(self, oid: int, manifest: Manifest) -> None:
        """A manifest names a table."""
        if (table := self._tables.get(oid)) is not None:
            table.note_manifest(manifest)
            self.wake(table)

    def note_partition(self, oid: int, number: int) -> None:
        """A manifest has changes of a partition, which may be a table of its own by now."""
        if (
            (table := self._tables.get(oid)) is not None
            and not table.moving_in
            and table.retention.as_partition is None
        ):
            table.note_partition(number)
            self.wake(table)

    # ---- desired tables

    def reconcile(self, desired: DesiredState) -> None:
        """Take in the desired tables: new, altered and dropped ones, and those to re-copy."""
        self.elsewhere = desired.elsewhere
        self._handed_off = {oid: at for oid, at in self._handed_off.items() if at >= desired.began}
        removed = {oid for oid, spec in desired.specs.items() if spec.wanted is False}
        kept = {schema.oid for schema in desired.schemas} | (desired.dropped - removed)
        self._to_forget = (set(desired.records) | self.oids) - kept
        self._forget(self._to_forget)
        self.note_masks(desired.schemas)
        self.note_partitions(desired.schemas, desired.after)
        new: dict[int, TableRuntime] = {}
        # A database that was restored has them again.
        self._dropped -= {schema.oid for schema in desired.schemas}
        for schema in desired.schemas:
            oid = schema.oid
            if oid in self._handed_off:
                continue
            table, requested, spec = self._tables.get(oid), desired.resyncs.get(oid), desired.specs.get(oid)
            if table is not None and table.moving_in and not moves_in(spec, self.group):
                # It was added in another way than expected.
                self._awake.pop(oid, None)
                table = None
            if table is None:
                before = desired.stored_modes.get(oid)
                table = self._add_table(schema, desired.records[oid], requested, moves_in(spec, self.group), before)
                new[oid] = table
            elif (
                # Requests for an arriving table are handled when it is taken over.
                requested is not None
                and not table.moving_in
                and (table.copy_requested_at is None or requested > table.copy_requested_at)
            ):
                table.request_copy(requested)
                self.wake(table)
            if table.schema != schema or table.spec != spec:
                self.wake(table)
            if oid not in new and _resumed(spec) not in (None, _resumed(table.spec)):
                table.retry_now()
            mode, former = table.record.mode, table.record.id
            table.captured_by(desired.records[oid].mode)
            if oid not in new and mode is not table.record.mode:
                self._mode_changes.append((table, mode, table.record.mode))
            table.describe(schema, spec, desired.rounds.get(oid))
            self._note_refusal(table, desired.refused.get(oid))
            if schema.id != former:
                log.info("%s was renamed to %s; its lake table is %s", former, schema.id, table.target)
            self.update_target(table)
        self._begin(list(new.values()))
        self._note_dropped(desired)

    def _add_table(
        self, schema: TableSchema, record: TableRecord, requested: datetime | None = None, arriving: bool = False,
        mode_before: Mode | None = None,
    ) -> TableRuntime:  # fmt: skip
        table = TableRuntime(
            schema, record, copy_requested_at=requested, arriving=arriving, clock=self._clock, jitter=self._jitter,
            mode_before=mode_before,
        )  # fmt: skip
        self._tables[schema.oid] = table
        return table

    def _note_refusal(self, table: TableRuntime, refused: Wal2LakeError | None) -> None:
        """Record whether a table can be captured; it is stopped when no work on it is running."""
        if refused is None:
            table.end_refusal()
        else:
            self.wake(table)
            table.note_refusal(refused)

    def update_target(self, table: TableRuntime) -> None:
        """Decide the name of a table's lake table; one that does not exist yet may have any name."""
        if not table.made and not table.moving_in:
            self._lake_names.begin(table)
        new = self._lake_names.naming.renamed(table.schema, table.target, table.spec)
        table.set_rename(new)
        if new is not None:
            self.wake(table)

    def note_partitions(self, schemas: Collection[TableSchema], after: Lsn) -> None:
        """Record partitions, read before a position: changes may be decoded after their partition was detached."""
        self._log.leaves.note_read(schemas, after)
        self._log.leaves.note_published({s.oid: ZERO for s in schemas if not s.partitioned})

    def note_masks(self, schemas: Iterable[TableSchema]) -> None:
        """Record masks and filters in the change log before the first row: a rename or a DETACH may come with it."""
        for schema in schemas:
            if schema.narrowed and ((known := self._log.schemas.last(schema.oid)) is None or not known.narrowed):
                self._log.schemas.version(schema)

    def _begin(self, tables: Sequence[TableRuntime]) -> None:
        """Tables that are new in this run."""
        now = self._clock.now()
        ready = []
        for table in tables:
            if table.moving_in or (self._keeps_retry_times and table.still_waits(now)):
                # Without a requested copy its position is unknown, so it holds every manifest.
                self.wake(table)
            else:
                ready.append(table)
        self._find_positions(ready)

    def _note_dropped(self, desired: DesiredState) -> None:
        """Tables that do not exist in the source any more: what was captured of them is still applied."""
        for oid in desired.dropped:
            table, record, spec = self._tables.get(oid), desired.records.get(oid), desired.specs.get(oid)
            if oid in self._dropped or (spec is not None and spec.wanted is False):
                continue
            if table is None and record is not None and record.state is not TableState.DROPPED:
                table = self._restore_dropped(record)
            if table is not None and table.dropped_at is None:
                log.warning("%s was dropped at the source; its lake table %s stays", table.name, table.target)
                table.dropped_at_source(desired.position)
                self.wake(table)

    def _restore_dropped(self, record: TableRecord) -> TableRuntime | None:
        """A table that was dropped while nothing ran: only the lake has its definition."""
        try:
            applied = self._lake.applied(record.lake_table, self._source.table_id(record.oid))
        except Wal2LakeError:
            applied = None
        if applied is None:
            self._store.forget_tables(self.group, [record.oid])
            return None
        table = self._add_table(applied.schema, record)
        self._set_position(table, applied)
        return table

    def apply_requests(self, logged: Lsn) -> None:
        """Apply requests for tables as soon as no work on them is running."""
        resumed = []
        for table in self.awake:
            if table.job is not None:
                continue
            if table.schema.oid in self._to_forget:
                self._forget({table.schema.oid})
            elif table.is_drained(logged):
                self._retire_dropped(table)
            elif table.refusal is not None and not table.moving_in and not table.paused:
                if table.state is not TableState.ERRORED:
                    table.refuse()
            elif table.paused and table.state is not TableState.PAUSED and not table.moving_in:
                table.pause()
            elif not table.paused and table.state is TableState.PAUSED:
                resumed.append(table)
        self._find_positions(resumed)

    def retry(self) -> None:
        """Retry tables whose time has come."""
        now = self._clock.now()
        self._find_positions([table for table in self._awake.values() if table.retry_due(now)])

    def retry_interrupted(self) -> None:
        """Spark is available again: retry work that failed when it died."""
        for table in self._awake.values():
            table.spark_is_back()

    def _find_positions(self, tables: Sequence[TableRuntime]) -> None:
        """At a start, a retry and a resume: copy tables that need it, and read the positions of the others."""
        requested = []
        for table in tables:
            self.wake(table)
            if table.refusal is not None:
                table.refuse()
            elif table.needs_copy:
                table.await_copy()
            else:
                requested.append(table)
        if len(requested) == 1:
            self._set_position(requested[0], self._query_lake(requested[0]))
        elif requested:
            pool = self._executor.pool(f"ask-{self.group}", QUERY_THREADS)
            answers = [pool.submit(self._query_lake, table) for table in requested]
            pool.shutdown()
            for table, answer in zip(requested, answers, strict=True):
                self._set_position(table, answer.result())

    def _query_lake(self, table: TableRuntime) -> Applied | Wal2LakeError | None:
        try:
            return self._lake_names.where(table)
        except ForeignTable as error:
            return self._lake_names.judge_foreign(table, error)
        except Wal2LakeError as error:
            return error

    def _set_position(self, table: TableRuntime, answer: Applied | Wal2LakeError | None) -> None:
        if isinstance(answer, Applied) and not self._log.stretch.continues(answer.manifest, answer.lsn):
            answer = SlotLost(slot=self._log.origin.slot, lsn=answer.lsn, cause="was re-created")
        if isinstance(answer, Applied) and answer.version < table.record.version:
            known = table.record.applied_lsn or "a later version"
            answer = LakeRolledBack(table=table.name, lsn=answer.lsn, known=known)
        match answer:
            case None:
                table.await_copy(found=False)
            case Applied():
                self._raise_epoch(answer.version.epoch - 1)
                table.found(answer, self._backlog.after(table.schema.oid, answer.manifest))
                table.note_partition(self._backlog.first_as_partition(table.schema.oid, answer.manifest))
                self.update_target(table)
            case error:
                # While another table has its place, its own table may come back and then needs these changes.
                detached = isinstance(error, SlotLost | TableRecreated | LakeRolledBack)
                table.position_unusable(error.about(table.name), only_copy_helps=detached)

    def _forget(self, oids: Collection[int]) -> None:
        gone = []
        for oid in list(oids):
            table = self._tables.get(oid)
            if table is None or table.job is None:
                for tables in (self._tables, self._awake, self._unsaved):
                    tables.pop(oid, None)
                gone.append(oid)
                if table is not None:
                    log.warning("%s is not mirrored any more; its lake table stays", table.name)
        if gone:
            self._store.forget_tables(self.group, gone)
            self._to_forget -= set(gone)

    def hand_off(self, table: TableRuntime) -> None:
        """Do no more work on a table that moves to another group; earlier requests for it are ignored."""
        for tables in (self._tables, self._awake, self._unsaved):
            tables.pop(table.schema.oid, None)
        self._handed_off[table.schema.oid] = math.inf

    def handed_off(self, table: TableRuntime) -> None:
        """Remove a table from this group; the state store says whether another group has it."""
        self._handed_off[table.schema.oid] = self._clock.monotonic()

    def _retire_dropped(self, table: TableRuntime) -> None:
        """Keep only the record of a dropped table."""
        if table.waiting is not None:
            log.warning(
                "%s: changes before its DROP are not applied; lake table %s stays without them",
                table.name,
                table.target,
            )
        table.drop()
        oid = table.schema.oid
        self._tables.pop(oid, None)
        self._awake.pop(oid, None)
        self._unsaved[oid] = table
        self._dropped.add(oid)

    # ---- records for the state store

    @property
    def dirty(self) -> bool:
        return bool(self._unsaved) or any(table.dirty for table in self._awake.values())

    def unsaved(self) -> list[Unsaved]:
        """Changes that the state store lacks; they count as saved until `not_saved` is called."""
        tables = {table.schema.oid: table for table in self._awake.values() if table.dirty and not table.moving_in}
        tables |= self._unsaved
        self._unsaved = {}
        return [self._unsaved_of(table) for table in tables.values()]

    def saved(self, written: Sequence[Unsaved]) -> None:
        for each in written:
            each.table.saved(each.record, each.upto)

    def not_saved(self, unsaved: Sequence[Unsaved]) -> None:
        for each in unsaved:
            each.table.not_saved(each.transitions)
            self._unsaved[each.table.schema.oid] = each.table

    def _unsaved_of(self, table: TableRuntime) -> Unsaved:
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
    """The time of the last command to resume it."""
    return spec.resumed_at if spec is not None else None
