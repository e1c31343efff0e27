"""The contract of Lease and Listener, in PostgreSQL and in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from state_servers import KINDS, StateServer, state_server_of
from waiting import wait_until
from wal2lake.errors import GroupHeld, SourceError
from wal2lake.schema import TableId
from wal2lake.state import Lease, Listener, StateStore
from wal2lake.state.ports import LEASE_SECONDS


@pytest.fixture(params=KINDS)
def state_server(request: pytest.FixtureRequest) -> Iterator[StateServer]:
    with state_server_of(request.param, request) as server:
        yield server


@pytest.fixture
def store(state_server: StateServer) -> StateStore:
    made = state_server.connect()
    made.create()
    return made


def _notice_loss(lease: Lease) -> None:
    wait_until(lambda: not lease.wait(0.05) and not lease.held, 10, "the loss is noticed")


def _request(store: StateStore) -> None:
    store.set_table_spec(7, TableId("public", "t"), {"paused": True})


def test_a_group_has_one_holder_who_is_named_to_the_other(state_server: StateServer) -> None:
    holder, other, third = (state_server.lease(name) for name in ("default", "default", "another"))
    holder.take()
    with pytest.raises(GroupHeld, match=r"default is already run by wal2lake on .*process"):
        other.take()
    assert (holder.held, other.held) == (True, False)
    third.take()
    third.release()
    holder.release()
    other.take()
    other.release()


def test_the_store_names_the_holder_of_a_group(state_server: StateServer) -> None:
    store, lease = state_server.connect(), state_server.lease()
    assert store.holder("default") is None
    lease.take()
    assert (store.holder("default") or "").startswith(lease.holder)
    assert store.holder("another") is None
    lease.release()
    wait_until(lambda: store.holder("default") is None, 10, "the lease is released")


def test_of_processes_that_start_together_one_holds_the_group(state_server: StateServer) -> None:
    leases = [state_server.lease() for _ in range(4)]
    refused: list[str] = []

    def take(lease: Lease) -> None:
        try:
            lease.take()
        except GroupHeld as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take, args=[lease]) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [lease.held for lease in leases].count(True) == 1
    assert len(refused) == 3


def test_each_holder_has_a_higher_epoch_than_those_before(state_server: StateServer, store: StateStore) -> None:
    first, second = state_server.lease(), state_server.lease()
    first.take()
    assert 0 < first.epoch == first.raise_epoch() < first.raise_epoch(above=first.epoch)
    far = first.epoch + 10**12
    assert first.raise_epoch(above=far) > far
    state_server.end_sessions()
    second.take()
    assert second.epoch > first.epoch
    with pytest.raises(GroupHeld):
        first.raise_epoch(above=second.epoch)


def test_a_lease_that_is_taken_again_has_a_higher_epoch(state_server: StateServer, store: StateStore) -> None:
    lease, epochs = state_server.lease(), list[int]()
    for _ in range(3):
        lease.take()
        epochs.append(lease.epoch)
        lease.release()
        assert lease.epoch == epochs[-1]
    assert epochs == sorted(set(epochs))


def test_epochs_grow_over_all_groups_and_over_a_store_that_was_made_again(
    state_server: StateServer, store: StateStore
) -> None:
    first, second = state_server.lease("a"), state_server.lease("b")
    first.take()
    second.take()
    assert first.epoch < second.epoch
    second.release()
    store.drop()
    store.create()
    second.take()
    assert second.epoch > first.epoch


def test_a_lease_without_a_store_has_an_epoch_when_there_is_one(state_server: StateServer) -> None:
    store, lease = state_server.connect(), state_server.lease()
    lease.take()
    assert lease.held and lease.epoch == 0
    with pytest.raises(SourceError):
        lease.raise_epoch()
    store.create()
    assert lease.raise_epoch() == lease.epoch > 0


def test_an_epoch_that_is_high_enough_stays(state_server: StateServer, store: StateStore) -> None:
    lease = state_server.lease()
    with pytest.raises(GroupHeld):
        lease.raise_epoch()
    lease.take()
    epoch = lease.epoch
    assert lease.raise_epoch() == lease.raise_epoch(above=epoch - 1) == epoch


def test_an_epoch_is_not_raised_by_a_lease_that_was_lost_without_notice(
    state_server: StateServer, store: StateStore
) -> None:
    lease = state_server.lease()
    lease.take()
    state_server.end_sessions()
    assert lease.held
    with pytest.raises(GroupHeld):
        lease.raise_epoch(above=lease.epoch)


def test_a_lease_that_is_not_confirmed_is_not_recent(state_server: StateServer, store: StateStore) -> None:
    lease = state_server.lease()
    recent = [lease.recent]
    lease.take()
    recent.append(lease.recent)
    state_server.clock.move(LEASE_SECONDS)
    recent.append(lease.recent)
    assert recent == [False, True, False]
    lease.wait(0.01)
    assert lease.recent


def test_a_request_wakes_the_holder(state_server: StateServer, store: StateStore) -> None:
    lease = state_server.lease()
    lease.take()
    woken: list[bool] = []
    watcher = threading.Thread(target=lambda: woken.append(lease.wait(20)))
    watcher.start()
    _request(store)
    watcher.join(10)
    assert woken == [True]


def test_a_lost_session_takes_the_group_again(state_server: StateServer) -> None:
    lease = state_server.lease()
    lease.take()
    state_server.end_sessions()
    _notice_loss(lease)
    assert lease.wait(0.05) is False
    assert lease.held


def test_a_lease_that_was_lost_and_taken_again_has_a_higher_epoch(state_server: StateServer, store: StateStore) -> None:
    lease = state_server.lease()
    lease.take()
    before = lease.epoch
    state_server.end_sessions()
    _notice_loss(lease)
    assert lease.epoch == before
    lease.wait(0.05)
    assert lease.epoch > before


def test_a_lost_lease_that_another_has_is_refused(state_server: StateServer, store: StateStore) -> None:
    lost, other = state_server.lease(), state_server.lease()
    lost.take()
    state_server.end_sessions()
    other.take()
    _notice_loss(lost)
    with pytest.raises(GroupHeld):
        lost.wait(0.05)
    assert (lost.held, other.held) == (False, True)
    assert other.wait(0.01) is False
    other.release()
    lost.wait(0.05)
    assert (lost.held, lost.epoch > other.epoch) == (True, True)


def test_a_lease_that_waits_takes_the_group_by_itself(state_server: StateServer) -> None:
    lease = state_server.lease()
    assert lease.wait(0.01) is False
    assert lease.held and lease.recent


def test_a_release_may_be_repeated(state_server: StateServer) -> None:
    lease, listener = state_server.lease(), state_server.listener()
    leases: list[Listener] = [lease, listener]
    for each in leases:
        each.release()
        each.take()
        each.release()
        each.release()
    assert not lease.held


def test_a_release_ends_the_wait_of_another_thread(state_server: StateServer) -> None:
    lease, other = state_server.lease(), state_server.lease()
    lease.take()
    answers: list[bool] = []
    watcher = threading.Thread(target=lambda: answers.append(lease.wait(60)))
    watcher.start()
    watcher.join(0.2)
    lease.release()
    watcher.join(20)
    assert answers == [False] and not lease.held
    other.take()


def test_a_lease_that_was_released_is_taken_again_only_on_request(state_server: StateServer) -> None:
    lease, other = state_server.lease(), state_server.lease()
    lease.take()
    lease.release()
    assert not lease.wait(0.05) and not lease.held
    other.take()
    other.release()
    lease.take()
    assert lease.held


def test_a_release_counts_for_a_lease_that_another_thread_is_taking(state_server: StateServer) -> None:
    lease, other = state_server.lease(), state_server.lease()
    other.take()

    def wait() -> None:
        with suppress(GroupHeld):
            lease.wait(60)

    watcher = threading.Thread(target=wait)
    watcher.start()
    watcher.join(0.2)
    lease.release()
    other.release()
    watcher.join(20)
    assert not watcher.is_alive() and not lease.held
    other.take()


def test_a_listener_hears_what_was_requested_before_it_waits_and_nothing_twice(
    state_server: StateServer, store: StateStore
) -> None:
    listener = state_server.listener()
    _request(store)
    listener.take()
    assert not listener.wait(0.05)
    _request(store)
    assert listener.wait(10)
    assert not listener.wait(0.05)


def test_every_listener_hears_a_request(state_server: StateServer, store: StateStore) -> None:
    listeners: list[Listener] = [state_server.listener(), state_server.listener(), state_server.lease()]
    for each in listeners:
        each.take()
    _request(store)
    assert all(each.wait(10) for each in listeners)


def test_a_listener_whose_session_was_lost_hears_again(state_server: StateServer, store: StateStore) -> None:
    listener = state_server.listener()
    listener.take()
    state_server.end_sessions()
    assert not listener.wait(5)
    assert not listener.wait(0.01)
    _request(store)
    assert listener.wait(10)
