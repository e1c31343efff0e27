"""What is wanted of a group, at one moment: asked of the source and of the state store, beside the loop.

New tables are claimed in the state store, so that no two groups take one table, and published, so that the stream has
them before their copies begin.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic

from ..errors import TableMissing
from ..position import ZERO, Lsn
from ..schema import TableId, TableSchema
from ..source.database import Source
from .state import TableState
from .store import StateStore, TableRecord, TableWish
from .wanting import Naming, arrives, wanted_by

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """The tables that are to be mirrored, at one moment."""

    schemas: Sequence[TableSchema]
    records: Mapping[int, TableRecord]
    """what the state store has of the group's tables, those that are not wanted any more included"""
    resyncs: Mapping[int, datetime]
    rounds: Mapping[int, str]
    wishes: Mapping[int, TableWish]
    dropped: frozenset[int]
    """tables with a record that the source has no more"""
    position: Lsn
    """everything that was done to the dropped ones is captured when the log is here"""
    began: float
    """by the clock of this process; what was done after it is not in this"""
    before: Lsn = ZERO
    """the schemas are of a moment between this position and `after`"""
    after: Lsn = ZERO


class Catalogue:
    def __init__(self, group: str, source: Source, store: StateStore, naming: Naming) -> None:
        self._group, self._source, self._store, self._naming = group, source, store, naming
        self._published: frozenset[int] | None = None
        self._told: set[object] = set()

    def look(self, strict: bool = False) -> Wanted:
        """Ask what is wanted; what is new is claimed and published. On any thread, one at a time.

        `strict`: a name that means nothing is an error, unless it is that of a table that was dropped.
        """
        began = monotonic()
        matched = self._source.match()
        everybody = self._store.tables()
        records = {record.oid: record for record in everybody if record.group == self._group}
        wishes = self._store.table_wishes()
        for problem in matched.problems:
            self._judge(problem, {str(record.id) for record in records.values()}, strict)
        held = {record.oid: record.group for record in everybody}
        oids = wanted_by(self._group, matched, wishes, held)
        before = self._source.written()
        schemas = self._source.describe(oids)
        after = self._source.written()
        gone = set(records) - {schema.oid for schema in schemas}
        dropped = frozenset(gone) - self._source.existing(gone)
        followed = {oid for oid, record in records.items() if record.state is not TableState.PENDING}
        mine = self._claim(schemas, records, wishes, dropped)
        published = frozenset(schema.oid for schema in mine)
        lost = self._source.unpublished(followed & published)
        if published != self._published or lost:
            self._source.publish(mine)
            self._published = published
        if lost:
            self._copy_anew([records[oid] for oid in lost])
        fresh = any(records[oid].state is not TableState.DROPPED for oid in dropped)
        return Wanted(
            mine, records, self._store.wanted_resyncs(self._group), self._store.rounds(self._group), wishes,
            dropped, self._source.mark() if fresh else ZERO, began, before, after,
        )  # fmt: skip

    def _copy_anew(self, records: Sequence[TableRecord]) -> None:
        """Somebody took tables out of the publication, or altered them so that PostgreSQL did: changes are missing."""
        self._store.want_resync(records)
        for record in records:
            log.warning(
                "group %s: %s was not in the publication for a while; it is copied anew", self._group, record.id
            )

    def _judge(self, problem: Exception, known: Collection[str], strict: bool) -> None:
        missing = isinstance(problem, TableMissing) and str(TableId.parse(problem.fields["table"])) in known
        if strict and not missing:
            raise problem
        if str(problem) not in self._told:
            self._told.add(str(problem))
            log.warning("group %s: %s", self._group, problem)

    def _claim(
        self, schemas: Sequence[TableSchema], records: dict[int, TableRecord], wishes: Mapping[int, TableWish],
        dropped: Collection[int],
    ) -> Sequence[TableSchema]:  # fmt: skip
        """Make records of new tables; the tables that are this group's then."""
        former = {records[oid].lake_table: oid for oid in dropped}
        new: dict[int, TableRecord] = {}
        for schema in schemas:
            wish = wishes.get(schema.oid)
            if schema.oid not in records:
                target = self._naming.first(schema.id, wish)
                record = TableRecord(
                    self._group, schema.oid, schema.id, TableState.PENDING, target=target, replaces=former.get(target)
                )
                new[schema.oid] = record
        claims = [record for oid, record in new.items() if not arrives(wishes.get(oid), self._group)]
        claimed = self._store.claim_tables([record for record in claims if record.replaces is None])
        claimed |= self._store.claim_tables([record for record in claims if record.replaces is not None], copy=False)
        refused = {record.oid for record in claims} - claimed
        for oid in refused - self._told:
            self._told.add(oid)
            log.warning("group %s: %s is another group's, and stays there", self._group, new[oid].id)
        records |= {oid: record for oid, record in new.items() if oid not in refused}
        return [schema for schema in schemas if schema.oid not in refused]
