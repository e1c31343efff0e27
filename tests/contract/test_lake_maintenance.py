"""Maintenance of a lake table: fewer files and versions, the same rows, the same position record."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lake_history import History, Row, copied, multiset, source_id
from oracle import table_directory
from servers import Database, fresh_database
from wal2lake.config import Config
from wal2lake.demo.server import EmbeddedServer
from wal2lake.lake import Applied, Lake
from wal2lake.lake.maintenance import compaction

SMALL_FILES = 3


class Kept:
    """A mirrored table whose lake is looked after."""

    def __init__(self, lake: Lake, database: Database, path: Path, rows: int = 40) -> None:
        self.lake, self.path = lake, path
        database.execute("CREATE TABLE kept (id bigint PRIMARY KEY, v text, n int)")
        database.execute(f"INSERT INTO kept SELECT i, md5(i::text), 1 FROM generate_series(1, {rows}) i")
        self.applied: Applied = copied(lake, database, "kept")
        self.history = History(
            self.applied.schema, path / "_wal2lake" / "segments", [row(i) for i in range(1, rows + 1)]
        )
        self.history.lsn = self.applied.lsn + 1000
        self._next = rows

    @property
    def source(self) -> str:
        return source_id(self.applied.schema)

    def merge(self, times: int = 1) -> None:
        """Small commits, each with an insert, an update and a delete."""
        for _ in range(times):
            self._next += 1
            self.history.insert(row(self._next))
            oldest, second = self.history.rows[0], self.history.rows[1]
            self.history.update(second, {**second, "n": second["n"] + 1})
            self.history.delete(oldest)
            batch = self.history.batch(self.applied.manifest + 1)
            self.applied = self.lake.apply(self.applied, batch, self.source)

    def maintain(self) -> None:
        """As a worker does it; what the table says of itself is the same afterwards."""
        before = self.applied
        self.applied = self.lake.maintain(before, self.source)
        assert self.applied == before
        assert self.lake.applied(before.schema.id, self.source) == before
        self.history.assert_in(self.path)

    def assert_goes_on(self) -> None:
        self.merge(2)
        self.history.assert_in(self.path)
        assert self.applied.rows == len(self.history.rows)

    @contextmanager
    def reader(self) -> Iterator[Table]:
        """The table as pyiceberg has it."""
        catalog = SqlCatalog("lake", uri=f"sqlite:///{self.path / 'catalog.db'}", warehouse=str(self.path))
        try:
            yield catalog.load_table(("public", "kept"))
        finally:
            catalog.engine.dispose()

    def summary(self) -> dict[str, str]:
        with self.reader() as table:
            current = table.current_snapshot()
            assert current is not None and current.summary is not None
            return dict(current.summary.additional_properties)

    @property
    def data(self) -> Path:
        return table_directory(self.path, "kept") / "data"


def row(id: int) -> Row:
    return {"id": id, "v": hashlib.md5(str(id).encode(), usedforsecurity=False).hexdigest(), "n": 1}


Make = Callable[..., Kept]


@pytest.fixture
def kept(server: EmbeddedServer, spark: Any, tmp_path: Path) -> Iterator[Make]:
    started: list[Lake] = []
    with fresh_database(server) as database:

        def make(properties: dict[str, str] | None = None, rows: int = 40, **settings: Any) -> Kept:
            path = tmp_path / "lake"
            config = Config(
                source={"dsn": database.dsn}, lake={"path": str(path), "properties": properties or {}},
                maintenance={"small_files": SMALL_FILES, **settings},
            )  # fmt: skip
            lake = Lake(config, spark)
            lake.start()
            started.append(lake)
            return Kept(lake, database, path, rows)

        yield make
        for lake in started:
            lake.stop()


def test_small_files_are_joined_and_the_commit_carries_the_record(kept: Make) -> None:
    t = kept()
    t.merge(SMALL_FILES - 2)
    assert t.lake.due(t.applied) is None
    t.merge(3)
    work = t.lake.due(t.applied)
    assert work is not None and work.compact and not work.expire
    before = t.applied.compaction_facts
    t.maintain()
    after = t.applied.compaction_facts
    assert after.data_files == 1 and after.deleted == 0 and after.delete_files == 0, after
    assert before.data_files > SMALL_FILES
    assert t.lake.due(t.applied) is None
    summary = t.summary()
    assert summary["wal2lake.lsn"] == str(t.applied.lsn)
    assert summary["wal2lake.manifest"] == str(t.applied.manifest)
    assert summary["wal2lake.changes"] == str(t.applied.changes)
    t.assert_goes_on()


@pytest.mark.slow
def test_deleted_positions_in_files_that_are_gone_are_dropped_without_vectors(kept: Make) -> None:
    t = kept({"format-version": "2"}, rows=20_000)
    newest: list[Row] = []
    for manifest in range(1, SMALL_FILES + 2):
        # A row of the large file and one of the last small file, which is joined while the large file stays.
        for gone in (t.history.rows[0], *newest):
            t.history.delete(gone)
        kept_row, *newest = (row(100_000 + manifest * 10 + i) for i in range(2))
        t.history.insert(kept_row)
        t.history.insert(newest[0])
        t.applied = t.lake.apply(t.applied, t.history.batch(manifest), t.source)
    assert t.applied.compaction_facts.deleted == 2 * SMALL_FILES + 1
    t.maintain()
    assert (t.applied.compaction_facts.data_files, t.applied.compaction_facts.deleted) == (2, SMALL_FILES + 1)
    t.assert_goes_on()


def test_deleted_rows_are_dropped_when_they_are_many(kept: Make) -> None:
    t = kept(rows=60, small_files=1000)
    for victim in list(t.history.rows[:10]):
        t.history.delete(victim)
    t.applied = t.lake.apply(t.applied, t.history.batch(1), t.source)
    assert t.applied.compaction_facts.deleted == 10 and t.lake.due(t.applied) is None
    for victim in list(t.history.rows[:10]):
        t.history.delete(victim)
    t.applied = t.lake.apply(t.applied, t.history.batch(2), t.source)
    assert t.lake.due(t.applied) is not None
    t.maintain()
    assert (t.applied.compaction_facts.deleted, t.applied.compaction_facts.records) == (0, 40)
    t.assert_goes_on()


def test_old_versions_go_and_those_within_the_retention_stay_readable(kept: Make) -> None:
    t = kept(rows=100, small_files=1000, snapshots_kept=4, snapshot_retention=0)
    t.merge(4)
    assert t.lake.due(t.applied) is None
    t.merge()
    with t.reader() as table:
        versions = [entry.snapshot_id for entry in table.history()]
        expected = [multiset(table.scan(snapshot_id=version).to_arrow().to_pylist()) for version in versions]
    t.maintain()
    assert t.applied.compaction_facts.snapshots == 4
    with t.reader() as table:
        assert [snapshot.snapshot_id for snapshot in table.snapshots()] == versions[-4:]
        for version, rows in list(zip(versions, expected, strict=True))[-4:]:
            assert multiset(table.scan(snapshot_id=version).to_arrow().to_pylist()) == rows
    assert t.lake.due(t.applied) is None
    t.assert_goes_on()


def test_versions_younger_than_the_retention_stay(kept: Make) -> None:
    t = kept(small_files=2, snapshots_kept=1, snapshot_retention=3600)
    t.merge(3)
    t.maintain()
    assert t.applied.compaction_facts.snapshots == 5


@pytest.mark.slow
def test_vectors_that_share_a_file_survive_the_expiry_of_the_version_that_replaced_one(kept: Make) -> None:
    t = kept(small_files=1000, snapshots_kept=1, snapshot_retention=0)
    t.history.insert(row(100))
    t.history.insert(row(101))
    t.applied = t.lake.apply(t.applied, t.history.batch(1), t.source)
    # One task deletes from both files, so their vectors are in one file; then one of the two is replaced.
    for manifest, gone in ((2, (1, 100)), (3, (2,)), (4, (3,))):
        for id in gone:
            t.history.delete(row(id))
        t.history.insert(row(200 + manifest))
        t.applied = t.lake.apply(t.applied, t.history.batch(manifest), t.source)
    t.maintain()
    assert t.applied.compaction_facts.snapshots == 1
    t.assert_goes_on()


def test_the_record_is_kept_when_a_version_without_one_is_on_top_of_it(kept: Make, spark: Any) -> None:
    t = kept(small_files=1000, snapshots_kept=1, snapshot_retention=0)
    t.merge(3)
    with t.lake._spark.driver.session("somebody's own maintenance") as session:
        session.sql(
            "CALL lake.system.rewrite_data_files(table => 'public.kept', options => map('rewrite-all', 'true'))"
        )
    found = t.lake.applied(t.applied.schema.id, t.source)
    assert found == t.applied
    t.applied = found
    assert t.lake.due(t.applied) is not None
    t.maintain()
    assert "wal2lake.lsn" not in t.summary()
    t.assert_goes_on()


@pytest.mark.slow
def test_tags_of_others_are_kept_by_the_expiry(kept: Make) -> None:
    t = kept(small_files=1000, snapshots_kept=1, snapshot_retention=0)
    t.merge(1)
    with t.lake._spark.driver.session("somebody's tag") as session:
        session.sql("ALTER TABLE lake.public.kept CREATE TAG audited")
    with t.reader() as table:
        tagged = table.current_snapshot()
        assert tagged is not None
        expected = multiset(table.scan().to_arrow().to_pylist())
    t.merge(2)
    t.maintain()
    with t.reader() as table:
        assert multiset(table.scan(snapshot_id=tagged.snapshot_id).to_arrow().to_pylist()) == expected
        assert len(list(table.snapshots())) == 2


def test_files_of_writes_that_never_came_to_a_commit_go_after_a_day(kept: Make) -> None:
    t = kept()
    t.merge(SMALL_FILES + 1)
    old, young, checksum = (t.data / name for name in ("old.parquet", "young.parquet", ".old.parquet.crc"))
    for path in (old, young, checksum):
        path.write_bytes(b"left behind")
    day_before = time.time() - compaction.ORPHAN_AGE - 60
    for path in t.data.iterdir():
        if path != young:
            os.utime(path, (day_before, day_before))
    t.maintain()
    assert not old.exists() and not checksum.exists() and young.exists()
    t.assert_goes_on()


def test_maintenance_that_fails_leaves_the_table_as_it_was_and_waits(
    kept: Make, caplog: pytest.LogCaptureFixture
) -> None:
    t = kept()
    t.merge(SMALL_FILES + 1)
    with t.reader() as table:
        files = [task.file.file_path for task in table.scan().plan_files()]
    missing = Path(files[0])
    aside = missing.rename(missing.with_suffix(".aside"))
    before = t.applied
    assert t.lake.maintain(before, t.source) == before
    assert [record.levelname for record in caplog.records if record.name.startswith("wal2lake")] == ["WARNING"]
    assert t.lake.due(before) is None, "it is let alone for a while"
    aside.rename(missing)
    t.history.assert_in(t.path)
    t.assert_goes_on()


@pytest.mark.slow
def test_maintenance_that_is_cancelled_leaves_the_table_as_it_was_without_a_word(
    kept: Make, caplog: pytest.LogCaptureFixture
) -> None:
    t = kept()
    t.merge(SMALL_FILES + 1)
    done = threading.Event()

    def cancel() -> None:
        while not done.wait(0.005):
            t.lake.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        before = t.applied
        assert t.lake.maintain(before, t.source).compaction_facts == before.compaction_facts
    finally:
        done.set()
        canceller.join()
    assert not [record for record in caplog.records if record.name.startswith("wal2lake")]
    assert t.lake.due(before) is not None
    t.maintain()
    assert t.applied.compaction_facts.data_files == 1
