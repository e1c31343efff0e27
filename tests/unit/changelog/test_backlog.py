"""The queues of manifests: what waits for each table, and what can be deleted."""

from __future__ import annotations

import gc
import tracemalloc
from datetime import UTC, datetime

from changelogs import directory_of
from wal2lake.changelog import ChangeLog, Manifest, ManifestEntry, Segment
from wal2lake.changelog.backlog import READ_AT_ONCE, Backlog
from wal2lake.changelog.retention import Retention
from wal2lake.position import Lsn


def publish(log: ChangeLog, *oids: int) -> None:
    to = Lsn(log.position() + 100)
    cuts = {oid: ManifestEntry(oid, f"t{oid}", (Segment(f"{oid}.parquet", 1, 1, 1, 1, 0, 0, 0, 0),)) for oid in oids}
    log.publish(to, 1, datetime(2024, 1, 1, tzinfo=UTC), cuts)


def reading(log: ChangeLog) -> Backlog:
    backlog = Backlog(log.reopened())
    backlog.begin()
    return backlog


def waiting(backlog: Backlog, oid: int, after: int = 0) -> list[int]:
    return [manifest.number for manifest in backlog.after(oid, after)]


def test_each_table_waits_for_the_manifests_that_name_it(log: ChangeLog) -> None:
    publish(log, 1, 2)
    publish(log, 2)
    backlog = reading(log)
    assert [(oid, part.number, set(part.tables)) for oid, part in backlog.read()] == [
        (1, 1, {1}), (2, 1, {2}), (2, 2, {2}),
    ]  # fmt: skip
    assert (waiting(backlog, 1), waiting(backlog, 2), waiting(backlog, 3)) == ([1], [1, 2], [])
    assert (backlog.seen, backlog.position) == (2, Lsn(300))


def test_only_what_is_new_is_read(log: ChangeLog) -> None:
    backlog = reading(log)
    assert list(backlog.read()) == []
    publish(log, 1)
    assert len(list(backlog.read())) == 1
    assert list(backlog.read()) == []
    publish(log, 1)
    assert [part.number for _, part in backlog.read()] == [2]


def test_a_backlog_begins_with_what_was_kept(log: ChangeLog) -> None:
    for _ in range(3):
        publish(log, 1)
    log.retire(1)
    backlog = reading(log)
    assert [part.number for _, part in backlog.read()] == [2, 3]


def test_what_a_table_has_is_taken_off_its_queue_alone(log: ChangeLog) -> None:
    for _ in range(3):
        publish(log, 1, 2)
    backlog = reading(log)
    list(backlog.read())
    assert waiting(backlog, 1, after=2) == [3]
    assert waiting(backlog, 2) == [1, 2, 3]


def test_a_table_that_has_less_than_was_known_gets_its_manifests_again(log: ChangeLog) -> None:
    for _ in range(4):
        publish(log, 1, 2)
    publish(log, 2)
    backlog = reading(log)
    list(backlog.read())
    assert waiting(backlog, 1, after=4) == []
    assert waiting(backlog, 1, after=2) == [3, 4]
    backlog.retire(3)
    assert waiting(backlog, 1, after=0) == [4], "those that were retired can't come again"


def test_retired_manifests_are_deleted_without_waiting(log: ChangeLog) -> None:
    for _ in range(3):
        publish(log, 1, 2)
    backlog = reading(log)
    list(backlog.read())
    assert not backlog.has_retired()
    backlog.retire(2)
    assert (waiting(backlog, 1), waiting(backlog, 2)) == ([3], [3])
    assert backlog.has_retired() and log.has(1)
    backlog.delete()
    assert [log.has(number) for number in (1, 2, 3)] == [False, False, True]
    assert not backlog.has_retired()


def test_positions_follow_a_new_stretch(log: ChangeLog) -> None:
    publish(log, 1)
    backlog = reading(log)
    list(backlog.read())
    log.begin(Lsn(5000))
    backlog.begin()
    assert (backlog.seen, backlog.position) == (1, Lsn(5000))
    publish(log, 1)
    assert [part.number for _, part in backlog.read()] == [3]


def paused_for_long(log: ChangeLog, count: int) -> None:
    """What is there after a table was paused for so many flushes; written without waiting for the disk each time."""
    publish(log, 1)
    (first,) = log.after(0)
    for number in range(2, count + 1):
        start = Lsn(first.to_lsn + number)
        segment = Segment(f"segments/1/{number}.parquet", 1, 1000, 1, 1, 0, 0, 0, 0)
        made = Manifest(number, Lsn(start - 1) if number > 2 else first.to_lsn, start, 1, first.commit_ts,
                        {1: ManifestEntry(1, "public.t", (segment,))})  # fmt: skip
        (directory_of(log) / "manifests" / f"{number}.json").write_text(made.to_json())


def test_a_long_backlog_is_taken_in_piece_by_piece_and_takes_little_memory(
    log_on_disk: ChangeLog,
) -> None:
    log, count = log_on_disk, 5000
    paused_for_long(log, count)
    backlog = reading(log)
    positions = []
    tracemalloc.start()
    try:
        while not backlog.complete:
            assert sum(1 for _ in backlog.read()) <= READ_AT_ONCE
            positions.append(backlog.position)
        backlog._log._cache.clear()
        gc.collect()
        # Other threads of the tests allocate memory, too.
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/wal2lake/*")])
        used = sum(trace.size for trace in ours.traces)
    finally:
        tracemalloc.stop()
    assert positions == sorted(positions) and len(positions) == count // READ_AT_ONCE + 1
    assert backlog.position == log.position() and backlog.seen == count
    assert used < count * 800, "of each manifest only its number, its size and its end are kept"
    queue = backlog.after(1, 0)
    assert (len(queue), queue.bytes) == (count, (count - 1) * 1000 + 1)
    assert next(iter(queue)).number == 1, "what it holds is read when it is asked for"
    rest = backlog.after(1, count - 1)
    assert ([part.number for part in rest], rest.bytes) == ([count], 1000)


def test_a_position_counts_only_when_everything_up_to_it_is_read(log_on_disk: ChangeLog) -> None:
    log = log_on_disk
    paused_for_long(log, READ_AT_ONCE + 1)
    backlog = reading(log)
    assert backlog.position == Lsn(0)
    steps = []
    for _ in range(2):
        list(backlog.read())
        steps.append((backlog.complete, backlog.position == log.position()))
    assert steps == [(False, False), (True, True)]


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        raise NotImplementedError


def test_applied_manifests_stay_for_readers_of_events(log: ChangeLog) -> None:
    clock = Hand()
    backlog = Backlog(log.reopened(), clock, Retention(60, 1_000_000, clock))
    backlog.begin()
    for _ in range(4):
        publish(log, 1)
    list(backlog.read())
    backlog.retire(2)
    assert not backlog.has_retired()
    clock.seconds += 30
    backlog.retire(4)
    assert not backlog.has_retired()
    clock.seconds += 31
    backlog.retire(4)
    assert backlog.has_retired()
    backlog.delete()
    assert log.reopened().oldest() == 3
    clock.seconds += 30
    backlog.retire(4)
    backlog.delete()
    assert log.reopened().oldest() == 4  # the last one always stays


def test_applied_manifests_stay_only_as_long_as_there_is_room(log: ChangeLog) -> None:
    clock = Hand()
    backlog = Backlog(log.reopened(), clock, Retention(60, 3, clock))
    backlog.begin()
    for _ in range(6):
        publish(log, 1)
    list(backlog.read())
    backlog.retire(2)
    backlog.delete()
    # Four bytes wait for their table, so no room is left for what is applied.
    assert log.reopened().oldest() == 3
    backlog.retire(5)
    backlog.delete()
    assert log.reopened().oldest() == 4


def test_changes_of_a_partition_that_can_not_be_read_count_as_later_ones(log: ChangeLog) -> None:
    """So the table is re-copied, and the damage stops the one whose changes they are, not the group."""
    missing = Segment("segments/1/missing.parquet", 1, 1, 1, 1, 0, 0, 0, 0, leaves=(9,))
    log.publish(Lsn(200), 1, datetime(2024, 1, 1, tzinfo=UTC), {1: ManifestEntry(1, "t1", (missing,))})
    backlog = reading(log)
    list(backlog.read())
    assert backlog.captured_as_partition(9, Lsn(0))
    assert not backlog.captured_as_partition(8, Lsn(0))
