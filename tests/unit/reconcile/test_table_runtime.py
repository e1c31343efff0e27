import ast
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from table_runtimes import NOON, applied, copied, manifest, run
from wal2lake.errors import Advice, Kind
from wal2lake.position import LakeVersion
from wal2lake.reconcile import table_runtime
from wal2lake.reconcile.table_runtime import TableRuntime
from wal2lake.state.lifecycle import TableState

TRANSIENT = Advice(Kind.TRANSIENT, "broken", "wait")


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


def test_a_copy_that_is_asked_for_while_changes_are_applied_is_still_wanted() -> None:
    table = copied()
    table.start(Future())
    table.request_copy(NOON)
    table.end_job()
    table.finish(applied(1), [])
    assert table.resync and table.resync_wanted == NOON
    table.begin_copy(1)
    table.request_copy(NOON + timedelta(seconds=1))
    assert (table.copying_for, table.resync_wanted) == (NOON, NOON + timedelta(seconds=1))


def test_a_copy_leads_from_pending_to_catchup() -> None:
    table = run()
    table.resync = True
    table.begin_copy(3)
    assert (table.state, table.held, table.resync) == (TableState.SNAPSHOT, 3, False)
    table.finish(applied(3), [manifest(2), manifest(5), manifest(6)])
    assert (table.state, table.held, table.waiting) == (TableState.CATCHUP, None, 5)
    assert table.record.behind_since == NOON + timedelta(seconds=5)


def test_a_manifest_without_the_table_makes_nothing_wait() -> None:
    table = copied()
    table.arrive(manifest(1, oid=8))
    assert (table.waiting, table.record.behind_since) == (None, None)


def test_what_waits_first_says_how_far_behind_the_table_is() -> None:
    table = copied()
    table.arrive(manifest(1))
    table.arrive(manifest(2))
    assert (table.waiting, table.record.behind_since) == (1, NOON + timedelta(seconds=1))
    table.finish(applied(2), [manifest(1), manifest(2)])
    assert (table.waiting, table.record.behind_since) == (None, None)


def test_a_table_holds_the_manifests_that_it_still_needs() -> None:
    table = copied()
    assert table.done_with(9) == 9
    table.arrive(manifest(4))
    assert table.done_with(9) == 3
    table.fail(TRANSIENT)
    assert table.done_with(9) == 3
    table.resync = True
    table.done_with(9)
    store(table)
    assert table.done_with(9) == 9
    table.begin_copy(6)
    assert table.done_with(9) == 6


def store(table: TableRuntime) -> None:
    """The state store is told of a table."""
    table.saved(table.record, table.applied.manifest if table.applied is not None else 0)


def test_a_table_lets_manifests_go_only_when_the_state_store_knows_the_version_that_has_them() -> None:
    table = copied()
    store(table)
    for number in (4, 5):
        table.arrive(manifest(number))
    table.finish(replace(applied(5), version=LakeVersion(1, 2)), [])
    assert table.done_with(9) == 0
    assert not table.at_rest
    store(table)
    assert table.done_with(9) == 9


def test_a_table_gives_its_changes_up_only_when_the_state_store_knows_that_it_needs_a_copy() -> None:
    table = copied()
    table.finish(replace(applied(3), version=LakeVersion(1, 2)), [])
    store(table)
    table.arrive(manifest(4))
    table.detached = True
    assert table.done_with(9) == 3
    assert table.record.version > LakeVersion(1, 2), "no version that the lake has will do"
    store(table)
    assert table.done_with(9) == 9


def test_a_table_that_the_lake_did_not_answer_for_holds_everything() -> None:
    table = run()
    table.fail(TRANSIENT)
    assert table.done_with(9) == 0
    table.detached = True
    table.done_with(9)
    store(table)
    assert table.done_with(9) == 9


def test_a_failed_copy_is_what_is_tried_again() -> None:
    table = run()
    table.begin_copy(1)
    table.fail(TRANSIENT)
    assert (table.state, table.copy_failed, table.applied) == (TableState.ERRORED, True, None)
    store(table)
    assert table.done_with(9) == 9


def test_a_failed_apply_keeps_its_place() -> None:
    table = copied()
    table.arrive(manifest(1))
    table.fail(TRANSIENT)
    assert (table.copy_failed, table.waiting, table.applied) == (False, 1, applied())


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
    table.succeed()
    assert (table.record.failures, table.record.retry_at, table.record.error) == (0, None, None)


def test_an_abandoned_copy_is_pending_again() -> None:
    table = run()
    table.begin_copy(1)
    table.abandon()
    assert (table.state, table.resync, table.held) == (TableState.PENDING, True, None)


def test_a_table_can_not_stream_before_it_was_copied() -> None:
    with pytest.raises(AssertionError, match="PENDING can't become STREAMING"):
        run().become(TableState.STREAMING)


def test_only_a_change_makes_a_record_worth_saving() -> None:
    table = run()
    table.dirty = False
    table.update(rows=None)
    assert not table.dirty
    table.update(rows=3)
    assert table.dirty


def test_a_full_disk_is_tried_again_as_soon_as_any_other_first_failure() -> None:
    table = copied()
    table.fail(Advice(Kind.RESOURCE, "no space", "make room"))
    assert table.record.retry_at is not None
    assert table.record.retry_at - datetime.now(UTC) < timedelta(seconds=31)


def test_only_the_first_failure_that_came_with_the_end_of_spark_is_tried_again_at_once() -> None:
    table = copied()
    lost = Advice(Kind.TRANSIENT, "Spark's JVM is gone", "wait", interrupted=True)
    table.fail(lost)
    assert table.interrupted
    table.fail(lost)
    assert not table.interrupted, "a table whose work kills the JVM must not kill the next one at once"
