"""The change log's disk budget: when it warns, when capture waits, and when waiting would be for nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from wal2lake.changelog import ChangeLog, Manifest, ManifestEntry, Segment
from wal2lake.changelog.budget import RECHECK_SECONDS, Budget, FillLevel, Usage, judge
from wal2lake.position import Lsn

OK, WARNING, FULL, OVERSIZED = FillLevel.OK, FillLevel.WARNING, FillLevel.FULL, FillLevel.OVERSIZED


def publish(log: ChangeLog, size: int) -> Manifest:
    """A manifest whose one segment says that it has so many bytes."""
    name = f"segments/42/{log.position():x}.parquet"
    log.storage.put(name, b"")
    segment = Segment(name, 1, size, 1, 1, 0, 0, 0, 0)
    return log.publish(Lsn(log.position() + 100), 1, None, {42: ManifestEntry(42, "public.t", (segment,))})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        self.now += RECHECK_SECONDS
        return self.now


@pytest.mark.parametrize(
    ("before", "used", "waiting_helps", "after"),
    [
        (OK, 79, True, OK),
        (OK, 80, True, WARNING),
        (WARNING, 70, True, WARNING),
        (WARNING, 69, True, OK),
        (OK, 100, True, FULL),
        (FULL, 95, True, FULL),
        (FULL, 94, True, WARNING),
        (WARNING, 99, True, WARNING),
        (WARNING, 100, False, OVERSIZED),
        (FULL, 96, False, OVERSIZED),
        (OVERSIZED, 150, True, FULL),
        (OVERSIZED, 99, False, WARNING),
        (FULL, 10, True, OK),
    ],
)
def test_a_level_follows_from_the_usage_and_the_level_before(
    before: FillLevel, used: int, waiting_helps: bool, after: FillLevel
) -> None:
    assert judge(before, used, 100, waiting_helps) is after


def test_what_is_published_and_what_is_open_count_until_it_is_retired(log: ChangeLog) -> None:
    budget = Budget(log, 1000, "g", Clock())
    for size in (100, 200, 300):
        budget.published(publish(log, size))
    assert budget.look(50) == Usage(650, 1000, OK)
    # Another process retires.
    log.reopened().retire(2)
    assert budget.look(0) == Usage(300, 1000, OK)


def test_what_was_published_before_is_counted(log: ChangeLog) -> None:
    for size in (400, 500, 200):
        publish(log, size)
    assert Budget(log.reopened(), 1000, "g").look(0) == Usage(1100, 1000, FULL)


def test_capture_waits_at_the_limit_and_goes_on_when_enough_is_retired(log: ChangeLog) -> None:
    budget = Budget(log, 1000, "g", Clock())
    for size in (40, 500, 460, 40):
        budget.published(publish(log, size))
    assert budget.look(0).paused
    log.retire(1)
    assert budget.look(0).paused, "it is still above the share at which capture goes on"
    log.retire(2)
    assert budget.look(0) == Usage(500, 1000, OK)


def test_a_transaction_larger_than_the_budget_does_not_wait_for_itself(log: ChangeLog) -> None:
    budget = Budget(log, 1000, "g", Clock())
    assert budget.look(5000).level is OVERSIZED
    budget.published(publish(log, 10))
    assert budget.look(5000).level is OVERSIZED, "the last manifest is the position and is never retired"
    budget.published(publish(log, 10))
    assert budget.look(5000).paused
    log.retire(99)
    assert budget.look(5000) == Usage(5010, 1000, OVERSIZED)


def test_the_disk_is_not_read_on_every_turn(log: ChangeLog) -> None:
    budget = Budget(log, 1000, "g", clock=lambda: 1000.0)
    for _ in range(2):
        budget.published(publish(log, 100))
    assert budget.look(0).bytes == 200
    log.retire(99)
    assert budget.look(0).bytes == 200


def test_each_threshold_is_logged_once(log: ChangeLog, caplog: pytest.LogCaptureFixture) -> None:
    def told(act: Callable[[], object]) -> list[int]:
        caplog.clear()
        act()
        budget.look(0)
        budget.look(0)
        return [record.levelno for record in caplog.records]

    caplog.set_level(logging.INFO, "wal2lake")
    budget = Budget(log, 1000, "g", Clock())
    assert told(lambda: budget.published(publish(log, 850))) == [logging.WARNING]
    assert told(lambda: budget.published(publish(log, 150))) == [logging.WARNING]
    assert "capture waits" in caplog.text
    assert told(lambda: log.retire(1)) == [logging.WARNING]
    assert "capture continues" in caplog.text
    assert told(lambda: budget.published(publish(log, 900))) == [logging.WARNING]


def test_a_transaction_beyond_the_budget_is_an_error_in_the_log(
    log: ChangeLog, caplog: pytest.LogCaptureFixture
) -> None:
    budget = Budget(log, 1000, "g", Clock())
    budget.look(2000)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "200%" in caplog.text
