"""What is wanted of a group, at one moment: asked of the source and of the state store, beside the loop.

New tables are claimed in the state store, so that no two groups take one table, and published, so that the stream has
them before their copies begin.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic, sleep

from ..changelog import ChangeLog
from ..errors import ChangeLogDamaged, SourceAltered, SourceBusy, TableMissing, UpdatesSeen, Wal2LakeError
from ..position import ZERO, Lsn
from ..schema import TableId, TableSchema
from ..source.database import Source
from ..source.facts import identity_fix
from ..state import StateStore, TableRecord, TableSpec
from ..state.lifecycle import TableState
from .desired_tables import Naming, arrives, wanted_by

log = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0
"""how long a look waits for transactions that ran before a table was published"""


@dataclass(frozen=True)
class DesiredState:
    """The tables that are to be mirrored, at one moment."""

    schemas: Sequence[TableSchema]
    records: Mapping[int, TableRecord]
    """what the state store has of the group's tables, those that are not wanted any more included"""
    resyncs: Mapping[int, datetime]
    rounds: Mapping[int, str]
    specs: Mapping[int, TableSpec]
    dropped: frozenset[int]
    """tables with a record that the source has no more"""
    position: Lsn
    """everything that was done to the dropped ones is captured when the log is here"""
    began: float
    """by the clock of this process; what was done after it is not in this"""
    before: Lsn = ZERO
    """the schemas are of a moment between this position and `after`"""
    after: Lsn = ZERO
    refused: Mapping[int, Wal2LakeError] = field(default_factory=dict)
    """tables of which nothing is captured, and why; they need a copy when that has an end"""
    elsewhere: Mapping[TableId, TableRecord] = field(default_factory=dict)
    """the live tables of other groups, by their lake tables"""


class DesiredStateReader:
    def __init__(self, group: str, source: Source, store: StateStore, naming: Naming, changelog: ChangeLog) -> None:
        self._group, self._source, self._store, self._naming, self._log = group, source, store, naming, changelog
        self._published: tuple[frozenset[int], frozenset[int]] | None = None
        self._refused: dict[int, Wal2LakeError] = {}
        self._moments: dict[int, str] = {}
        """for each table that is to be published once more, a moment after it was published first"""
        self._told: set[object] = set()

    def look(self, strict: bool = False) -> DesiredState:
        """Ask what is wanted; what is new is claimed and published. On any thread, one at a time.

        `strict`: a name that means nothing is an error, unless it is that of a table that was dropped.
        """
        began = monotonic()
        matched = self._source.match()
        everybody = self._store.tables()
        records = self._live({record.oid: record for record in everybody if record.group == self._group}, everybody)
        specs = self._by_name(self._store.table_specs())
        for problem in matched.problems:
            self._judge(problem, {str(record.id) for record in records.values()}, strict)
        held = {record.oid: record.group for record in everybody}
        oids = wanted_by(self._group, matched, specs, held)
        before = self._source.written()
        schemas = self._source.describe(oids)
        after = self._source.written()
        gone = set(records) - {schema.oid for schema in schemas}
        dropped = frozenset(gone) - self._source.existing(gone)
        followed = {oid for oid, record in records.items() if record.state is not TableState.PENDING}
        former = {record.lake_table for record in everybody if record.state is TableState.DROPPED}
        former |= {records[oid].lake_table for oid in dropped}
        known = set(records)
        mine = self._claim(schemas, records, specs, former)
        resyncs = self._store.wanted_resyncs(self._group)
        unmasked = self._unmasked(mine, known, everybody, strict)
        safe = [schema for schema in mine if schema.oid not in unmasked]
        self._publish(safe, records, followed, resyncs, unmasked)
        seen = self._updates_seen(safe, resyncs)
        fresh = any(records[oid].state is not TableState.DROPPED for oid in dropped)
        refused = {**self._unsettled(mine), **seen, **self._refused}
        return DesiredState(
            mine, records, self._store.wanted_resyncs(self._group), self._store.rounds(self._group), specs,
            dropped, self._source.mark() if fresh else ZERO, began, before, after, refused, self._elsewhere(everybody),
        )  # fmt: skip

    def _unmasked(
        self, mine: Sequence[TableSchema], known: Collection[int], everybody: Sequence[TableRecord], strict: bool
    ) -> dict[int, Wal2LakeError]:
        """Tables that must not be published: something of them was to be kept out of the lake, or may have been.

        Settings whose table is not there may be meant for one that was renamed. One that was followed is recognized,
        and one that was dropped is no other; else it could be any that is new. `strict`: then that is an error.
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
        told = {str(record.id) for record in everybody if record.oid not in names}
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
        """A table as it was captured last. One whose schemas can't be read is stopped by who needs them."""
        try:
            return self._log.schemas.last(oid)
        except ChangeLogDamaged:
            return None

    def _publish(
        self, mine: Sequence[TableSchema], records: Mapping[int, TableRecord], followed: Collection[int],
        resyncs: Collection[int], unmasked: Mapping[int, Wal2LakeError],
    ) -> None:  # fmt: skip
        """Have what is to be published published; one table that can't be does not hold up the others."""
        wanted = frozenset(schema.oid for schema in mine), self._source.updates_refused(mine)
        lost = self._source.unpublished(mine)
        new = lost | (frozenset(resyncs) if self._published is None else frozenset())
        lost &= frozenset(followed)
        if wanted != self._published or lost or self._refused:
            self._refused = {**self._source.publish(mine), **unmasked}
            self._published = wanted
        self._settle([schema for schema in mine if schema.oid not in self._refused], new)
        if any(self._source.append_only(schema) for schema in mine):
            self._note_appends([records[schema.oid] for schema in mine if self._source.append_only(schema)], resyncs)
        gap = [records[oid] for oid in followed if oid not in resyncs and (oid in lost or oid in self._refused)]
        if gap:
            self._request_resync(gap)

    def _settle(self, published: Sequence[TableSchema], new: Collection[int]) -> None:
        """Some servers need to be told twice of a new table: again when the transactions are over that ran before.

        Until then it is not copied: what comes between the copy and that moment could be missing in the stream.
        """
        if not self._log.started or not self._source.must_renew:
            return
        oids = {schema.oid for schema in published}
        if fresh := [oid for oid in new if oid in oids]:
            self._moments |= dict.fromkeys(fresh, self._source.settled())
        self._moments = {oid: moment for oid, moment in self._moments.items() if oid in oids}
        until = monotonic() + SETTLE_SECONDS
        while not (passed := self._passed()) and self._moments and monotonic() < until:
            # There is no way to wait for it; most transactions are short.
            sleep(0.05)
        due = [schema for schema in published if self._moments.get(schema.oid) in passed]
        try:
            self._source.renew(due)
            for schema in due:
                del self._moments[schema.oid]
        except (SourceBusy, SourceAltered) as error:
            log.info("group %s: %s", self._group, error)

    def _passed(self) -> set[str]:
        return {moment for moment in set(self._moments.values()) if self._source.passed(moment)}

    def _unsettled(self, mine: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        return {
            schema.oid: SourceBusy(
                operation="publishing", object=str(schema.id), cause="transactions are open that ran before it",
            )
            for schema in mine if schema.oid in self._moments
        }  # fmt: skip

    def _note_appends(self, records: Sequence[TableRecord], resyncs: Collection[int]) -> None:
        """Have the stream opened with the publication of append-only tables, once it is past where that was made."""
        if self._log.started and self._log.appends_since() is None and self._source.appends():
            # A stream without it may have passed over changes, if it was noted before and the note is gone.
            known = [each for each in records if each.state is not TableState.PENDING and each.oid not in resyncs]
            if known:
                self._request_resync(known)
            self._log.append_from(self._source.mark())

    def _updates_seen(
        self, mine: Sequence[TableSchema], resyncs: Mapping[int, datetime]
    ) -> Mapping[int, Wal2LakeError]:
        """Append-only tables that were updated since their copies, as far as PostgreSQL's statistics tell.

        What they count is remembered before a table is copied, so that a change is never taken for an earlier one.
        """
        appending = {schema.oid: schema for schema in mine if self._source.append_only(schema)}
        if not appending:
            return {}
        known, found = self._store.append_counts(self._group), dict[int, Wal2LakeError]()
        for oid, now in self._source.changes_counted(list(appending)).items():
            before = known.get(oid)
            asked = resyncs.get(oid)
            if before is None or (before.seen_at is not None and asked is not None and asked > before.seen_at):
                self._store.count_appends(self._group, oid, now)
            elif changes := before.changes(now):
                self._store.updates_seen(self._group, oid)
                schema = appending[oid]
                found[oid] = UpdatesSeen(table=str(schema.id), count=changes, fix=identity_fix(schema))
        return found

    def _elsewhere(self, everybody: Sequence[TableRecord]) -> Mapping[TableId, TableRecord]:
        """The tables of other groups by their lake tables; what was dropped has none to itself any more."""
        others = [record for record in everybody if record.group != self._group]
        names = self._source.names() if others else {}
        return {record.lake_table: record for record in others if record.oid in names}

    def _live(self, records: dict[int, TableRecord], everybody: Sequence[TableRecord]) -> dict[int, TableRecord]:
        """The records without those of dropped tables whose lake table belongs to another one by now."""
        held = {record.lake_table for record in everybody if record.state is not TableState.DROPPED}
        stale = {oid for oid, r in records.items() if r.state is TableState.DROPPED and r.lake_table in held}
        if stale:
            self._store.forget_tables(self._group, stale)
        return {oid: record for oid, record in records.items() if oid not in stale}

    def _by_name(self, specs: dict[int, TableSpec]) -> dict[int, TableSpec]:
        """What commands asked of a table goes with it when it is renamed, and to the next of its name when it is gone.

        A name on the command line means the table that has it.
        """
        if not specs:
            return specs
        names = self._source.names()
        oids = {id: oid for oid, id in names.items()}
        changed = False
        for oid, spec in specs.items():
            now, heir = names.get(oid), oids.get(spec.id)
            if now is not None and now != spec.id:
                self._store.set_table_spec(oid, now, {})
                changed = True
            elif now is None and heir is not None and heir not in specs:
                self._store.inherit_spec(oid, heir)
                changed = True
        return self._store.table_specs() if changed else specs

    def _request_resync(self, records: Sequence[TableRecord]) -> None:
        """Tables are not, or were not, in the publication: changes are missing."""
        self._store.want_resync(records)
        for record in records:
            log.warning(
                "group %s: %s is not, or was not, in the publication: it has to be re-copied", self._group, record.id
            )

    def _judge(self, problem: Exception, known: Collection[str], strict: bool) -> None:
        missing = isinstance(problem, TableMissing) and str(TableId.parse(problem.fields["table"])) in known
        if strict and not missing:
            raise problem
        if str(problem) not in self._told:
            self._told.add(str(problem))
            log.warning("group %s: %s", self._group, problem)

    def _claim(
        self, schemas: Sequence[TableSchema], records: dict[int, TableRecord], specs: Mapping[int, TableSpec],
        former: Collection[TableId],
    ) -> Sequence[TableSchema]:  # fmt: skip
        """Make records of new tables; the tables that are this group's then. `former`: lake tables of dropped ones."""
        new: dict[int, TableRecord] = {}
        asking: set[int] = set()
        for schema in schemas:
            spec = specs.get(schema.oid)
            if schema.oid not in records:
                target = self._naming.first(schema.id, spec)
                new[schema.oid] = TableRecord(self._group, schema.oid, schema.id, TableState.PENDING, target=target)
                if target in former and not self._naming.replaces(schema):
                    asking.add(schema.oid)
        claims = [record for oid, record in new.items() if not arrives(specs.get(oid), self._group)]
        claimed = self._store.claim_tables([record for record in claims if record.oid not in asking])
        claimed |= self._store.claim_tables([record for record in claims if record.oid in asking], copy=False)
        refused = {record.oid for record in claims} - claimed
        for oid in refused - self._told:
            self._told.add(oid)
            log.warning("group %s: %s is another group's, and stays there", self._group, new[oid].id)
        records |= {oid: record for oid, record in new.items() if oid not in refused}
        return [schema for schema in schemas if schema.oid not in refused]
