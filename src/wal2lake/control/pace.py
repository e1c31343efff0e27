"""How often a table is committed that has settings of its own: less often than its group's manifests come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..changelog import Manifest
from ..config import GroupConfig, TableConfig, settings_of
from ..schema import TableSchema


@dataclass(frozen=True)
class Pace:
    group: GroupConfig
    tables: Mapping[str, TableConfig]

    def due(self, table: TableSchema, committed: datetime | None, waiting: Sequence[Manifest], now: datetime) -> bool:
        """Whether what waits for a table is to be committed now: enough time has passed, or it is enough.

        `waiting` has the table's own part of each manifest.
        """
        own = settings_of(self.tables, table.id, table.heeds)
        if own.flush_interval is None or committed is None:
            return True
        if now - committed >= timedelta(seconds=own.flush_interval):
            return True
        most = self.group.flush_bytes if own.flush_bytes is None else own.flush_bytes
        return sum(manifest.bytes for manifest in waiting) >= most
