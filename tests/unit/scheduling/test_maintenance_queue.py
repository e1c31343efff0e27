"""Which lake table is maintained: one that is at rest and due, one at a time."""

from __future__ import annotations

from typing import cast

import pytest

from wal2lake.clock import SYSTEM_CLOCK
from wal2lake.lake import Applied, Lake, Work
from wal2lake.position import Lsn
from wal2lake.reconcile.table_runtime import TableRuntime
from wal2lake.scheduling import maintenance_queue
from wal2lake.scheduling.maintenance_queue import MaintenanceQueue
from wal2lake.schema import ReplicaIdentity, TableId, TableSchema
from wal2lake.state import TableRecord
from wal2lake.state.lifecycle import TableState


class Judge:
    """The one question that is asked of the lake, and of whom it was asked."""

    def __init__(self, *due: int, urgent: bool = False) -> None:
        self.asked: list[int] = []
        self._due, self._work = due, Work(compact=True, expire=False, urgent=urgent)

    def due(self, applied: Applied) -> Work | None:
        self.asked.append(applied.schema.oid)
        return self._work if applied.schema.oid in self._due else None


def table(oid: int) -> TableRuntime:
    schema = TableSchema(oid, TableId("public", f"t{oid}"), (), (), ReplicaIdentity.DEFAULT)
    made = TableRuntime(schema, TableRecord("g", oid, schema.id, TableState.STREAMING))
    made.applied = Applied(Lsn(1), 1, 1, 1, schema)
    return made


def tended_by(judge: Judge) -> MaintenanceQueue:
    return MaintenanceQueue(cast("Lake", judge), SYSTEM_CLOCK)


def test_only_tables_that_have_committed_are_asked_about() -> None:
    judge = Judge(2)
    one, two, three = table(1), table(2), table(3)
    minder = tended_by(judge)
    assert minder.next([one, two, three]) is None
    minder.committed(one)
    minder.committed(two)
    assert minder.next([one, two, three]) is two
    assert judge.asked == [1, 2]


def test_all_are_asked_about_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance_queue, "RELOOK_SECONDS", -1.0)
    one, two = table(1), table(2)
    assert tended_by(Judge(2)).next([one, two]) is two


def test_a_table_for_which_changes_wait_is_left_alone() -> None:
    minder, busy = tended_by(Judge(1)), table(1)
    busy.waiting = 7
    minder.committed(busy)
    assert minder.next([busy]) is None


def test_one_at_a_time() -> None:
    minder, one, two = tended_by(Judge(1, 2, urgent=True)), table(1), table(2)
    assert one.applied is not None and two.applied is not None
    assert minder.urgent(two.applied)
    minder.begin(one)
    minder.committed(two)
    assert minder.next([one, two]) is None
    assert not minder.urgent(two.applied)
    minder.finish(one, one.applied)
    assert minder.next([one, two]) is two


def test_work_that_is_not_urgent_does_not_hold_up_changes() -> None:
    minder, one = tended_by(Judge(1)), table(1)
    assert one.applied is not None
    assert not minder.urgent(one.applied)


def test_changes_come_between_two_pieces_of_urgent_work_for_a_table() -> None:
    minder, one = tended_by(Judge(1, urgent=True)), table(1)
    assert one.applied is not None
    minder.begin(one)
    minder.finish(one, one.applied)
    assert not minder.urgent(one.applied)
    minder.committed(one)
    assert minder.urgent(one.applied)
