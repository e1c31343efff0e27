from itertools import pairwise

from wal2lake.state.lifecycle import TRANSITIONS, TableState, may_become


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
