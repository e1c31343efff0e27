from datetime import UTC, datetime, timedelta

import pytest

from wal2lake.mirror import _table_status
from wal2lake.schema import TableId
from wal2lake.state import TableRecord
from wal2lake.state.lifecycle import TableState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "waits", "lag"),
    [
        (TableState.PENDING, None, None),
        (TableState.SNAPSHOT, None, None),
        (TableState.ERRORED, None, None),
        (TableState.ERRORED, 60, 60.0),
        (TableState.STREAMING, None, 0.0),
        (TableState.CATCHUP, 5, 5.0),
        (TableState.PAUSED, None, 0.0),
    ],
)
def test_the_lag_is_told_where_it_is_known(state: TableState, waits: int | None, lag: float | None) -> None:
    since = None if waits is None else NOW - timedelta(seconds=waits)
    record = TableRecord("g", 1, TableId("public", "t"), state, behind_since=since)
    assert _table_status(record, None, None, NOW).lag_seconds == lag
