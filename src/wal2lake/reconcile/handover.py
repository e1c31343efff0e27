"""A table goes from one group to another without a re-copy: the two streams meet at a position.

    new group   publishes the table ─► every transaction that ran then has ended ─► L: it captures all from L on
    old group   ─────────────── applies ──────────────► is at P, P ≥ L ─► hands over at P
    new group   ─► notes P in the lake table ─► applies what committed at P or later

The new group keeps its manifests from before L was named, so that none is missing. What is between L and P is captured
by both and applied by the old one; the new one passes over it by its commit position. Each step is in the state store
before the next begins, so that either group may stop and go on at any moment, on one machine or on two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from ..changelog import ChangeLog
from ..changelog.backlog import Backlog
from ..errors import Wal2LakeError
from ..lake import Lake
from ..lake.model import Applied
from ..position import NO_VERSION, ZERO, Lsn
from ..source.database import Source
from ..state import StateStore
from ..state.lifecycle import TableState
from .desired_state import DesiredState
from .desired_tables import arrives, leaves
from .registry import TableRegistry
from .table_runtime import TableRuntime

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taken:
    """How taking over a table ended."""

    table: TableRuntime
    ours: bool
    applied: Applied | None = None
    """where it goes on; None: with a re-copy"""
    claimed: datetime | None = None
    """when it became ours, and wanted a re-copy until it was known where it goes on"""


class Handovers:
    """The moves that one group takes part in."""

    def __init__(
        self, group: str, source: Source, store: StateStore, lake: Lake, changelog: ChangeLog, backlog: Backlog,
        tables: TableRegistry, raise_epoch: Callable[[int], int],
    ) -> None:  # fmt: skip
        self._raise_epoch = raise_epoch
        self._group, self._source, self._store, self._lake = group, source, store, lake
        self._log, self._backlog, self._tables = changelog, backlog, tables
        self._moments: dict[int, str] = {}
        """for each table that arrives, a moment at which it was published here"""
        self.under_way = False

    # ---- the group that a table comes to

    def look(self, wanted: DesiredState) -> None:
        """Name the position from which on arriving tables are captured completely. On any thread."""
        mine = [spec for spec in wanted.specs.values() if arrives(spec, self._group) or leaves(spec, self._group)]
        self.under_way = bool(mine)
        coming = {spec.oid for spec in mine if arrives(spec, self._group)}
        # A table that comes again later is published again, and so is its moment.
        self._moments = {oid: moment for oid, moment in self._moments.items() if oid in coming}
        for spec in mine:
            table = self._tables.get(spec.oid)
            if spec.handover_lsn is not None or table is None or not table.arriving or spec.oid in wanted.refused:
                # One that is not known to the loop holds no manifests yet.
                continue
            moment = self._moments.setdefault(spec.oid, self._source.settled())
            if self._source.passed(moment):
                self._store.note_handover(spec.oid, self._source.mark())

    def arrived(self) -> list[tuple[TableRuntime, int]]:
        """Tables that the other group has handed over, and the manifest here up to which they have everything."""
        return [
            (table, self._backlog.number_at(table.spec.handed_lsn))
            for table in self._tables.awake
            if table.arriving and table.spec is not None and table.spec.handed_lsn is not None
        ]

    def take_over(self, table: TableRuntime, manifest: int) -> Taken:
        """Continue a lake table from where the other group left it, or find that it needs a re-copy."""
        oid, source_id = table.schema.oid, self._source.table_id(table.schema.oid)
        position = table.spec.handed_lsn if table.spec is not None else None
        claimed = self._store.take_over(table.record)
        if claimed is None:
            return Taken(table, False)
        found = self._lake.applied(table.target, source_id) if position else None
        applied: Applied | None = None
        least = table.spec.handed_version if table.spec is not None else NO_VERSION
        if found is not None and position is not None and found.lsn <= position and found.version >= least:
            # Numbers of manifests and of schemas are each group's own; schema 0 is older than all that this group has.
            schema = replace(found.schema, version=0)
            at = replace(found, lsn=position, manifest=manifest, schema=schema)
            if self._log.stretch.continues(at.manifest, at.lsn):
                # The group that had it may have begun later than this one.
                applied = self._lake.restate(at, source_id, self._raise_epoch(found.version.epoch))
        # Nothing is applied before this is written: whoever takes over again finds the table as it is now.
        return Taken(table, self._store.end_take_over(oid, self._group, applied is not None), applied, claimed)

    def taken(self, result: Taken) -> None:
        table, applied = result.table, result.applied
        if not result.ours or self._tables.get(table.schema.oid) is not table:
            # Something else was asked for meanwhile; the next look says what.
            return
        table.taken_over(result.claimed)
        if applied is None:
            log.info("%s came to group %s; it is re-copied", table.name, self._group)
            table.request_copy()
            return
        log.info("%s came to group %s at %s, without a re-copy", table.name, self._group, applied.lsn)
        table.become(TableState.CATCHUP)
        table.advance(applied, self._backlog.after(table.schema.oid, applied.manifest))

    # ---- the group that a table leaves

    def leaving(self, logged: Lsn) -> Iterator[TableRuntime]:
        """Tables that have come as far as the other group needs; this group has nothing more to do with them."""
        for table in self._tables.awake:
            spec = table.spec
            if spec is None or not leaves(spec, self._group) or table.job is not None:
                continue
            position = handed_at(table, spec.handover_lsn, logged)
            if position is not None:
                self._tables.let_go(table)
                table.handed_over(position)
                yield table

    def hand_over(self, table: TableRuntime) -> TableRuntime:
        spec = table.spec
        assert spec is not None and spec.handed_lsn is not None
        try:
            self._store.note_handed(table.schema.oid, self._group, spec.handed_lsn, table.record.version)
            log.info("%s leaves group %s at %s", table.name, self._group, spec.handed_lsn)
        except Wal2LakeError as error:
            # Whether it is noted is unknown; what the store says next decides.
            log.warning("%s could not be handed over: %s", table.name, error)
        return table


def handed_at(table: TableRuntime, handover: Lsn | None, logged: Lsn) -> Lsn | None:
    """The position at which a table can be handed over now; ZERO: with a re-copy; None: not yet."""
    if table.resync or table.copy_failed or table.detached:
        return ZERO
    if handover is None or not table.active or table.applied is None:
        return None
    position = logged if table.waiting is None else table.applied.lsn
    return position if position >= handover else None
