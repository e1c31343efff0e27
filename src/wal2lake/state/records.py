"""What the state store holds, as plain values: how tables and groups stand, and what is wanted of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ..position import NO_VERSION, LakeVersion, Lsn
from ..schema import TableId
from .lifecycle import GroupState, Mode, TableState


@dataclass(frozen=True)
class TableRecord:
    """A table as the store knows it."""

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
    """the class of the error, which says what happens next"""
    target: TableId | None = None
    """the lake table, which stays when the source table is renamed; None: named like the source table"""
    version: LakeVersion = NO_VERSION
    """an older one in the lake lacks changes that the change log may have deleted: only a copy helps then"""

    @property
    def lake_table(self) -> TableId:
        return self.target or self.id


@dataclass(frozen=True)
class AppendCounts:
    """What PostgreSQL had counted of updates and deletes when an append-only table was last copied, by heap."""

    counts: Mapping[int, int]
    seen_at: datetime | None
    """when more were first seen; None: they were not"""

    def changes(self, now: Mapping[int, int]) -> int:
        """Updates and deletes since. Counts that went down were reset, and all that they have came later."""
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
    """what is to be known though all goes on"""
    changelog_bytes: int | None = None
    still_since: datetime | None = None
    """since when nothing can be captured; None if it can"""
    updated_at: datetime | None = None


@dataclass(frozen=True)
class TableSpec:
    """What commands have asked for a table, beside what the configuration says."""

    oid: int
    id: TableId
    """its name when it was asked for"""
    wanted: bool | None = None
    """added, removed; None: as the configuration says"""
    group: str | None = None
    """the group that an added or removed table is of"""
    paused: bool = False
    target: TableId | None = None
    copy: bool = True
    """whether an added table begins with its rows"""
    drop_lake: bool = False
    """the lake table of a removed one is to go, and has not yet"""
    resumed_at: datetime | None = None
    moving_from: str | None = None
    """the group that has it until it is handed over"""
    handover_lsn: Lsn | None = None
    """the new group captures everything from here on; the old one has to bring the table at least so far"""
    handed_lsn: Lsn | None = None
    """how far the old group brought it; it is no longer its table"""
    handed_version: LakeVersion = NO_VERSION
    """the version that its lake table has at least"""


@dataclass(frozen=True)
class GroupSpec:
    """A group that a command has made, or what a command has said of one from the configuration."""

    name: str
    made: bool
    """by `groups create`; False: it is the configuration's"""
    tables: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    flush_interval: float | None = None
    flush_bytes: int | None = None
    enabled: bool = True
    dropping: bool = False
    """it is to go, with its slot and publication"""


@dataclass(frozen=True)
class HistoryEntry:
    """One thing that happened to a table: a transition, or a command that asked for something."""

    group: str
    oid: int
    id: TableId
    at: datetime
    who: str
    before: str | None = None
    after: str | None = None
    detail: str | None = None
    """the error, or what was asked for"""
