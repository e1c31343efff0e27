"""The status of groups and tables, computed from facts; the shape of `status --json`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..position import Lsn
from ..source import Standing
from ..state import GroupRecord, TableRecord
from ..state.lifecycle import GroupState, TableState


@dataclass(frozen=True)
class GroupStatus:
    name: str
    state: str
    slot: str
    capture: str
    received_lsn: Lsn | None
    logged_lsn: Lsn | None
    acknowledged_lsn: Lsn | None
    lag_bytes: int
    lag_seconds: float
    retained_wal_bytes: int
    holder: str | None = None
    error: str | None = None
    remedy: str | None = None
    warning: str | None = None
    changelog_bytes: int | None = None
    """disk space of the change log, as last measured by a run"""
    changelog_max_bytes: int | None = None


@dataclass(frozen=True)
class TableStatus:
    name: str
    group: str
    state: str
    mode: str
    applied_lsn: Lsn | None
    rows: int | None
    changes_applied: int
    lag_seconds: float | None
    """None where it is unknown: the table has no copy yet, or has failed"""
    last_commit_at: datetime | None
    error: str | None = None
    remedy: str | None = None
    retry_at: datetime | None = None


@dataclass(frozen=True)
class Status:
    groups: tuple[GroupStatus, ...]
    tables: tuple[TableStatus, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": [_plain(vars(group)) for group in self.groups],
            "tables": [_plain(vars(table)) for table in self.tables],
        }


@dataclass(frozen=True)
class GroupFacts:
    """The facts of one group."""

    name: str
    capture: str
    slot: str
    standing: Standing  # of its slot in the source
    record: GroupRecord | None  # None: it has not run yet
    tables: tuple[TableRecord, ...]
    holder: str | None  # the process that runs it
    enabled: bool
    changelog_max_bytes: int | None

    @property
    def running(self) -> bool:
        return self.record is not None and self.holder is not None


def status_of(groups: Iterable[GroupFacts], now: datetime) -> Status:
    """The status at one moment, in the order of the groups."""
    statuses: list[GroupStatus] = []
    tables: list[TableStatus] = []
    for group in groups:
        rows = _tables_of(group, now)
        tables += rows
        statuses.append(_group_status(group, rows, now))
    return Status(tuple(statuses), tuple(tables))


def table_status(record: TableRecord, logged: Lsn | None, still: datetime | None, now: datetime) -> TableStatus:
    """The status of one table. `logged`: position of a running capture; `still`: since when capture is blocked."""
    follows = record.state in (TableState.STREAMING, TableState.CATCHUP)
    unknown = record.state in (TableState.PENDING, TableState.SNAPSHOT, TableState.ERRORED)
    since = min((moment for moment in (record.behind_since, still if follows else None) if moment), default=now)
    caught_up = record.state is TableState.STREAMING and record.behind_since is None
    applied = record.applied_lsn
    if caught_up and logged is not None and applied is not None:
        applied = max(applied, logged)
    return TableStatus(
        name=str(record.id),
        group=record.group,
        state=record.state.value,
        mode=record.mode.value,
        applied_lsn=applied,
        rows=record.rows,
        changes_applied=record.changes_applied,
        lag_seconds=None if unknown and record.behind_since is None else max(0.0, (now - since).total_seconds()),
        last_commit_at=record.last_commit_at,
        error=record.error,
        remedy=record.remedy,
        retry_at=record.retry_at,
    )


def _tables_of(group: GroupFacts, now: datetime) -> list[TableStatus]:
    record, running = group.record, group.running
    logged = record.logged_lsn if record is not None and running else None
    # Commits that could not be captured may belong to any table, so each table counts as behind.
    still = record.still_since if record is not None and running and group.standing.lag_bytes else None
    return [table_status(table, logged, still, now) for table in group.tables]


def _group_status(group: GroupFacts, rows: list[TableStatus], now: datetime) -> GroupStatus:
    record, standing = group.record, group.standing
    behind = max((row.lag_seconds for row in rows if row.lag_seconds is not None), default=0.0)
    if record is not None and not group.running and standing.lag_bytes and record.updated_at is not None:
        behind = max(behind, (now - record.updated_at).total_seconds())
    logged = record.logged_lsn if record is not None else None
    return GroupStatus(
        name=group.name,
        state=_group_state(group).value,
        slot=group.slot,
        capture=group.capture,
        received_lsn=standing.received_lsn,
        logged_lsn=max(logged or Lsn(0), standing.acknowledged_lsn or Lsn(0)) or None,
        acknowledged_lsn=standing.acknowledged_lsn,
        lag_bytes=standing.lag_bytes,
        lag_seconds=behind if standing.lag_bytes else 0.0,
        retained_wal_bytes=standing.retained_wal_bytes,
        holder=group.holder,
        error=record.error if record is not None else None,
        remedy=record.remedy if record is not None else None,
        warning=record.warning if record is not None else None,
        changelog_bytes=record.changelog_bytes if record is not None else None,
        changelog_max_bytes=group.changelog_max_bytes,
    )


def _group_state(group: GroupFacts) -> GroupState:
    if not group.enabled:
        return GroupState.DISABLED
    if group.record is not None and (group.running or group.record.state is GroupState.ERRORED):
        return group.record.state
    return GroupState.STOPPED


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    def value(item: Any) -> Any:
        match item:
            case Lsn():
                return str(item)
            case datetime():
                return item.isoformat()
            case float():
                return round(item, 3)
            case _:
                return item

    return {name: value(item) for name, item in fields.items()}
