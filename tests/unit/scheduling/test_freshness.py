"""When a worker may begin, and which tables wait though something has arrived for them."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

from wal2lake.scheduling import cadence
from wal2lake.scheduling.cadence import ANSWER_SECONDS, FRESH_SHARE, Freshness

INTERVAL = 1.0
FRESH_SECONDS = FRESH_SHARE * INTERVAL


class Clock:
    def __init__(self) -> None:
        self.now = monotonic()

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float) -> float:
        self.now += seconds
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(cadence, "monotonic", made)
    yield made


class Asked(Freshness):
    """Counts how often the capture was asked."""

    def __init__(self) -> None:
        self.times = 0
        super().__init__(INTERVAL, self._note)

    def _note(self) -> None:
        self.times += 1


def test_work_begins_at_once_with_a_new_manifest(clock: Clock) -> None:
    asked = Asked()
    read_at = clock.now
    clock.later(FRESH_SECONDS / 2)
    assert asked.given(7, read_at, 0) and asked.times == 0 and asked.awaited is None


def test_an_older_manifest_is_followed_by_a_newer_one(clock: Clock) -> None:
    asked = Asked()
    read_at = clock.now
    clock.later(1)
    assert not asked.given(7, read_at, 0) and not asked.given(7, read_at, 0) and asked.times == 1
    assert asked.awaited == pytest.approx(ANSWER_SECONDS)
    clock.later(ANSWER_SECONDS / 2)
    assert not asked.given(7, read_at, 0)
    assert asked.given(8, clock.now, 0) and asked.awaited is None and asked.times == 1


def test_where_there_is_nothing_newer_the_answer_is_enough(clock: Clock) -> None:
    asked = Asked()
    clock.later(1)
    assert not asked.given(7, clock.now - 1, 3)
    assert asked.given(7, clock.now - 1, 4)
    # The next table in the same turn need not ask again.
    assert asked.given(7, clock.now - 1, 4) and asked.times == 1
    clock.later(FRESH_SECONDS)
    assert not asked.given(7, clock.now - 2, 4) and asked.times == 2


def test_an_answer_that_does_not_come_is_not_waited_for(clock: Clock) -> None:
    asked = Asked()
    assert not asked.given(7, clock.now - 1, 0)
    clock.later(ANSWER_SECONDS * 1.1)
    assert asked.awaited is None
    assert asked.given(7, clock.now - 1, 0)


def test_a_table_waits_only_where_something_came_ahead_of_time(clock: Clock) -> None:
    asked = Asked()
    began = clock.now
    assert not asked.too_soon(began)
    asked.given(7, clock.now - 1, 0)
    assert asked.too_soon(began)
    assert not asked.too_soon(began - INTERVAL)
    clock.later(INTERVAL - ANSWER_SECONDS / 2)
    assert not asked.too_soon(began)
    assert asked.too_soon(began + INTERVAL / 2)
    clock.later(ANSWER_SECONDS)
    assert not asked.too_soon(clock.now)
