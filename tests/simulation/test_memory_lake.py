"""The lake in memory keeps the contract of the lake: records and epochs fence, versions roll back, faults are injected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lake_history import History, Row, multiset
from simulation.memory_lake import Call, MemoryLake
from wal2lake.errors import (
    CommitFailed,
    CommitUnknown,
    CopyNeeded,
    ForeignTable,
    LakeInconsistent,
    LakeRolledBack,
    LakeTableGone,
    RowsNotKept,
    SparkLost,
)
from wal2lake.lake import Applied, Exchange, Into, LakeTables
from wal2lake.position import Lsn
from wal2lake.schema import Bounds, Column, HeapFile, ReplicaIdentity, TableId, TableSchema
from wal2lake.source.model import CopySource, ExportedSnapshot
from wal2lake.types import LakeType

INT, TEXT = LakeType.parse("int"), LakeType.parse("string")
COLUMNS = (
    Column("id", 23, -1, "integer", INT, attnum=1),
    Column("v", 25, -1, "text", TEXT, attnum=2),
    Column("d", 701, -1, "double precision", LakeType.parse("double"), attnum=3),
)
NAME, OTHER = TableId("public", "t"), TableId("public", "other")
KEYED = TableSchema(1, NAME, COLUMNS, ("id",), ReplicaIdentity.DEFAULT)
WHOLE = replace(KEYED, key=(), identity=ReplicaIdentity.FULL)
SOURCE = "7/5/1"


def row(id: int, v: str | None = "v", d: float | None = None) -> Row:
    return {"id": id, "v": v, "d": d}


def leaf(oid: int, low: int) -> HeapFile:
    return HeapFile(
        oid, oid, bounds=Bounds(f"((id IS NOT NULL) AND (id >= {low}) AND (id < {low + 10}))", (("id", 1),))
    )


ONE, TWO = leaf(11, 0), leaf(12, 10)
PARTED = replace(KEYED, partitioned=True, heaps=(ONE, TWO))


class Mirror:
    """One table of a source, and the lake that it goes to."""

    def __init__(self, path: Path, schema: TableSchema, rows: list[Row]) -> None:
        self.source_rows, self.calls, self.faults = rows, list[Call](), dict[tuple[str, bool], Exception]()
        self.lake = MemoryLake(lambda *_: self.source_rows, self._hook)
        lake: LakeTables = self.lake
        lake.start()
        self.history = History(schema, path, list(rows))
        self.applied = self.copy(schema)
        self.history.lsn = self.applied.lsn
        self.number = 0

    def _hook(self, call: Call) -> None:
        self.calls.append(call)
        if (fault := self.faults.pop((call.method, call.done), None)) is not None:
            raise fault

    def copy(self, schema: TableSchema, into: Into | None = None, epoch: int = 0) -> Applied:
        source = CopySource(schema, (), (), "", {})
        return self.lake.copy(source, ExportedSnapshot("s", Lsn(100)), SOURCE, 0, lambda _: None, into, epoch)

    def flush(self, epoch: int = 0) -> None:
        self.number += 1
        self.applied = self.lake.apply(self.applied, self.history.batch(self.number), SOURCE, epoch)
        self.equal()

    def equal(self) -> None:
        assert multiset(self.lake.rows(NAME)) == multiset(self.history.rows)


Make = Callable[..., Mirror]


@pytest.fixture
def mirror(tmp_path: Path) -> Make:
    def make(schema: TableSchema = KEYED, *rows: Row) -> Mirror:
        return Mirror(tmp_path, schema, list(rows))

    return make


def test_a_key_that_changes_takes_the_values_that_were_not_sent_with_it(mirror: Make) -> None:
    m = mirror(KEYED, row(1, "large"), row(2))
    m.history.update(row(1, "large"), row(3, "large", 1.0), ["v"])
    m.history.update(row(3, "large", 1.0), row(4, "large", 2.0), ["v"])
    m.history.update(row(2), row(1))
    m.history.insert(row(2, "new"))
    m.flush()
    assert m.applied.changes == 4 and m.applied.rows == 3


def test_rows_without_a_key_are_counted_and_compared_exactly(mirror: Make) -> None:
    m = mirror(WHOLE, row(1), row(1), row(1, d=0.0), row(1, d=-0.0), row(1, d=float("nan")))
    m.history.delete(row(1))
    m.history.delete(row(1, d=-0.0))
    m.history.delete(row(1, d=float("nan")))
    m.flush()
    m.history.delete(row(1))
    m.history.rows.append(row(9))
    m.history.delete(row(9))
    with pytest.raises(LakeInconsistent):
        m.flush()


@pytest.mark.parametrize("change", ["insert", "delete", "update"])
def test_a_change_that_was_lost_or_comes_twice_is_found(mirror: Make, change: str) -> None:
    m = mirror(KEYED, row(1))
    m.history.rows = [row(2)]
    if change == "insert":
        m.history.insert(row(1))
    elif change == "delete":
        m.history.delete(row(2))
    else:
        m.history.update(row(2), row(2, "new"))
    with pytest.raises(LakeInconsistent):
        m.flush()


def test_a_batch_is_applied_once_and_only_upon_its_record(mirror: Make) -> None:
    m = mirror(KEYED, row(1))
    m.history.insert(row(2))
    before, batch = m.applied, m.history.batch(1)
    after = m.lake.apply(before, batch, SOURCE, 1)
    assert m.lake.apply(before, batch, SOURCE, 1) == after
    assert m.lake.applied(NAME, SOURCE) == after
    m.history.insert(row(3))
    batch = m.history.batch(2)
    with pytest.raises(CommitFailed):
        m.lake.apply(before, batch, SOURCE, 1)
    with pytest.raises(CommitFailed):
        m.lake.apply(after, batch, SOURCE, 0)
    assert m.lake.apply(after, batch, SOURCE, 2).version > after.version


def test_a_table_that_was_rolled_back_is_known_by_its_version(mirror: Make) -> None:
    m = mirror(KEYED)
    m.history.insert(row(1))
    m.flush()
    assert [len(version.rows) for version in m.lake.history(NAME)] == [0, 1]
    m.lake.roll_back(NAME)
    m.history.insert(row(2))
    with pytest.raises(LakeRolledBack):
        m.flush()
    assert m.lake.rows(NAME) == []


def test_an_error_before_the_work_leaves_nothing_and_one_after_it_leaves_all(mirror: Make) -> None:
    m = mirror(KEYED)
    m.history.insert(row(1))
    batch = m.history.batch(1)
    m.faults["apply", False] = SparkLost(cause="it died")
    with pytest.raises(SparkLost):
        m.lake.apply(m.applied, batch, SOURCE)
    assert m.lake.rows(NAME) == []
    m.faults["apply", True] = CommitUnknown(table="t", cause="no answer")
    with pytest.raises(CommitUnknown):
        m.lake.apply(m.applied, batch, SOURCE)
    m.equal()
    m.lake.apply(m.applied, batch, SOURCE)
    m.equal()


def test_work_fails_while_the_lake_is_down_and_maintenance_is_only_put_off(mirror: Make) -> None:
    m = mirror(KEYED)
    m.lake.crash()
    assert (m.lake.ready, m.lake.starts) == (False, 1)
    assert m.lake.maintain(m.applied, SOURCE) == m.applied
    with pytest.raises(SparkLost):
        m.lake.applied(NAME, SOURCE)
    m.lake.restart()
    assert (m.lake.ready, m.lake.starts) == (True, 2)
    assert m.lake.applied(NAME, SOURCE) == m.applied


def test_truncations_empty_the_table_or_one_partition_at_their_place_in_the_order(mirror: Make) -> None:
    m = mirror(PARTED, row(1), row(2), row(11))
    m.history.insert(row(3), ONE.oid)
    assert ONE.bounds is not None and TWO.bounds is not None
    m.history.truncate(ONE.oid, ONE.bounds.text, lambda found: found["id"] < 10)
    m.history.insert(row(4), ONE.oid)
    m.flush()
    assert sorted(found["id"] for found in m.lake.rows(NAME)) == [4, 11]
    m.history.truncate()
    m.history.insert(row(12), TWO.oid)
    m.history.truncate(TWO.oid, None, lambda found: found["id"] >= 10)
    m.history.insert(row(5), ONE.oid)
    m.flush()
    m.history.truncate(ONE.oid, "(hash(id) = 1)", lambda _: False)
    with pytest.raises(CopyNeeded):
        m.flush()


def test_columns_come_with_their_default_and_follow_their_numbers(mirror: Make) -> None:
    m = mirror(KEYED, row(1))
    renamed = replace(COLUMNS[1], name="w")
    added = Column("n", 23, -1, "integer", INT, attnum=4, missing="7")
    schema = replace(KEYED, columns=(COLUMNS[0], renamed, added))
    m.history.insert(row(2, "two"))
    batch = replace(m.history.batch(1), schema=schema, written={1: KEYED})
    after = m.lake.apply(m.applied, batch, SOURCE)
    assert m.lake.rows(NAME) == [{"id": 1, "w": "v", "n": 7}, {"id": 2, "w": "two", "n": 7}]
    assert (after.schema, after.version.commit) == (schema, m.applied.version.commit + 2)
    assert m.lake.evolve(after, schema, SOURCE) == after


def test_a_partition_is_exchanged_within_its_bounds(mirror: Make) -> None:
    m = mirror(PARTED, row(1), row(11), row(12))
    m.source_rows = [row(13, "new")]
    what = Exchange((TWO,), ("((`id` IS NOT NULL) AND (`id` >= 10L) AND (`id` < 20L))",), frozenset({TWO.oid}))
    source, snapshot = CopySource(replace(PARTED, heaps=(TWO,)), (), (), "", {}), ExportedSnapshot("s", Lsn(500))
    after = m.lake.exchange(m.applied, source, snapshot, what, PARTED, SOURCE)
    assert m.lake.rows(NAME) == [row(1), row(13, "new")] and after.lsn == 500
    with pytest.raises(CommitFailed):
        m.lake.exchange(m.applied, source, snapshot, what, PARTED, SOURCE)


def test_a_copy_keeps_rows_of_dropped_partitions_if_requested(mirror: Make) -> None:
    m = mirror(PARTED, row(1), row(11))
    m.source_rows = [row(2)]
    kept = m.copy(replace(PARTED, heaps=(ONE,)), Into(NAME, keep=True))
    assert m.lake.rows(NAME) == [row(2), row(11)] and kept.schema.archived == (TWO.bounds,)
    m.copy(replace(PARTED, heaps=(ONE,)), Into(NAME))
    assert m.lake.rows(NAME) == [row(2)]
    m.copy(PARTED, Into(NAME))
    with pytest.raises(RowsNotKept):
        m.copy(replace(PARTED, heaps=(replace(ONE, bounds=None),)), Into(NAME, keep=True))


def test_a_copy_goes_on_with_the_versions_of_the_table_and_may_leave_its_rows(mirror: Make) -> None:
    m = mirror(KEYED, row(1))
    again = m.copy(KEYED, Into(NAME, rows=False, least=9), epoch=3)
    assert m.lake.rows(NAME) == [row(1)] and (again.version.epoch, again.version.commit) == (3, 9)
    stated = m.lake.restate(replace(again, lsn=Lsn(900), manifest=4), SOURCE, 3)
    assert (stated.lsn, stated.manifest, stated.version.commit) == (900, 4, 10)


def test_names_are_fenced_by_the_source_table(mirror: Make) -> None:
    m = mirror(KEYED, row(1))
    m.lake.put_foreign(OTHER)
    for refused in (m.lake.holder, m.lake.drop):
        with pytest.raises(ForeignTable):
            refused(OTHER)
    with pytest.raises(ForeignTable):
        m.lake.rename(SOURCE, [NAME], OTHER)
    third = TableId("public", "third")
    renamed = m.lake.rename(SOURCE, [NAME], third)
    assert renamed is not None and renamed.schema.id == third and m.lake.holder(third) == SOURCE
    assert m.lake.rename(SOURCE, [NAME], third) == renamed
    with pytest.raises(LakeTableGone):
        m.lake.restate(m.applied, SOURCE)
    with pytest.raises(ForeignTable):
        m.lake.drop(third, "7/5/2")
    m.lake.drop(third, SOURCE)
    m.lake.drop(third, SOURCE)
    assert m.lake.tables() == {OTHER} and m.lake.applied(third, SOURCE) is None


def test_maintenance_is_due_after_some_commits_and_makes_no_version(mirror: Make) -> None:
    m = mirror(KEYED)
    while m.lake.due(m.applied) is None:
        m.history.insert(row(m.number))
        m.flush()
    after = m.lake.maintain(m.applied, SOURCE)
    assert m.lake.due(after) is None and after == m.applied and after.version == m.applied.version
