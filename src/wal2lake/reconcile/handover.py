"""Moves a table from one group to another without a re-copy: at a position that both streams reach.

    new group   publishes the table ─► all transactions open then have ended ─► L: it captures everything from L on
    old group   ─────────────── applies ──────────────► is at P, P ≥ L ─► hands over at P
    new group   ─► writes P into the lake table ─► applies what committed at P or later

The new group keeps its manifests until L is known, so that none is missing. Changes between L and P are captured by
both groups and applied by the old one; the new one skips them by commit position. Each step is stored in the state
store before the next begins, so that both groups may stop and continue at any moment, on one machine or on two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from ..changelog import Backlog, ChangeLog
from ..errors import Wal2LakeError
from ..lake import Applied, LakeTables
from ..position import NO_VERSION, ZERO, Lsn
from ..source import SourceDatabase
from ..state import StateStore, TableSpec
from .desired_state import DesiredState
from .desired_tables import moves_in, moves_out
from .registry import TableRegistry
from .table_runtime import TableRuntime

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taken:
    """The result of taking over a table."""

    table: TableRuntime
    ours: bool
    applied: Applied | None = None
    """where it continues; None: with a re-copy"""
    claimed: datetime | None = None
    """when it joined this group; a re-copy is requested until it is known where it continues"""


class Handovers:
    """The moves of tables from and to one group."""

    def __init__(
        self, group: str, source: SourceDatabase, store: StateStore, lake: LakeTables, changelog: ChangeLog,
        backlog: Backlog, tables: TableRegistry, raise_epoch: Callable[[int], int],
    ) -> None:  # fmt: skip
        self._raise_epoch = raise_epoch
        self._group, self._source, self._store, self._lake = group, source, store, lake
        self._log, self._backlog, self._tables = changelog, backlog, tables
        self._published_at: dict[int, str] = {}
        """for each arriving table, a moment at which it was published here"""
        self.under_way = False
        """whether a table of this group is moving"""
        self.advancing = False
        """whether the move proceeds: the other group runs, or has handed the table over"""

    # ---- the group that a table moves to

    def set_handover_positions(self, desired: DesiredState) -> None:
        """Store the position from which arriving tables are captured completely. On any thread."""
        mine = self.note(desired)
        coming = {spec.oid for spec in mine if moves_in(spec, self._group)}
        # A table that arrives again later is published again, so its moment is dropped.
        coming -= desired.published
        self._published_at = {oid: moment for oid, moment in self._published_at.items() if oid in coming}
        for spec in mine:
            table = self._tables.get(spec.oid)
            if spec.handover_lsn is not None or table is None or not table.moving_in or spec.oid in desired.refused:
                # The loop does not know it yet, so it holds no manifests.
                continue
            moment = self._published_at.setdefault(spec.oid, self._source.settled())
            if self._source.passed(moment):
                self._store.note_handover(spec.oid, self._source.mark())

    def note(self, desired: DesiredState) -> list[TableSpec]:
        """The moves of this group's tables. On any thread."""
        mine = [spec for spec in desired.specs.values() if moves_in(spec, self._group) or moves_out(spec, self._group)]
        others = {spec.moving_from if moves_in(spec, self._group) else spec.group for spec in mine}
        handed = any(moves_in(spec, self._group) and spec.handed_lsn is not None for spec in mine)
        self.under_way = bool(mine)
        self.advancing = handed or any(other and self._store.holder(other) is not None for other in others)
        return mine

    def incoming(self) -> list[tuple[TableRuntime, int]]:
        """Tables that the other group has handed over, and the last manifest here that they include completely."""
        return [
            (table, self._backlog.number_at(table.spec.handed_lsn))
            for table in self._tables.awake
            if table.moving_in and table.spec is not None and table.spec.handed_lsn is not None
        ]

    def take_over(self, table: TableRuntime, manifest: int) -> Taken:
        """Continue a lake table at the position of the other group, or decide that it needs a re-copy."""
        oid, source_id = table.schema.oid, self._source.table_id(table.schema.oid)
        position = table.spec.handed_lsn if table.spec is not None else None
        claimed = self._store.take_over(table.record)
        if claimed is None:
            return Taken(table, False)
        found = self._lake.applied(table.target, source_id) if position else None
        applied: Applied | None = None
        least = table.spec.handed_version if table.spec is not None else NO_VERSION
        if found is not None and position is not None and found.lsn <= position and found.version >= least:
            # Manifest and schema numbers are per group; schema 0 is older than all schemas of this group.
            schema = replace(found.schema, version=0)
            at = replace(found, lsn=position, manifest=manifest, schema=schema)
            if self._log.stretch.continues(at.manifest, at.lsn):
                # The run of the other group may have begun after this one.
                applied = self._lake.restate(at, source_id, self._raise_epoch(found.version.epoch))
        # Nothing is applied before this is written: a repeated take-over finds the same table.
        return Taken(table, self._store.end_take_over(oid, self._group, applied is not None), applied, claimed)

    def taken(self, result: Taken) -> None:
        table, applied = result.table, result.applied
        if not result.ours or self._tables.get(table.schema.oid) is not table:
            # A command has changed the spec; the next reading of the desired state shows how.
            return
        table.taken_over(result.claimed)
        if applied is None:
            log.info("%s joined group %s; it is re-copied", table.name, self._group)
            table.request_copy()
            return
        log.info("%s joined group %s at %s, without a re-copy", table.name, self._group, applied.lsn)
        table.found(applied, self._backlog.after(table.schema.oid, applied.manifest))

    # ---- the group that a table leaves

    def outgoing(self, logged: Lsn) -> Iterator[TableRuntime]:
        """Tables that have the position that the other group needs; this group does no more work on them."""
        for table in self._tables.awake:
            spec = table.spec
            if spec is None or not moves_out(spec, self._group) or table.job is not None:
                continue
            position = handed_at(table, spec.handover_lsn, logged)
            if position is not None:
                self._tables.hand_off(table)
                table.handed_over(position)
                yield table

    def hand_over(self, table: TableRuntime) -> TableRuntime:
        spec = table.spec
        assert spec is not None and spec.handed_lsn is not None
        try:
            self._store.note_handed(table.schema.oid, self._group, spec.handed_lsn, table.record.version)
            log.info("%s leaves group %s at %s", table.name, self._group, spec.handed_lsn)
        except Wal2LakeError as error:
            # It is unknown whether it was stored; the next reading of the store decides.
            log.warning("%s could not be handed over: %s", table.name, error)
        return table


def handed_at(table: TableRuntime, handover: Lsn | None, logged: Lsn) -> Lsn | None:
    """The position at which a table can be handed over; ZERO: with a re-copy; None: not yet."""
    if table.only_copy_helps:
        return ZERO
    if handover is None or not table.active or table.applied is None:
        return None
    position = logged if table.waiting is None else table.applied.lsn
    return position if position >= handover else None
