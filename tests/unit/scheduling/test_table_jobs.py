"""The queue for workers: the table that has waited longest is first."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from waiting import wait_until
from wal2lake.executor import SYSTEM_EXECUTOR
from wal2lake.lake.model import Applied
from wal2lake.position import Lsn
from wal2lake.reconcile.table_runtime import TableRuntime
from wal2lake.scheduling.worker_pool import TableJobs, WorkerSlots, apply_workers, outcome
from wal2lake.schema import ReplicaIdentity, TableId, TableSchema
from wal2lake.state import TableRecord
from wal2lake.state.lifecycle import TableState


def table(oid: int) -> TableRuntime:
    schema = TableSchema(oid, TableId("public", f"t{oid}"), (), (), ReplicaIdentity.DEFAULT)
    return TableRuntime(schema, TableRecord("g", oid, schema.id, TableState.STREAMING))


A, B, C = table(1), table(2), table(3)
RESULT = Applied(Lsn(1), 1, 1, 1, A.schema)


@pytest.fixture
def applies() -> Iterator[TableJobs]:
    made = TableJobs(WorkerSlots("apply", 2, SYSTEM_EXECUTOR), lambda: None, SYSTEM_EXECUTOR)
    yield made
    made.close()


def work(applies: TableJobs, each: TableRuntime) -> None:
    applies.start(each, lambda: RESULT)
    wait_until(lambda: each.job is not None and each.job.done(), 5, "the work is done")


def ended(applies: TableJobs, count: int) -> list[TableRuntime]:
    seen: list[TableRuntime] = []

    def enough() -> bool:
        seen.extend(applies.ended())
        return len(seen) == count

    wait_until(enough, 5, lambda: seen)
    return seen


def test_whoever_waits_longest_goes_first(applies: TableJobs) -> None:
    for each in (B, A, C, A):
        applies.enqueue(each)
    assert [applies.next(), applies.next(), applies.next(), applies.next()] == [B, A, C, None]


def test_a_table_with_more_goes_to_the_end_of_the_line(applies: TableJobs) -> None:
    for each in (A, B):
        applies.enqueue(each)
    first = applies.next()
    assert first is A
    applies.enqueue(A)
    assert [applies.next(), applies.next()] == [B, A]


def test_a_table_that_is_begun_out_of_turn_holds_up_none_of_the_others(applies: TableJobs) -> None:
    for each in (A, B, C):
        applies.enqueue(each)
    work(applies, A)
    ended(applies, 1)
    applies.enqueue(A)
    assert [applies.next(), applies.next(), applies.next(), applies.next()] == [B, C, A, None]


def test_no_callback_is_called_while_all_workers_are_busy(applies: TableJobs) -> None:
    hold = threading.Event()
    for each in (A, B):
        applies.start(each, lambda: (hold.wait(5), RESULT)[1])
    applies.enqueue(C)
    try:
        assert applies.next() is None and not applies.idle
    finally:
        hold.set()
    assert {each.name for each in ended(applies, 2)} == {A.name, B.name}
    assert applies.next() is C
    assert applies.idle


def test_a_worker_is_free_again_after_work_that_failed(applies: TableJobs) -> None:
    def fail() -> Applied:
        raise ValueError("broken")

    for _ in range(3):
        applies.start(A, fail)
        assert ended(applies, 1) == [A]
        assert A.job is not None and isinstance(outcome(A.job), ValueError)
    assert applies.idle


def test_an_outcome_is_the_record_that_was_written(applies: TableJobs) -> None:
    work(applies, A)
    assert A.job is not None and outcome(A.job) == RESULT


@pytest.mark.parametrize(
    ("master", "count"),
    [("local", 2), ("local[1]", 2), ("local[16]", 16), ("local[8,3]", 8), ("spark://host:7077", 8), ("yarn", 8)],
)
def test_there_is_a_worker_for_each_core_of_the_driver(master: str, count: int) -> None:
    assert apply_workers(master) == count
