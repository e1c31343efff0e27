"""When a table with an interval of its own is committed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from table_runtimes import SCHEMA
from wal2lake.config import GroupConfig, TableConfig
from wal2lake.scheduling.cadence import Cadence

COMMITTED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class _Waiting:
    bytes: int


@pytest.mark.parametrize(
    ("settings", "seconds", "size", "due"),
    [
        (None, 0, 1, True),
        (TableConfig(), 0, 1, True),
        (TableConfig(flush_interval=60), 59, 1, False),
        (TableConfig(flush_interval=60), 60, 1, True),
        (TableConfig(flush_interval=60, flush_bytes=2048), 1, 2047, False),
        (TableConfig(flush_interval=60, flush_bytes=2048), 1, 2048, True),
        (TableConfig(flush_interval=60), 1, 5_000_000, True),
        (TableConfig(flush_bytes=2048), 0, 1, True),
    ],
)
def test_its_own_interval_is_waited_for_unless_enough_has_come(
    settings: TableConfig | None, seconds: float, size: int, due: bool
) -> None:
    group = GroupConfig(name="g", flush_bytes=4_000_000)
    pace = Cadence(group, {str(SCHEMA.id): settings} if settings else {})
    now = COMMITTED + timedelta(seconds=seconds)
    assert pace.due(SCHEMA, COMMITTED, _Waiting(size), now) is due


def test_what_was_never_committed_does_not_wait() -> None:
    pace = Cadence(GroupConfig(name="g"), {str(SCHEMA.id): TableConfig(flush_interval=60)})
    assert pace.due(SCHEMA, None, _Waiting(1), COMMITTED)
