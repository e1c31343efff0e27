"""Concurrent reading, decoding, writing and publishing: waits, and the state after errors."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from capture_worker import RunningPump
from capturing import CapturedGroup
from changelogs import directory_of
from servers import Database
from waiting import wait_until
from wal2lake import faults
from wal2lake.capture import pipeline as pipeline_module
from wal2lake.capture import replication as session_module
from wal2lake.capture.report import CaptureState
from wal2lake.decode import intake as intake_module
from wal2lake.position import Lsn


@pytest.fixture
def captured(database: Database, tmp_path: Path) -> CapturedGroup:
    group = CapturedGroup(database, tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
    group.begin("public.t", "public.u").close()
    return group


class Gate:
    """Stops whoever gets to a named point until it is opened."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, point: str) -> None:
        if point == self._point:
            self.reached.set()
            assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(faults.SEGMENT_WRITTEN)
    monkeypatch.setattr(faults, "reached", made)
    yield made
    made.open()


def written_so_far(captured: CapturedGroup) -> Lsn:
    return Lsn.parse(captured.database.value("SELECT pg_current_wal_insert_lsn()::text"))


def test_reading_goes_on_while_a_manifest_is_held_up(captured: CapturedGroup, gate: Gate) -> None:
    before = captured.confirmed()
    with RunningPump(captured) as worker:
        captured.database.execute("INSERT INTO t VALUES (0, 'held up')")
        assert gate.reached.wait(30)
        begun = written_so_far(captured)
        captured.database.execute("INSERT INTO t SELECT i, repeat('x', 900) FROM generate_series(1, 20000) i")
        captured.database.execute("INSERT INTO u SELECT generate_series(1, 10); INSERT INTO t VALUES (20001, 'last')")
        end = written_so_far(captured)
        report = worker.wait_for(lambda report: report.received_lsn >= end - 1000)
        assert report.manifest == 0 and report.logged_lsn <= begun
        assert captured.confirmed() <= begun and captured.log.last() is None
        gate.open()
        worker.catch_up()
    assert captured.confirmed() > before
    assert [row["id"] for row in captured.changes("public.t")] == list(range(20002))
    assert [row["id"] for row in captured.changes("public.u")] == list(range(1, 11))


def test_manifests_come_in_the_order_of_the_stream_however_large_they_are(
    captured: CapturedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[int] = []
    with RunningPump(captured) as worker:
        for turn in range(6):
            # A large one is still being written when the small one after it could be published.
            rows = 8000 if turn % 2 == 0 else 1
            captured.database.execute(
                f"INSERT INTO t SELECT {turn * 10000} + i, repeat('x', 800) FROM generate_series(1, {rows}) i"
            )
            worker.request_flush()
        worker.catch_up()
        reported += [report.manifest for report in worker.reports]
    manifests = captured.log.after(0)
    assert [m.number for m in manifests] == list(range(1, len(manifests) + 1))
    assert reported == sorted(reported) and reported[-1] == len(manifests)
    rows_of = [row["id"] for row in captured.changes("public.t")]
    assert rows_of == sorted(rows_of) and len(rows_of) == 3 * 8000 + 3


def test_a_complete_transaction_is_published_though_a_large_one_is_arriving(
    captured: CapturedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "SLICE_BYTES", 64 * 1024)
    captured.database.execute("INSERT INTO t VALUES (0, 'small')")
    captured.database.execute("INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i")
    captured.database.execute("INSERT INTO t VALUES (20001, 'small')")
    with RunningPump(captured) as worker:
        worker.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == list(range(20002))
    for manifest in captured.log.after(0):
        rows = sum(segment.rows for cut in manifest.tables.values() for segment in cut.segments)
        assert rows in (1, 2, 20000, 20001, 20002), "a part of a transaction was published"


def test_reading_that_waits_for_room_goes_on_by_itself(
    captured: CapturedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "MOST_BYTES", 1)
    monkeypatch.setattr(intake_module, "SLICE_BYTES", 256 * 1024)
    for turn in range(4):
        captured.database.execute(
            f"INSERT INTO t SELECT {turn * 5000} + i, repeat('x', 500) FROM generate_series(1, 5000) i"
        )
    with RunningPump(captured) as worker:
        worker.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == list(range(1, 20001))


def test_an_error_while_segments_are_written_loses_nothing(
    captured: CapturedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = directory_of(captured.log) / "segments" / str(captured.oid("t"))
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("a file where a directory belongs")
    before = captured.confirmed()
    with RunningPump(captured) as worker:
        captured.database.execute("INSERT INTO u VALUES (1); INSERT INTO t VALUES (1, 'x'); INSERT INTO u VALUES (2)")
        worker.wait_for(lambda report: report.error is not None)
        assert captured.confirmed() == before and captured.log.last() is None
        in_the_way.unlink()
        assert worker.catch_up().error is None
    assert [row["id"] for row in captured.changes("public.t")] == [1]
    assert [row["id"] for row in captured.changes("public.u")] == [1, 2]


def test_an_error_before_a_manifest_holds_back_the_manifests_after_it(
    captured: CapturedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(28, "No space left on device")])

    def reached(point: str) -> None:
        if point == faults.SEGMENT_WRITTEN and (error := next(failures, None)) is not None:
            # Others are asked for meanwhile.
            captured.database.execute("INSERT INTO t VALUES (2, 'x')")
            worker.request_flush()
            wait_until(lambda: worker.reports[-1].received_lsn >= written_so_far(captured) - 200, 20, "it to be read")
            raise error

    monkeypatch.setattr(faults, "reached", reached)
    with RunningPump(captured) as worker:
        captured.database.execute("INSERT INTO t VALUES (1, 'x')")
        report = worker.wait_for(lambda report: report.error is not None)
        assert report.state is CaptureState.RECONNECTING and "No space left" in str(report.error)
        worker.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == [1, 2]
    named = {s.file for m in captured.log.after(0) for cut in m.tables.values() for s in cut.segments}
    assert len(list(directory_of(captured.log).rglob("*.parquet"))) == len(named)


def test_a_permanent_error_is_reported_all_the_time_and_retried_with_backoff(
    captured: CapturedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    full = [True]

    def reached(point: str) -> None:
        if point == faults.SEGMENT_WRITTEN and full[0]:
            attempts.append(time.monotonic())
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(faults, "reached", reached)
    monkeypatch.setattr(random, "random", lambda: 0.0)
    with RunningPump(captured) as worker:
        captured.database.execute("INSERT INTO t VALUES (1, 'x')")
        wait_until(lambda: len(attempts) >= 4, 30, "four attempts")
        gaps = [later - earlier for earlier, later in pairwise(attempts)]
        assert gaps[0] >= 0.5 and gaps[1] >= 1 and gaps[2] >= 2, gaps
        errors = [report.error for report in worker.reports]
        first = next(number for number, error in enumerate(errors) if error is not None)
        assert all(error is not None for error in errors[first:])
        full[0] = False
        assert worker.catch_up().error is None
    assert [row["id"] for row in captured.changes("public.t")] == [1]


def test_a_stop_that_can_not_publish_in_time_ends_all_the_same_and_loses_nothing(
    captured: CapturedGroup, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "STOP_SECONDS", 0.2)
    with RunningPump(captured) as worker:
        captured.database.execute("INSERT INTO t VALUES (1, 'x')")
        assert gate.reached.wait(30)
        threading.Timer(1.0, gate.open).start()
    assert worker.reports[-1].state is CaptureState.STOPPED and worker.reports[-1].manifest == 0
    with RunningPump(captured) as worker:
        worker.catch_up()
    assert [row["id"] for row in captured.changes("public.t")] == [1]
