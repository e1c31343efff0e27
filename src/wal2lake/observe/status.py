"""How the mirror stands: the documented shape of `status --json`, and of `Mirror.status()`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..position import Lsn


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
    """disk that the change log takes, as a run last saw it"""
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
