import ast
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from table_runtimes import NOON, SCHEMA, applied, copied, manifest, run
from wal2lake.errors import Advice, ErrorKind, LakeRolledBack
from wal2lake.position import LakeVersion, Lsn
from wal2lake.reconcile import table_runtime
from wal2lake.reconcile.table_runtime import TableRuntime
from wal2lake.schema import TableId
from wal2lake.state.events import IllegalTransition
from wal2lake.state.lifecycle import Errored, Retry, TableState

TRANSIENT = Advice(ErrorKind.TRANSIENT, "broken", "wait")
ROLLED_BACK = LakeRolledBack(table="public.t", known="0/2", lsn="0/1")


def test_the_state_of_a_table_is_changed_by_its_own_methods_alone() -> None:
    sources = Path(table_runtime.__file__).parents[1]
    assigned = [
        f"{path.relative_to(sources)}:{target.lineno} {ast.unparse(target)}"
        for package in ("reconcile", "scheduling")
        for path in sorted((sources / package).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for given in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in (given.elts if isinstance(given, ast.Tuple) else [given])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "table"
    ]
    assert assigned == []


def test_a_copy_that_is_requested_during_an_apply_stays_requested() -> None:
    table = copied()
    table.start(Future())
    table.request_copy(NOON)
    table.end_job()
    table.finish(applied(1), [])
    assert table.resync and table.copy_requested_at == NOON
    table.begin_copy(1)
    table.request_copy(NOON + timedelta(seconds=1))
    assert (table.copying_for, table.copy_requested_at) == (NOON, NOON + timedelta(seconds=1))


def test_a_rename_that_failed_is_retried_after_a_copy() -> None:
    """Otherwise its readers find it under a former name, or a temporary one, for as long as the run lasts."""
    table = copied()
    table.set_rename(TableId("public", "renamed"))
    table.not_renamed()
    table.request_copy(NOON)
    table.begin_copy(1)
    assert table.rename_failed
    table.finish(applied(1), [])
    assert (table.renaming, table.rename_failed) == (TableId("public", "renamed"), False)


def test_a_copy_leads_from_pending_to_catchup() -> None:
    table = run()
    table.request_copy()
    table.begin_copy(3)
    assert (table.state, table.held, table.resync) == (TableState.SNAPSHOT, 3, False)
    table.finish(applied(3), [manifest(2), manifest(5), manifest(6)])
    assert (table.state, table.held, table.waiting) == (TableState.CATCHUP, None, 5)
    assert table.record.behind_since == NOON + timedelta(seconds=5)


def test_a_manifest_without_the_table_makes_nothing_wait() -> None:
    table = copied()
    table.note_manifest(manifest(1, oid=8))
    assert (table.waiting, table.record.behind_since) == (None, None)


def test_what_waits_first_says_how_far_behind_the_table_is() -> None:
    table = copied()
    table.note_manifest(manifest(1))
    table.note_manifest(manifest(2))
    assert (table.waiting, table.record.behind_since) == (1, NOON + timedelta(seconds=1))
    table.finish(applied(2), [manifest(1), manifest(2)])
    assert (table.waiting, table.record.behind_since) == (None, None)


def test_a_table_holds_the_manifests_that_it_still_needs() -> None:
    table = copied()
    assert table.done_with(9) == 9
    table.note_manifest(manifest(4))
    assert table.done_with(9) == 3
    table.fail(TRANSIENT)
    assert table.done_with(9) == 3
    table.request_copy()
    table.done_with(9)
    store(table)
    assert table.done_with(9) == 9
    table.begin_copy(6)
    assert table.done_with(9) == 6


def store(table: TableRuntime) -> None:
    """A table is saved in the state store."""
    table.saved(table.record, table.applied.manifest if table.applied is not None else 0)


def test_a_table_lets_manifests_go_only_when_the_state_store_knows_the_version_that_has_them() -> None:
    table = copied()
    store(table)
    for number in (4, 5):
        table.note_manifest(manifest(number))
    table.finish(replace(applied(5), version=LakeVersion(1, 2)), [])
    assert table.done_with(9) == 0
    assert not table.is_idle
    store(table)
    assert table.done_with(9) == 9


def test_a_table_gives_its_changes_up_only_when_the_state_store_knows_that_it_needs_a_copy() -> None:
    table = copied()
    table.finish(replace(applied(3), version=LakeVersion(1, 2)), [])
    store(table)
    table.note_manifest(manifest(4))
    table.position_unusable(ROLLED_BACK, only_copy_helps=True)
    assert table.done_with(9) == 3
    assert table.record.version > LakeVersion(1, 2), "no version that the lake has will do"
    store(table)
    assert table.done_with(9) == 9


def test_a_table_that_the_lake_did_not_answer_for_holds_everything() -> None:
    table = run()
    table.fail(TRANSIENT)
    assert table.done_with(9) == 0
    table.position_unusable(ROLLED_BACK, only_copy_helps=True)
    table.done_with(9)
    store(table)
    assert table.done_with(9) == 9


def test_a_failed_copy_is_what_is_tried_again() -> None:
    table = run()
    table.begin_copy(1)
    table.fail(TRANSIENT)
    assert (table.state, table.needs_copy, table.applied) == (TableState.ERRORED, True, None)
    assert isinstance(table.life, Errored) and table.life.retry is Retry.COPY
    store(table)
    assert table.done_with(9) == 9


def test_a_failed_apply_keeps_its_place() -> None:
    table = copied()
    table.note_manifest(manifest(1))
    table.fail(TRANSIENT)
    assert (table.needs_copy, table.waiting, table.applied) == (False, 1, applied())


def test_failures_in_a_row_wait_longer_and_success_forgets_them() -> None:
    table = copied()
    waits = []
    for _ in range(3):
        table.fail(TRANSIENT)
        assert table.record.retry_at is not None
        waits.append((table.record.retry_at - datetime.now(UTC)).total_seconds())
    assert all(0.79 * full < wait <= full for wait, full in zip(waits, (30, 60, 120), strict=True)), waits
    assert not table.retry_due(datetime.now(UTC))
    assert table.retry_due(datetime.now(UTC) + timedelta(seconds=121))
    table.found(applied(), [])
    assert (table.record.failures, table.record.retry_at, table.record.error) == (3, None, None)
    table.finish(applied(1), [])
    assert (table.record.failures, table.record.retry_at, table.record.error) == (0, None, None)


def test_an_abandoned_copy_is_pending_again() -> None:
    table = run()
    table.begin_copy(1)
    table.abandon()
    assert (table.state, table.resync, table.held) == (TableState.PENDING, True, None)


def test_a_table_can_not_stream_before_it_was_copied() -> None:
    table = run()
    table.applied = applied()
    with pytest.raises(IllegalTransition, match="caught_up can't happen to a table that is PENDING"):
        table.caught_up(Lsn(0))


def test_only_a_change_makes_a_record_worth_saving() -> None:
    table = run()
    table.set_target(TableId("lake", "t"))
    table.dirty = False
    table.set_target(TableId("lake", "t"))
    assert not table.dirty
    table.set_target(TableId("lake", "other"))
    assert table.dirty


class Noon:
    """A clock that stands still."""

    def now(self) -> datetime:
        return NOON

    def monotonic(self) -> float:
        return 0.0


def test_time_and_chance_come_from_outside() -> None:
    table = TableRuntime(SCHEMA, run(TableState.STREAMING).record, clock=Noon(), jitter=lambda: 1.0)
    table.fail(TRANSIENT)
    assert table.record.retry_at == NOON + timedelta(seconds=24)
    assert [each.at for each in table.transitions] == [NOON]


def test_a_full_disk_is_tried_again_as_soon_as_any_other_first_failure() -> None:
    table = copied()
    table.fail(Advice(ErrorKind.RESOURCE, "no space", "make room"))
    assert table.record.retry_at is not None
    assert table.record.retry_at - datetime.now(UTC) < timedelta(seconds=31)


def test_only_the_first_failure_that_came_with_the_end_of_spark_is_tried_again_at_once() -> None:
    table = copied()
    lost = Advice(ErrorKind.TRANSIENT, "Spark's JVM is gone", "wait", interrupted=True)
    table.fail(lost)
    assert isinstance(table.life, Errored) and table.life.interrupted
    table.fail(lost)
    assert not table.life.interrupted, "a table whose work kills the JVM must not kill the next one at once"
