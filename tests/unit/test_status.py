from datetime import UTC, datetime, timedelta

import pytest

from wal2lake.observe.status import GroupFacts, status_of, table_status
from wal2lake.position import Lsn
from wal2lake.schema import TableId
from wal2lake.source.model import Standing
from wal2lake.state import GroupRecord, TableRecord
from wal2lake.state.lifecycle import GroupState, TableState

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
def test_the_lag_is_shown_where_it_is_known(state: TableState, waits: int | None, lag: float | None) -> None:
    since = None if waits is None else NOW - timedelta(seconds=waits)
    record = TableRecord("g", 1, TableId("public", "t"), state, behind_since=since)
    assert table_status(record, None, None, NOW).lag_seconds == lag


BEHIND = Standing(active=False, received_lsn=Lsn(90), acknowledged_lsn=Lsn(50), lag_bytes=40, retained_wal_bytes=80)
QUIET = Standing(active=False, received_lsn=Lsn(90), acknowledged_lsn=Lsn(90), lag_bytes=0, retained_wal_bytes=10)


def group(state: GroupState | None, holder: str | None, standing: Standing = QUIET, enabled: bool = True) -> GroupFacts:
    record = (
        None
        if state is None
        else GroupRecord("g", state, "slot", "auto", logged_lsn=Lsn(70), updated_at=NOW - timedelta(seconds=9))
    )
    table = TableRecord("g", 1, TableId("public", "t"), TableState.STREAMING, applied_lsn=Lsn(40))
    return GroupFacts("g", "auto", "slot", standing, record, (table,), holder, enabled, None)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (group(None, None), "STOPPED"),
        (group(GroupState.RUNNING, "host:1"), "RUNNING"),
        (group(GroupState.RUNNING, None), "STOPPED"),
        (group(GroupState.ERRORED, None), "ERRORED"),
        (group(GroupState.ERRORED, None, enabled=False), "DISABLED"),
    ],
)
def test_a_group_runs_only_where_a_process_holds_it(facts: GroupFacts, state: str) -> None:
    assert status_of([facts], NOW).groups[0].state == state


def test_a_group_without_a_process_is_behind_since_it_was_last_seen() -> None:
    (stopped,), (running,) = (status_of([group(GroupState.RUNNING, by, BEHIND)], NOW).groups for by in (None, "host:1"))
    assert (stopped.lag_seconds, running.lag_seconds) == (9.0, 0.0)
    assert status_of([group(GroupState.RUNNING, None)], NOW).groups[0].lag_seconds == 0.0


def test_a_table_that_is_caught_up_is_as_far_as_a_running_capture() -> None:
    running, stopped = (status_of([group(GroupState.RUNNING, by)], NOW).tables[0] for by in ("host:1", None))
    assert (running.applied_lsn, stopped.applied_lsn) == (Lsn(70), Lsn(40))
