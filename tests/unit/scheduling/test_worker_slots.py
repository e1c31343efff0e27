"""Groups share a driver's workers: never more than the limit, and each gets its turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from wal2lake.executor import SYSTEM_EXECUTOR
from wal2lake.scheduling.worker_pool import WorkerSlots


@pytest.fixture
def turns() -> Iterator[WorkerSlots]:
    made = WorkerSlots("test", 2, SYSTEM_EXECUTOR)
    yield made
    made.close()


def test_the_bound_is_over_all_groups_and_the_longest_waiting_is_called(turns: WorkerSlots) -> None:
    hold = threading.Event()
    called: list[str] = []
    for who in ("a", "a"):
        assert turns.may_begin(who, lambda: None)
        turns.begin(who, lambda: hold.wait(5))
    for who in ("b", "c"):
        assert not turns.may_begin(who, partial(called.append, who))
    assert not turns.free
    hold.set()
    turns.close()
    assert called[:1] == ["b"] and set(called) == {"b", "c"}
    assert turns.may_begin("c", lambda: None) and turns.may_begin("b", lambda: None)


def test_one_who_always_has_work_does_not_pass_one_who_waits() -> None:
    turns = WorkerSlots("test", 1, SYSTEM_EXECUTOR)
    hold = threading.Event()
    job = turns.begin("busy", lambda: hold.wait(5))
    assert not turns.may_begin("patient", lambda: None)
    hold.set()
    job.result(5)
    turns.close()
    assert not turns.may_begin("busy", lambda: None)
    assert turns.may_begin("patient", lambda: None)


def test_one_who_leaves_lets_the_next_go(turns: WorkerSlots) -> None:
    called: list[str] = []
    hold = threading.Event()
    jobs = [turns.begin("a", lambda: hold.wait(5)) for _ in range(2)]
    assert not turns.may_begin("b", lambda: called.append("b"))
    assert not turns.may_begin("c", lambda: called.append("c"))
    hold.set()
    for job in jobs:
        job.result(5)
    turns.close()
    turns.leave("b")
    assert "c" in called
    turns.leave("c")
    assert turns.free
