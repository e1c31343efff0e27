"""When a worker may begin, and which tables wait though something has arrived for them."""

from __future__ import annotations

from time import monotonic

import pytest

from wal2lake.clock import SystemClock
from wal2lake.scheduling.cadence import ANSWER_SECONDS, FRESH_SHARE, Freshness

INTERVAL = 1.0
FRESH_SECONDS = FRESH_SHARE * INTERVAL


class Clock(SystemClock):
    def __init__(self) -> None:
        self._at = monotonic()

    def monotonic(self) -> float:
        return self._at

    def later(self, seconds: float) -> float:
        self._at += seconds
        return self._at


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Asked(Freshness):
    """Counts how often the capture was asked."""

    def __init__(self, clock: Clock) -> None:
        self.times = 0
        super().__init__(INTERVAL, self._note, clock)

    def _note(self) -> None:
        self.times += 1


def test_work_begins_at_once_with_a_new_manifest(clock: Clock) -> None:
    asked = Asked(clock)
    read_at = clock.monotonic()
    clock.later(FRESH_SECONDS / 2)
    assert asked.may_begin(7, read_at, 0) and asked.times == 0 and asked.awaited is None


def test_an_older_manifest_is_followed_by_a_newer_one(clock: Clock) -> None:
    asked = Asked(clock)
    read_at = clock.monotonic()
    clock.later(1)
    assert not asked.may_begin(7, read_at, 0) and not asked.may_begin(7, read_at, 0) and asked.times == 1
    assert asked.awaited == pytest.approx(ANSWER_SECONDS)
    clock.later(ANSWER_SECONDS / 2)
    assert not asked.may_begin(7, read_at, 0)
    assert asked.may_begin(8, clock.monotonic(), 0) and asked.awaited is None and asked.times == 1


def test_where_there_is_nothing_newer_the_answer_is_enough(clock: Clock) -> None:
    asked = Asked(clock)
    clock.later(1)
    assert not asked.may_begin(7, clock.monotonic() - 1, 3)
    assert asked.may_begin(7, clock.monotonic() - 1, 4)
    # The next table in the same turn need not ask again.
    assert asked.may_begin(7, clock.monotonic() - 1, 4) and asked.times == 1
    clock.later(FRESH_SECONDS)
    assert not asked.may_begin(7, clock.monotonic() - 2, 4) and asked.times == 2


def test_an_answer_that_does_not_come_is_not_waited_for(clock: Clock) -> None:
    asked = Asked(clock)
    assert not asked.may_begin(7, clock.monotonic() - 1, 0)
    clock.later(ANSWER_SECONDS * 1.1)
    assert asked.awaited is None
    assert asked.may_begin(7, clock.monotonic() - 1, 0)


def test_a_table_waits_only_where_something_came_ahead_of_time(clock: Clock) -> None:
    asked = Asked(clock)
    began = clock.monotonic()
    assert not asked.too_soon(began)
    asked.may_begin(7, clock.monotonic() - 1, 0)
    assert asked.too_soon(began)
    assert not asked.too_soon(began - INTERVAL)
    clock.later(INTERVAL - ANSWER_SECONDS / 2)
    assert not asked.too_soon(began)
    assert asked.too_soon(began + INTERVAL / 2)
    clock.later(ANSWER_SECONDS)
    assert not asked.too_soon(clock.monotonic())
