"""The storage in memory as simulations use it: errors by call index, before or after the work, and no room."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from changelogs import begun
from wal2lake.changelog import ChangeLog, ManifestEntry, Segment
from wal2lake.changelog.segment import SegmentRows, SegmentWriter
from wal2lake.changelog.storages.memory import Call, Faults, MemoryStorage
from wal2lake.errors import GroupHeld
from wal2lake.position import Lsn

BATCH = pa.record_batch({"id": pa.array(range(1000)), "_commit_lsn": pa.array([150] * 1000)})


def segment(log: ChangeLog) -> Segment:
    writer = SegmentWriter(log, 42, 1, BATCH.schema)
    writer.write(SegmentRows(42, 1, BATCH, 1000, 0, 0, 0, 0))
    return writer.finish()


def publish(log: ChangeLog) -> None:
    log.publish(Lsn(200), 1, None, {42: ManifestEntry(42, "public.t", (segment(log),))})


def test_the_hook_sees_each_call_before_and_after_its_work() -> None:
    seen: list[Call] = []
    storage = MemoryStorage(seen.append)
    group = storage.within("g")
    group.prepare()
    group.put("a", b"1")
    group.get("a")
    assert [(call.index, call.operation, call.name, call.done) for call in seen] == [
        (0, "prepare", "g", False), (0, "prepare", "g", True),
        (1, "put", "g/a", False), (1, "put", "g/a", True),
        (2, "get", "g/a", False), (2, "get", "g/a", True),
    ]  # fmt: skip
    assert storage.calls == group.calls == 3


def test_an_error_before_the_work_leaves_nothing_done_and_comes_once() -> None:
    faults = Faults()
    storage = MemoryStorage(faults)
    storage.prepare()
    faults.before(storage.calls, OSError(errno.EIO, "lost"))
    with pytest.raises(OSError, match="lost"):
        storage.put_new("a", b"1")
    assert storage.get("a") is None
    storage.put_new("a", b"2")
    assert storage.get("a") == b"2"


def test_an_error_after_the_work_reports_a_failure_of_what_was_done() -> None:
    faults = Faults()
    storage = MemoryStorage(faults)
    storage.prepare()
    faults.after(storage.calls, OSError(errno.EIO, "lost"))
    with pytest.raises(OSError, match="lost"):
        storage.put_new("a", b"1")
    with pytest.raises(FileExistsError):
        storage.put_new("a", b"2")
    assert storage.get("a") == b"1"


@pytest.mark.parametrize("after", [False, True])
def test_wherever_publishing_fails_the_log_is_whole_and_goes_on(after: bool) -> None:
    index = 0
    while True:
        faults = Faults()
        storage = MemoryStorage(faults)
        log = begun(storage)
        (faults.after if after else faults.before)(storage.calls + index, OSError(errno.EIO, "lost"))
        try:
            publish(log)
        except OSError:
            index += 1
        else:
            break
        fresh = log.reopened()
        fresh.sweep()
        assert fresh.position() in (Lsn(100), Lsn(200))
        if fresh.position() == Lsn(100):
            assert storage.prefixes("g/segments") == [], "what no manifest names is swept"
            publish(fresh)
        assert [manifest.to_lsn for manifest in log.reopened().after(0)] == [Lsn(200)]
        fresh.verify(fresh.read(1).tables[42].segments[0])
    assert index > 8, "a segment is opened, written and finished, and a manifest put"


def test_a_full_storage_takes_nothing_more_until_there_is_room() -> None:
    storage = MemoryStorage()
    log = begun(storage)
    storage.capacity = 2000
    with pytest.raises(OSError) as raised:
        segment(log)
    assert raised.value.errno == errno.ENOSPC
    assert log.sweep() == 1 and log.position() == Lsn(100)
    storage.capacity = None
    publish(log)
    storage.capacity = 2000
    with pytest.raises(OSError, match="No space"):
        log.record_acknowledged(Lsn(300))
    assert log.reopened().acknowledged() == Lsn(200)


def test_a_hold_that_is_reported_as_failed_is_not_kept() -> None:
    """As in a directory, whose lock ends with the call that fails."""
    faults = Faults()
    storage = MemoryStorage(faults)
    faults.after(storage.calls, OSError(errno.EIO, "lost"))
    with pytest.raises(OSError, match="lost"), storage.held():
        pass
    with storage.held():
        pass


def test_a_crash_of_the_holder_frees_the_log_and_leaves_its_open_segments_as_orphans() -> None:
    storage = MemoryStorage()
    log = begun(storage)
    held = log.held()
    held.__enter__()
    writer = SegmentWriter(log, 42, 1, BATCH.schema)
    writer.write(SegmentRows(42, 1, BATCH, 1000, 0, 0, 0, 0))
    with pytest.raises(GroupHeld), log.reopened().held():
        pass
    storage.within("g").crash()
    with log.reopened().held():
        assert log.reopened().sweep() == 1
    with pytest.raises(ValueError, match="closed"):
        writer.finish()
