from itertools import pairwise

import pytest

from wal2lake.control.state import BACKOFF_MOST, TRANSITIONS, TableState, backoff, may_become


def test_the_path_of_a_table_is_legal() -> None:
    path = [TableState.PENDING, TableState.SNAPSHOT, TableState.CATCHUP, TableState.STREAMING]
    assert all(may_become(now, then) for now, then in pairwise(path))


def test_a_table_that_was_not_copied_never_streams() -> None:
    assert not may_become(TableState.PENDING, TableState.STREAMING)
    assert not may_become(TableState.SNAPSHOT, TableState.STREAMING)
    assert not may_become(TableState.ERRORED, TableState.STREAMING)


def test_every_state_can_be_left_and_can_fail() -> None:
    assert set(TRANSITIONS) == set(TableState)
    for state, following in TRANSITIONS.items():
        if state is not TableState.DROPPED:
            assert following - {state}
            assert {TableState.ERRORED, TableState.DROPPED} <= following


def test_a_dropped_table_never_comes_back() -> None:
    assert TRANSITIONS[TableState.DROPPED] == frozenset()


def test_the_waiting_time_is_shortened_by_a_fifth_at_most() -> None:
    assert (backoff(1, 1.0), backoff(3, 0.5)) == (24, 108)


def test_backoff_doubles_from_30_seconds_to_32_minutes() -> None:
    assert [backoff(n) for n in range(1, 9)] == [30, 60, 120, 240, 480, 960, 1920, 1920]
    assert backoff(1000) == BACKOFF_MOST
    with pytest.raises(ValueError, match="first failure"):
        backoff(0)
