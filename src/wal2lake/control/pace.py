"""How often a table is committed that has settings of its own: less often than its group's manifests come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from ..config import GroupConfig, TableConfig, settings_of
from ..schema import TableSchema


class Waits(Protocol):
    """What waits for a table."""

    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True)
class Pace:
    group: GroupConfig
    tables: Mapping[str, TableConfig]

    def due(self, table: TableSchema, committed: datetime | None, waiting: Waits, now: datetime) -> bool:
        """Whether what waits for a table is to be committed now: enough time has passed, or it is enough."""
        own = settings_of(self.tables, table.id, table.heeds)
        if own.flush_interval is None or committed is None:
            return True
        if now - committed >= timedelta(seconds=own.flush_interval):
            return True
        most = self.group.flush_bytes if own.flush_bytes is None else own.flush_bytes
        return waiting.bytes >= most
