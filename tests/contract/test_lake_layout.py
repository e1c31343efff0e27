"""Partitioning, sort order and properties that users gave a lake table stay when its rows are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lake_history import Snapshot, copied, copy_source, describe, read_lake, source_id
from servers import Database, fresh_database
from wal2lake.config import Config
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import TableError
from wal2lake.lake import Applied, Lake
from wal2lake.lake.iceberg import without_spark
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.schema import TableId

ID = TableId("public", "t")


@pytest.fixture
def place(server: EmbeddedServer, spark: Any, tmp_path: Path) -> Iterator[tuple[Lake, Database]]:
    with fresh_database(server) as database:
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text, at timestamp)")
        database.execute("INSERT INTO t SELECT i, 'v' || i, timestamp '2024-01-01' + i * interval '1 day' "
                         "FROM generate_series(1, 20) i")  # fmt: skip
        lake = Lake(Config(source={"dsn": database.dsn}, lake={"path": str(tmp_path / "lake")}), spark)
        lake.start()
        yield lake, database
        lake.stop()


def _lay_out(lake: Lake) -> tuple[str, str, str]:
    with lake._spark.driver.session("a user") as session:
        for statement in (
            "ADD PARTITION FIELD bucket(4, id)", "ADD PARTITION FIELD truncate(2, v)", "ADD PARTITION FIELD days(at)",
            "WRITE LOCALLY ORDERED BY v DESC NULLS LAST, id", "SET TBLPROPERTIES ('somebody.said' = 'so')",
        ):  # fmt: skip
            session.sql(f"ALTER TABLE lake.public.t {statement}")
    return _layout(lake)


def _layout(lake: Lake) -> tuple[str, str, str]:
    with lake._spark.driver.session("a user") as session:
        assert isinstance(lake._tables, IcebergTables)
        loaded = lake._tables.load(session, ID)
        terms = [
            f"{loaded.schema().findColumnName(field.sourceId())} {field.transform().toString()}"
            for field in loaded.spec().fields()
        ]
        order = [
            f"{loaded.schema().findColumnName(field.sourceId())} {field.direction()} {field.nullOrder()}"
            for field in loaded.sortOrder().fields()
        ]
        return ", ".join(terms), ", ".join(order), str(loaded.properties().get("somebody.said"))


def _copy_again(lake: Lake, database: Database) -> Applied:
    schema = describe(database, ID)
    with Snapshot(database) as snapshot:
        return lake.copy(copy_source(database, schema), snapshot, source_id(schema), 3, lambda _: None)


def test_a_resync_keeps_partitions_sort_order_and_properties(place: tuple[Lake, Database], tmp_path: Path) -> None:
    lake, database = place
    before = copied(lake, database, "t")
    layout = _lay_out(lake)
    assert all(layout)
    database.execute("DELETE FROM t WHERE id > 15; UPDATE t SET v = 'other' WHERE id = 1")
    after = _copy_again(lake, database)
    assert (after.rows, after.changes, after.manifest) == (15, 0, 3)
    assert after.version > before.version
    assert _layout(lake) == layout
    assert {row["id"]: row["v"] for row in read_lake(tmp_path / "lake", ID)}[1] == "other"


def test_a_resync_with_other_columns_keeps_what_they_allow(place: tuple[Lake, Database]) -> None:
    lake, database = place
    copied(lake, database, "t")
    partitions, order, said = _lay_out(lake)
    database.execute("ALTER TABLE t DROP COLUMN at, ADD COLUMN n int")
    assert _copy_again(lake, database).rows == 20
    assert _layout(lake) == (partitions.rpartition(", ")[0], order, said)


def test_a_rewrite_that_fills_a_new_column_keeps_partitions_and_sort_order(
    place: tuple[Lake, Database], tmp_path: Path
) -> None:
    lake, database = place
    applied = copied(lake, database, "t")
    layout = _lay_out(lake)
    database.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 5")
    schema = describe(database, ID)
    after = lake.evolve(applied, schema, source_id(schema))
    assert after.version.commit == applied.version.commit + 1
    assert _layout(lake) == layout
    assert {row["n"] for row in read_lake(tmp_path / "lake", ID)} == {5}
    again = lake.evolve(replace(after), schema, source_id(schema))
    assert again.version == after.version


def test_maintenance_and_expiry_by_others_keep_the_position(place: tuple[Lake, Database]) -> None:
    lake, database = place
    before = copied(lake, database, "t")
    source = source_id(before.schema)
    with lake._spark.driver.session("a user") as session:
        session.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
        session.sql("CALL lake.system.expire_snapshots('public.t', TIMESTAMP '2100-01-01 00:00:00', 1)")
        assert session.sql("SELECT * FROM lake.public.t.snapshots").count() == 1
    assert lake.applied(ID, source) == before


def test_several_commits_of_maintenance_and_expiry_by_others_keep_the_position(
    place: tuple[Lake, Database], tmp_path: Path
) -> None:
    """The version that descends directly from the one with the record is expired, too."""
    lake, database = place
    before = copied(lake, database, "t")
    source = source_id(before.schema)
    with lake._spark.driver.session("a user") as session:
        for _ in range(3):
            session.sql(
                "CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))"
            )
            session.sql("CALL lake.system.expire_snapshots('public.t', TIMESTAMP '2100-01-01 00:00:00', 1)")
        assert session.sql("SELECT * FROM lake.public.t.snapshots").count() == 1
    now = lake.applied(ID, source)
    assert now is not None and replace(now, compaction_facts=before.compaction_facts) == before
    with pytest.raises(without_spark.NotPlain):
        without_spark.find(tmp_path / "lake", ID)
    restated = lake.restate(before, source)
    found = without_spark.find(tmp_path / "lake", ID)
    assert found is not None and found.record is not None and found.record.version == restated.version


def test_a_rolled_back_version_whose_line_was_expired_has_its_own_record(place: tuple[Lake, Database]) -> None:
    """The note in the properties is of a later version, from which the current one does not descend."""
    lake, database = place
    first = copied(lake, database, "t")
    source = source_id(first.schema)
    with lake._spark.driver.session("a user") as session:
        (old,) = session.sql("SELECT snapshot_id FROM lake.public.t.snapshots").first() or (None,)
        later = lake.restate(first, source)
        session.sql(f"CALL lake.system.rollback_to_snapshot('public.t', {old})")
        for _ in range(2):
            session.sql(
                "CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))"
            )
        session.sql("CALL lake.system.expire_snapshots('public.t', TIMESTAMP '2100-01-01 00:00:00', 1)")
    now = lake.applied(ID, source)
    assert now is not None and now.version == first.version < later.version


def test_a_note_of_another_line_of_versions_is_not_believed(place: tuple[Lake, Database]) -> None:
    """Rows of somebody's own, put there after the version with the record was expired: where they stand is unknown."""
    lake, database = place
    before = copied(lake, database, "t")
    with lake._spark.driver.session("a user") as session:
        for _ in range(2):
            session.sql("CREATE OR REPLACE TABLE lake.public.t USING iceberg AS SELECT * FROM lake.public.t LIMIT 3")
        session.sql("CALL lake.system.expire_snapshots('public.t', TIMESTAMP '2100-01-01 00:00:00', 1)")
    with pytest.raises(TableError, match="no position recorded"):
        lake.applied(ID, source_id(before.schema))
