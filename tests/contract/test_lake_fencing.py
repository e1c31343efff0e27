"""A commit counts only upon the version that it was planned from: a stalled or late writer changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lake_history import History, Snapshot, copied, copy_source, describe, source_id
from servers import Database, fresh_database
from wal2lake import faults
from wal2lake.config import Config
from wal2lake.demo.compare import open_catalog
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import CommitFailed, LakeError, LakeRolledBack
from wal2lake.lake import Applied, Lake
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.position import LakeVersion
from wal2lake.schema import TableSchema


class Table:
    def __init__(self, lake: Lake, rival: Lake, database: Database, path: Path) -> None:
        database.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        self.lake, self.rival, self.path, self.database = lake, rival, path, database
        self.applied = copied(lake, database, "t")
        self.source = source_id(self.applied.schema)
        rows: list[dict[str, object]] = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
        self.history = History(self.applied.schema, path / "_wal2lake" / "segments", rows)
        self.history.lsn = self.applied.lsn + 1000

    def with_another_column(self, default: str = "") -> TableSchema:
        """The source table gets a column; how it looks then."""
        self.database.execute(f"ALTER TABLE t ADD COLUMN n int {default}")
        return describe(self.database, self.applied.schema.id)

    def copy(self, schema: TableSchema) -> Applied:
        """Copy the table as it is now, as a run of epoch 1 does."""
        with Snapshot(self.database) as snapshot:
            return self.lake.copy(
                copy_source(self.database, schema), snapshot, self.source, 0, lambda _: None, epoch=1
            )  # fmt: skip

    @property
    def branches(self) -> set[str]:
        with open_catalog(self.path) as catalog:
            return set(catalog.load_table(("public", "t")).refs())


@pytest.fixture
def table(server: EmbeddedServer, spark: Any, tmp_path: Path) -> Iterator[Table]:
    """A lake table that two processes believe to be theirs."""
    with fresh_database(server) as database:
        config = Config(source={"dsn": database.dsn}, lake={"path": str(tmp_path / "lake")})
        lakes = Lake(config, spark), Lake(config, spark)
        for lake in lakes:
            lake.start()
        yield Table(*lakes, database, tmp_path / "lake")
        for lake in lakes:
            lake.stop()


class Stall:
    """Holds up the first that gets to a named point."""

    def __init__(self, point: str) -> None:
        self._point, self._free, self._first = point, threading.Event(), threading.Lock()
        self.reached = threading.Event()

    def __call__(self, point: str) -> None:
        if point == self._point and self._first.acquire(blocking=False):
            self.reached.set()
            assert self._free.wait(60)

    def end(self) -> None:
        self._free.set()


def _insert(history: History) -> None:
    history.insert({"id": 10, "v": "new"})


def _update(history: History) -> None:
    history.update({"id": 1, "v": "a"}, {"id": 1, "v": "changed"})
    history.insert({"id": 11, "v": "new"})


@pytest.mark.parametrize("change", [_insert, _update], ids=["append", "merge"])
def test_a_stalled_writer_adds_nothing_to_what_another_has_applied(
    table: Table, change: Callable[[History], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stall = Stall(faults.LAKE_STAGED)
    monkeypatch.setattr(faults, "reached", stall)
    change(table.history)
    batch = table.history.batch(1)
    with ThreadPoolExecutor(1) as pool:
        stalled = pool.submit(table.lake.apply, table.applied, batch, table.source, 1)
        try:
            assert stall.reached.wait(60)
            applied = table.rival.apply(table.applied, batch, table.source, 2)
        finally:
            stall.end()
        assert stalled.result(60).version == applied.version == LakeVersion(2, table.applied.version.commit + 1)
    table.history.assert_in(table.path)
    assert table.branches == {"main"}


def test_a_stalled_writer_does_not_bring_back_what_another_has_deleted(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one applies more at once: an insert and its deletion, which together add no file."""
    stall = Stall(faults.LAKE_STAGED)
    monkeypatch.setattr(faults, "reached", stall)
    table.history.insert({"id": 10, "v": "new"})
    insert = table.history.batch(1)
    table.history.delete({"id": 10, "v": "new"})
    delete = table.history.batch(2)
    both = replace(delete, segments=(*insert.segments, *delete.segments))
    with ThreadPoolExecutor(1) as pool:
        stalled = pool.submit(table.lake.apply, table.applied, insert, table.source, 1)
        try:
            assert stall.reached.wait(60)
            table.rival.apply(table.applied, both, table.source, 2)
        finally:
            stall.end()
        assert stalled.result(60).version.epoch == 2
    table.history.assert_in(table.path)


def test_an_older_epoch_can_not_commit(table: Table) -> None:
    _insert(table.history)
    applied = table.rival.apply(table.applied, table.history.batch(1), table.source, 2)
    table.history.insert({"id": 12, "v": "later"})
    batch = table.history.batch(2)
    with pytest.raises(CommitFailed, match="began later"):
        table.lake.apply(applied, batch, table.source, 1)
    table.rival.apply(applied, batch, table.source, 2)
    table.history.assert_in(table.path)


def test_a_commit_that_was_made_before_its_answer_was_lost_is_found(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = IcebergTables.publish

    def lost(self: IcebergTables, *args: Any) -> None:
        publish(self, *args)
        raise ConnectionError

    monkeypatch.setattr(IcebergTables, "publish", lost)
    _insert(table.history)
    applied = table.lake.apply(table.applied, table.history.batch(1), table.source, 1)
    assert applied.manifest == 1
    table.history.assert_in(table.path)


def test_what_a_dead_writer_has_left_is_never_published(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTables, "publish", dies)
        table.history.insert({"id": 10, "v": "new"})
        batch = table.history.batch(1)
        with pytest.raises(LakeError):
            table.lake.apply(table.applied, batch, table.source, 1)
    assert table.branches == {"main"}
    table.lake.apply(table.applied, batch, table.source, 1)
    table.history.assert_in(table.path)
    assert table.branches == {"main"}


def test_an_apply_notices_that_the_table_was_rolled_back(table: Table) -> None:
    applied: Applied = table.applied
    for number in (1, 2):
        table.history.insert({"id": 10 + number, "v": "new"})
        applied = table.lake.apply(applied, table.history.batch(number), table.source, 1)
    table.history.insert({"id": 20, "v": "new"})
    ahead = replace(applied, version=replace(applied.version, commit=applied.version.commit + 1))
    with pytest.raises(LakeRolledBack):
        table.lake.apply(ahead, table.history.batch(3), table.source, 1)


def test_columns_change_only_on_the_version_that_was_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    evolve = IcebergTables.evolve
    _insert(table.history)
    batch = table.history.batch(1)

    def late(self: IcebergTables, *args: Any) -> None:
        monkeypatch.setattr(IcebergTables, "evolve", evolve)
        table.rival.apply(table.applied, batch, table.source, 2)
        evolve(self, *args)

    monkeypatch.setattr(IcebergTables, "evolve", late)
    (first, *rest) = table.applied.schema.columns
    renamed = replace(table.applied.schema, columns=(first, replace(rest[0], name="w")))
    with pytest.raises(CommitFailed):
        table.lake.evolve(table.applied, renamed, table.source, 1)
    now = table.lake.applied(table.applied.schema.id, table.source)
    assert now is not None and now.schema.names == table.applied.schema.names


def _fill(table: Table) -> Applied:
    """Give the rows that are there a value in a new column."""
    return table.lake.evolve(table.applied, table.with_another_column("DEFAULT 7"), table.source, 1)


def _resync(table: Table) -> Applied:
    return table.copy(table.with_another_column())


@pytest.mark.parametrize("replaces", [_fill, _resync], ids=["rewrite", "resync"])
def test_a_late_replacement_with_other_columns_replaces_nothing_newer(
    table: Table, replaces: Callable[[Table], Applied], monkeypatch: pytest.MonkeyPatch
) -> None:
    stall = Stall(faults.LAKE_STAGED)
    monkeypatch.setattr(faults, "reached", stall)
    _insert(table.history)
    with ThreadPoolExecutor(1) as pool:
        stalled = pool.submit(replaces, table)
        try:
            assert stall.reached.wait(60)
            applied = table.rival.apply(table.applied, table.history.batch(1), table.source, 2)
        finally:
            stall.end()
        with pytest.raises(CommitFailed):
            stalled.result(60)
    table.history.assert_in(table.path)
    now = table.rival.applied(table.applied.schema.id, table.source)
    assert now is not None and (now.version, now.schema.names) == (applied.version, table.applied.schema.names)


def _compaction(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Somebody compacts the table when something is staged; whether that has happened."""
    compacted: list[bool] = []

    def meanwhile(point: str) -> None:
        if point == faults.LAKE_STAGED and not compacted:
            compacted.append(True)
            with table.rival._spark.driver.session("a user") as session:
                session.sql(
                    "CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))"
                )

    monkeypatch.setattr(faults, "reached", meanwhile)
    return compacted


@pytest.mark.parametrize("replaces", [_fill, _resync], ids=["rewrite", "resync"])
def test_maintenance_by_others_during_a_replacement_is_no_error(
    table: Table, replaces: Callable[[Table], Applied], monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted = _compaction(table, monkeypatch)
    assert replaces(table).rows == 2
    assert compacted


def test_maintenance_by_others_during_an_apply_is_no_error(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    compacted = _compaction(table, monkeypatch)
    _update(table.history)
    applied = table.lake.apply(table.applied, table.history.batch(1), table.source, 1)
    assert compacted and applied.manifest == 1
    table.history.assert_in(table.path)
