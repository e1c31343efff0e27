"""Contents of the state store, as plain values: records of tables and groups, and specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..position import NO_VERSION, LakeVersion, Lsn
from ..schema import TableId
from .lifecycle import GroupState, Mode, TableState


@dataclass(frozen=True)
class TableRecord:
    """A table in the state store."""

    group: str
    oid: int
    id: TableId
    state: TableState
    mode: Mode = Mode.WAL
    applied_lsn: Lsn | None = None
    rows: int | None = None
    changes_applied: int = 0
    last_commit_at: datetime | None = None
    behind_since: datetime | None = None
    error: str | None = None
    remedy: str | None = None
    retry_at: datetime | None = None
    failures: int = 0
    kind: str | None = None
    """the kind of the error, which decides what happens next"""
    target: TableId | None = None
    """the lake table, which stays when the source table is renamed; None: it has the source table's name"""
    version: LakeVersion = NO_VERSION
    """a lower version in the lake lacks changes that may be deleted from the change log: it needs a resync"""

    @property
    def lake_table(self) -> TableId:
        return self.target or self.id


@dataclass(frozen=True)
class AppendCounts:
    """Updates and deletes in PostgreSQL's statistics when an append-only table was last copied, by heap."""

    counts: Mapping[int, int]
    seen_at: datetime | None
    """when more were first seen; None: never"""

    def changes(self, now: Mapping[int, int]) -> int:
        """Updates and deletes since then. Lower counts were reset, so all of theirs came later."""
        known = {heap: self.counts.get(heap, 0) for heap in now}
        since = sum(count - known[heap] if count >= known[heap] else count for heap, count in now.items())
        return max(since, 1) if self.seen_at is not None else since


@dataclass(frozen=True)
class GroupRecord:
    name: str
    state: GroupState
    slot: str
    capture: str
    holder: str | None = None
    logged_lsn: Lsn | None = None
    error: str | None = None
    remedy: str | None = None
    warning: str | None = None
    """a warning while everything works"""
    changelog_bytes: int | None = None
    still_since: datetime | None = None
    """since when capture is blocked; None: it is not"""
    updated_at: datetime | None = None


@dataclass(frozen=True)
class TableSpec:
    """Desired state of a table by commands, in addition to the configuration."""

    oid: int
    id: TableId
    """its name at the time of the command"""
    wanted: bool | None = None
    """added or removed; None: as configured"""
    group: str | None = None
    """the group of an added or removed table"""
    paused: bool = False
    target: TableId | None = None
    copy: bool = True
    """whether an added table is copied"""
    drop_lake: bool = False
    """the lake table of a removed table will be dropped"""
    resumed_at: datetime | None = None
    moving_from: str | None = None
    """the group that has it until it is handed over"""
    handover_lsn: Lsn | None = None
    """the new group captures everything from here on; the old one must apply at least up to here"""
    handed_lsn: Lsn | None = None
    """the position up to which the old group applied; the table has left that group"""
    handed_version: LakeVersion = NO_VERSION
    """minimum version of its lake table"""


@dataclass(frozen=True)
class GroupSpec:
    """A group made by a command, or changes by commands to a configured one."""

    name: str
    made: bool
    """made by `groups create`; False: it is configured"""
    tables: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    flush_interval: float | None = None
    flush_bytes: int | None = None
    enabled: bool = True
    dropping: bool = False
    """it will be dropped, with its slot and publication"""


@dataclass(frozen=True)
class HistoryEntry:
    """An event of a table: a transition, or a command."""

    group: str
    oid: int
    id: TableId
    at: datetime
    who: str
    before: str | None = None
    after: str | None = None
    detail: str | None = None
    """the error, or the command"""


def identity_entries(
    group: str, done: Mapping[int, Sequence[str]], names: Mapping[int, TableId], at: datetime
) -> list[HistoryEntry]:
    """Replica identities that were set, each as an event of the mirrored table."""
    return [
        HistoryEntry(group, oid, names[oid], at, "auto_replica_identity", detail=what)
        for oid, some in done.items() if oid in names for what in some
    ]  # fmt: skip
