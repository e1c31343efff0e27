"""Reads the desired state of a group from the source and the state store, in the background of the loop.

New tables are claimed in the state store, so that no two groups take one table, and published, so that they are in the
stream before their copies begin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ..changelog import ChangeLog
from ..errors import ChangeLogDamaged, SourceAltered, SourceBusy, TableMissing, UpdatesSeen, Wal2LakeError
from ..executor import Executor
from ..position import ZERO, Lsn
from ..schema import TableId, TableSchema
from ..source import SourceDatabase
from ..source.tables import identity_fix
from ..source.triggers import whole
from ..state import StateStore, TableRecord, TableSpec, identity_entries
from ..state.lifecycle import Mode, TableState, new_table_needs_copy
from .desired_tables import Naming, desired_oids, moves_in

log = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0
"""limit for waiting for transactions that were open when a table was published"""


@dataclass(frozen=True)
class DesiredState:
    """The desired tables of a group at one moment."""

    schemas: Sequence[TableSchema]
    records: Mapping[int, TableRecord]
    """the state store's records of the group's tables, also of tables that are not desired any more"""
    resyncs: Mapping[int, datetime]
    rounds: Mapping[int, str]
    specs: Mapping[int, TableSpec]
    dropped: frozenset[int]
    """tables with a record that do not exist in the source"""
    position: Lsn
    """every change of the dropped tables is captured when the log has reached this position"""
    began: float
    """by this process's clock; later changes are not included"""
    before: Lsn = ZERO
    """the schemas are of a moment between this position and `after`"""
    after: Lsn = ZERO
    refused: Mapping[int, Wal2LakeError] = field(default_factory=dict)
    """tables of which nothing is captured, and the error; they need a copy when that ends"""
    elsewhere: Mapping[TableId, TableRecord] = field(default_factory=dict)
    """the live tables of other groups, by lake table"""
    stored_modes: Mapping[int, Mode] = field(default_factory=dict)
    """how each table was captured, by the state store; `records` say how it is"""
    published: frozenset[int] = frozenset()
    """tables that have been published since the last reading"""


class DesiredStateReader:
    def __init__(
        self, group: str, source: SourceDatabase, store: StateStore, naming: Naming, changelog: ChangeLog,
        executor: Executor, mode: Callable[[], Mode] = lambda: Mode.WAL,
    ) -> None:  # fmt: skip
        """`mode`: how changes of the group's tables are captured."""
        self._mode = mode
        self._executor, self._clock = executor, executor.clock
        self._group, self._source, self._store, self._naming, self._log = group, source, store, naming, changelog
        self._published: tuple[frozenset[int], frozenset[int]] | None = None
        self._refused: dict[int, Wal2LakeError] = {}
        self._published_at: dict[int, str] = {}
        """for each table that must be published again, a moment after its first publication"""
        self._lately: set[int] = set()
        """tables that were published after the last reading that did not fail"""
        self._warned: set[object] = set()

    def read(self, strict: bool = False) -> DesiredState:
        """Read the desired state; new tables are claimed and published. On any thread, one at a time.

        `strict`: a name without a table is an error, unless it is that of a dropped table.
        """
        began = self._clock.monotonic()
        matched = self._source.match()
        all_records = self._store.tables()
        records = self._live({record.oid: record for record in all_records if record.group == self._group}, all_records)
        specs = self._by_name(self._store.table_specs())
        for problem in matched.problems:
            self._note_problem(problem, {str(record.id) for record in records.values()}, strict)
        held = {record.oid: record.group for record in all_records}
        oids = desired_oids(self._group, matched, specs, held)
        self._identify(oids)
        before = self._source.written()
        schemas, unfit = self._source.describe_each(oids)
        if strict and unfit:
            raise next(iter(unfit.values()))
        after = self._source.written()
        gone = set(records) - {schema.oid for schema in schemas}
        dropped = frozenset(gone) - self._source.existing(gone)
        former = {record.lake_table for record in all_records if record.state is TableState.DROPPED}
        former |= {records[oid].lake_table for oid in dropped}
        known = set(records)
        mine = self._claim(schemas, records, specs, former)
        resyncs = self._store.requested_resyncs(self._group)
        unmasked = {**self._unmasked(mine, known, all_records, strict), **unfit}
        safe = [schema for schema in mine if schema.oid not in unmasked]
        arriving = {
            oid for oid, spec in specs.items()
            if moves_in(spec, self._group) and (spec.handover_lsn is not None or spec.handed_lsn)
        }  # fmt: skip
        self._publish(safe, records, known, arriving, resyncs, unmasked, after)
        stored = {oid: record.mode for oid, record in records.items()}
        mine, records = self._as_captured(mine, records)
        seen = self._updates_seen(safe, resyncs)
        fresh = any(records[oid].state is not TableState.DROPPED for oid in dropped)
        refused = {**self._unsettled(mine), **seen, **self._refused}
        lately, self._lately = frozenset(self._lately), set()
        return DesiredState(
            mine, records, self._store.requested_resyncs(self._group), self._store.rounds(self._group), specs,
            dropped, self._source.mark() if fresh else ZERO, began, before, after, refused,
            self._elsewhere(all_records), stored, lately,
        )  # fmt: skip

    def _identify(self, oids: Sequence[int]) -> None:
        """Before tables are described, so that they are not refused for what a setting allows to be changed."""
        done = self._source.identify(oids)
        if done:
            names = self._source.names()
            self._store.add_history(identity_entries(self._group, done, names, self._clock.now()))

    def _as_captured(
        self, mine: Sequence[TableSchema], records: Mapping[int, TableRecord]
    ) -> tuple[Sequence[TableSchema], dict[int, TableRecord]]:
        """The tables and records with the way in which each is captured since it was published."""
        by_triggers, mode = self._source.by_triggers(), self._mode()
        modes = {oid: Mode.TRIGGER if oid in by_triggers else mode for oid in records}
        return (
            [whole(schema) if schema.oid in by_triggers else schema for schema in mine],
            {oid: replace(record, mode=modes[oid]) for oid, record in records.items()},
        )

    def _unmasked(
        self, mine: Sequence[TableSchema], known: Collection[int], all_records: Sequence[TableRecord], strict: bool
    ) -> dict[int, Wal2LakeError]:
        """Tables that must not be published because masks or filters of theirs are, or may be, missing.

        Settings of a table that does not exist may be meant for one that was renamed. A rename that was followed is
        known, and a dropped table is known, too; otherwise any new table could be it. `strict`: that is an error.
        """
        found: dict[int, Wal2LakeError] = {}
        if not self._source.withholds:
            return found
        for schema in mine:
            if (error := self._source.unmasked(self._last(schema.oid), schema)) is not None:
                found[schema.oid] = error
        unnamed = self._source.unnamed()
        if not unnamed:
            return found
        names = self._source.names()
        told = {str(record.id) for record in all_records if record.oid not in names}
        for oid in found:
            last = self._last(oid)
            told |= {str(id) for id in (last.id, *last.settings_from)} if last is not None else set()
        for name, error in unnamed.items():
            if name not in told:
                if strict:
                    raise error
                found |= {schema.oid: error for schema in mine if schema.oid not in known and schema.oid not in found}
        return found

    def _last(self, oid: int) -> TableSchema | None:
        """A table's last captured schema. If schemas can't be read, the users of them stop the table."""
        try:
            return self._log.schemas.last(oid)
        except ChangeLogDamaged:
            return None

    def _publish(
        self, mine: Sequence[TableSchema], records: Mapping[int, TableRecord], known: Collection[int],
        arriving: Collection[int], resyncs: Collection[int], unmasked: Mapping[int, Wal2LakeError], after: Lsn,
    ) -> None:  # fmt: skip
        """Publish tables; one that can't be published does not delay the others.

        `known`: they have had a record. `arriving`: they move here and have been captured completely before.
        `after`: a position after they were read.
        """
        wanted = frozenset(schema.oid for schema in mine), self._source.updates_refused(mine)
        misplaced = self._source.misplaced(mine)
        lost = missing = self._source.unpublished(mine)
        new = lost | (frozenset(resyncs) if self._published is None else frozenset())
        self._lately |= lost
        # Before they are published, as a crash may follow.
        if came := lost.intersection(arriving):
            came -= self._store.void_handovers(self._group, came)
        lost = lost.intersection(known) | came
        if self._log.started:
            # A copy that is PENDING or was requested may have its snapshot already; that of a refused table has not.
            self._request_resync([records[oid] for oid in lost if oid not in self._refused or oid not in resyncs])
            # Changes may be decoded after their table became a partition, or a partition became a table.
            since = {each.oid: after if each.oid in missing else ZERO for each in mine if not each.partitioned}
            self._log.leaves.note_published(since)
        if wanted != self._published or lost or misplaced or self._refused:
            self._refused = {**self._source.publish(mine), **unmasked}
            self._published = wanted
        self._settle([schema for schema in mine if schema.oid not in self._refused], new)
        by_triggers = self._source.by_triggers()
        appending = [each for each in mine if each.oid in by_triggers or self._source.append_only(each)]
        if appending:
            self._note_appends([records[schema.oid] for schema in appending], resyncs)
        refused = [oid for oid in self._refused if oid in known and oid not in lost and oid not in resyncs]
        self._request_resync([records[oid] for oid in refused if records[oid].state is not TableState.PENDING])

    def _settle(self, published: Sequence[TableSchema], new: Collection[int]) -> None:
        """Publish new tables again, on servers that need it, when the transactions open at the first time have ended.

        Until then they are not copied: changes between the copy and that moment could be missing in the stream.
        """
        if not self._log.started or not self._source.must_renew:
            return
        oids = {schema.oid for schema in published}
        if fresh := [oid for oid in new if oid in oids]:
            self._published_at |= dict.fromkeys(fresh, self._source.settled())
        self._published_at = {oid: moment for oid, moment in self._published_at.items() if oid in oids}
        until = self._clock.monotonic() + SETTLE_SECONDS
        while not (passed := self._passed()) and self._published_at and self._clock.monotonic() < until:
            # The server can't be made to wait for it; most transactions are short.
            self._executor.sleep(0.05)
        due = [schema for schema in published if self._published_at.get(schema.oid) in passed]
        try:
            self._source.renew(due)
            for schema in due:
                del self._published_at[schema.oid]
        except (SourceBusy, SourceAltered) as error:
            log.info("group %s: %s", self._group, error)

    def _passed(self) -> set[str]:
        return {moment for moment in set(self._published_at.values()) if self._source.passed(moment)}

    def _unsettled(self, mine: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        return {
            schema.oid: SourceBusy(
                operation="publishing", object=str(schema.id), cause="transactions are open that began before it",
            )
            for schema in mine if schema.oid in self._published_at
        }  # fmt: skip

    def _note_appends(self, records: Sequence[TableRecord], resyncs: Collection[int]) -> None:
        """Reopen the stream with the second publication, once it has passed the creation of that.

        It has the tables that are append-only, and the buffers of triggers.
        """
        if self._log.started and self._log.appends_since() is None and self._source.appends():
            # A stream without it may have skipped changes, if the position was stored before and is lost.
            known = [each for each in records if each.state is not TableState.PENDING and each.oid not in resyncs]
            if known:
                self._request_resync(known)
            self._log.append_from(self._source.mark())

    def _updates_seen(
        self, mine: Sequence[TableSchema], resyncs: Mapping[int, datetime]
    ) -> Mapping[int, Wal2LakeError]:
        """Append-only tables that were updated since their copies, by PostgreSQL's statistics.

        Counts are stored before a table is copied, so that a later change is never taken for an earlier one.
        """
        appending = {schema.oid: schema for schema in mine if self._source.append_only(schema)}
        if not appending:
            return {}
        known, found = self._store.append_counts(self._group), dict[int, Wal2LakeError]()
        for oid, now in self._source.changes_counted(list(appending)).items():
            before = known.get(oid)
            requested = resyncs.get(oid)
            if before is None or (before.seen_at is not None and requested is not None and requested > before.seen_at):
                self._store.count_appends(self._group, oid, now)
            elif changes := before.changes(now):
                self._store.updates_seen(self._group, oid)
                schema = appending[oid]
                found[oid] = UpdatesSeen(table=str(schema.id), count=changes, fix=identity_fix(schema))
        return found

    def _elsewhere(self, all_records: Sequence[TableRecord]) -> Mapping[TableId, TableRecord]:
        """The tables of other groups by lake table; dropped tables do not count."""
        others = [record for record in all_records if record.group != self._group]
        names = self._source.names() if others else {}
        return {record.lake_table: record for record in others if record.oid in names}

    def _live(self, records: dict[int, TableRecord], all_records: Sequence[TableRecord]) -> dict[int, TableRecord]:
        """The records without dropped tables whose lake table belongs to another one now."""
        held = {record.lake_table for record in all_records if record.state is not TableState.DROPPED}
        stale = {oid for oid, r in records.items() if r.state is TableState.DROPPED and r.lake_table in held}
        if stale:
            self._store.forget_tables(self._group, stale)
        return {oid: record for oid, record in records.items() if oid not in stale}

    def _by_name(self, specs: dict[int, TableSpec]) -> dict[int, TableSpec]:
        """Specs follow a table when it is renamed, and pass to the next table of its name when it is dropped.

        A name on the command line means the table that has it.
        """
        if not specs:
            return specs
        names = self._source.names()
        oids = {id: oid for oid, id in names.items()}
        changed = False
        for oid, spec in specs.items():
            now, successor = names.get(oid), oids.get(spec.id)
            if now is not None and now != spec.id:
                self._store.set_table_spec(oid, now, {})
                changed = True
            elif now is None and successor is not None and successor not in specs:
                self._store.inherit_spec(oid, successor)
                changed = True
        return self._store.table_specs() if changed else specs

    def _request_resync(self, records: Sequence[TableRecord]) -> None:
        """Tables are not, or were not, in the publication: changes are missing."""
        if records:
            self._store.request_resync(records, quietly=True)
        for record in records:
            if record.state is not TableState.PENDING:
                log.warning("group %s: %s is not, or was not, captured, so it is re-copied", self._group, record.id)

    def _note_problem(self, problem: Exception, known: Collection[str], strict: bool) -> None:
        missing = isinstance(problem, TableMissing) and str(TableId.parse(problem.fields["table"])) in known
        if strict and not missing:
            raise problem
        if str(problem) not in self._warned:
            self._warned.add(str(problem))
            log.warning("group %s: %s", self._group, problem)

    def _claim(
        self, schemas: Sequence[TableSchema], records: dict[int, TableRecord], specs: Mapping[int, TableSpec],
        former: Collection[TableId],
    ) -> Sequence[TableSchema]:  # fmt: skip
        """Create records of new tables; return this group's tables. `former`: lake tables of dropped ones."""
        new: dict[int, TableRecord] = {}
        asking: set[int] = set()
        for schema in schemas:
            spec = specs.get(schema.oid)
            if schema.oid not in records:
                target = self._naming.first(schema.id, spec)
                new[schema.oid] = TableRecord(
                    self._group, schema.oid, schema.id, TableState.PENDING, self._mode(), target=target
                )
                if not new_table_needs_copy(target in former, self._naming.replaces(schema)):
                    asking.add(schema.oid)
        claims = [record for oid, record in new.items() if not moves_in(specs.get(oid), self._group)]
        claimed = self._store.claim_tables([record for record in claims if record.oid not in asking])
        claimed |= self._store.claim_tables([record for record in claims if record.oid in asking], copy=False)
        refused = {record.oid for record in claims} - claimed
        for oid in refused - self._warned:
            self._warned.add(oid)
            log.warning("group %s: %s belongs to another group and stays there", self._group, new[oid].id)
        records |= {oid: record for oid, record in new.items() if oid not in refused}
        return [schema for schema in schemas if schema.oid not in refused]
