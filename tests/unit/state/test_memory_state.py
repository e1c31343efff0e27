"""Features of the state store in memory beyond its contract: faults, lost sessions, simulated time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from wal2lake.errors import ConnectionFailed, GroupHeld
from wal2lake.schema import TableId
from wal2lake.state import Lease, TableRecord
from wal2lake.state.lifecycle import TableState
from wal2lake.state.memory import Call, MemoryState
from wal2lake.state.ports import LEASE_SECONDS

TABLE = TableRecord("g", 7, TableId("public", "t"), TableState.PENDING)
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


class Faults:
    """Lets the calls of some methods fail, and remembers all."""

    def __init__(self, before: str | None = None, after: str | None = None) -> None:
        self.fails_before, self.fails_after = before, after
        self.calls: list[Call] = []

    def before(self, call: Call) -> None:
        self.calls.append(call)
        if call.method == self.fails_before:
            raise ConnectionFailed(server="the state store", cause="before")

    def after(self, call: Call) -> None:
        if call.method == self.fails_after:
            raise ConnectionFailed(server="the state store", cause="after")


class SimulatedClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


class SimulatedChanges(threading.Condition):
    """Nothing changes while one waits, but time passes."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:  # type: ignore[override]  # what it returns is narrower
        if not predicate():
            self._clock.seconds += timeout or 0.0
        return predicate()


def test_a_call_that_fails_before_its_work_changes_nothing() -> None:
    faults = Faults(before="save_tables")
    store = MemoryState(hook=faults).connect()
    store.create()
    with pytest.raises(ConnectionFailed, match="before"):
        store.save_tables([TABLE])
    assert store.tables() == []


def test_a_call_that_fails_after_its_work_has_done_it() -> None:
    faults = Faults(after="save_tables")
    store = MemoryState(hook=faults).connect()
    store.create()
    with pytest.raises(ConnectionFailed, match="after"):
        store.save_tables([TABLE])
    assert store.tables() == [TABLE]


def test_the_hook_gets_process_and_method_of_each_call() -> None:
    faults = Faults()
    state = MemoryState(hook=faults)
    first, second = state.connect(process="one"), state.connect(process="two")
    first.create()
    second.tables()
    first.lease("g").take()
    second.listener().wait(0.0)
    assert faults.calls == [
        Call("one", "create"), Call("two", "tables"), Call("one", "lease.take"), Call("two", "listener.take"),
        Call("two", "listener.wait"),
    ]  # fmt: skip


def test_a_lease_whose_taking_was_not_answered_is_free() -> None:
    faults = Faults(after="lease.take")
    state = MemoryState(hook=faults)
    first, second = state.connect().lease("g"), state.connect().lease("g")
    with pytest.raises(ConnectionFailed):
        first.take()
    assert not first.held
    faults.fails_after = None
    second.take()
    assert second.held


def test_a_lease_that_is_released_while_it_is_taken_is_free() -> None:
    class Released(Faults):
        def after(self, call: Call) -> None:
            if call.method == "lease.take":
                first.release()

    state = MemoryState(hook=Released())
    first, second = state.connect().lease("g"), state.connect(process="other").lease("g")
    assert not first.wait(0.0)
    assert not first.held
    state.hook = Faults()
    second.take()
    assert second.held


@pytest.mark.parametrize("faults", [Faults(before="lease.wait"), Faults(after="lease.wait")])
def test_a_lease_that_can_not_be_confirmed_is_lost(faults: Faults) -> None:
    state = MemoryState(hook=faults)
    first, second = state.connect().lease("g"), state.connect().lease("g")
    first.take()
    assert not first.wait(0.0)
    assert not first.held
    second.take()
    faults.fails_before = faults.fails_after = None
    with pytest.raises(GroupHeld, match="process 2"):
        first.wait(0.0)


def test_the_sessions_of_one_process_end_and_others_stay() -> None:
    state = MemoryState()
    first, second = state.connect(), state.connect()
    leases = [first.lease("a"), first.lease("b"), second.lease("c")]
    for lease in leases:
        lease.take()
    state.end_sessions(first.process)
    assert [second.holder(group) is None for group in "abc"] == [True, True, False]
    assert [lease.wait(0.0) or lease.held for lease in leases] == [False, False, True]


def test_time_is_that_of_the_clock_and_waiting_that_of_the_simulation() -> None:
    clock = SimulatedClock()
    changes = SimulatedChanges(clock)
    state = MemoryState(clock, changes=changes)
    store = state.connect()
    store.create()
    lease: Lease = store.lease("g")
    lease.take()
    assert lease.epoch == int(BEGIN.timestamp() * 1000)
    clock.seconds = LEASE_SECONDS
    assert (lease.recent, lease.wait(60.0), lease.recent) == (False, False, True)
    asked = store.request_resync([TABLE])
    assert asked == BEGIN + timedelta(seconds=LEASE_SECONDS + 60)
    assert store.request_resync([TABLE]) > asked
    assert lease.wait(1.0)


def test_a_table_that_is_being_dropped_is_not_waited_for_longer_than_a_server_would_be() -> None:
    clock = SimulatedClock()
    state = MemoryState(clock, changes=SimulatedChanges(clock))
    first, second = state.connect(), state.connect()
    first.create()
    first.set_table_spec(7, TABLE.id, {"wanted": False, "drop_lake": True})

    def drop() -> None:
        with pytest.raises(ConnectionFailed, match="took too long"):
            second.set_table_spec(7, TABLE.id, {"wanted": True})
        assert clock.seconds == 15.0
        second.limit_waits()
        with pytest.raises(ConnectionFailed, match="took too long"):
            second.set_table_spec(7, TABLE.id, {"wanted": True})
        assert clock.seconds == 17.0
        second.set_table_spec(8, TABLE.id, {"wanted": True})

    assert first.drop_lake(7, drop)
    second.set_table_spec(7, TABLE.id, {"wanted": True})
    assert {oid: spec.wanted for oid, spec in first.table_specs().items()} == {7: True, 8: True}
