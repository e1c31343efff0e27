"""Metadata of a lake table that is read without Spark equals that of Iceberg itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import ConfigFactory
from lake_history import copied
from servers import Database
from wal2lake.lake import Lake
from wal2lake.lake.format import Record
from wal2lake.lake.iceberg import without_spark
from wal2lake.position import LakeVersion, Lsn
from wal2lake.schema import TableId

NAME = TableId("public", "t")


def test_the_files_alone_say_what_iceberg_says_after_each_commit(
    database: Database, lake: Lake, config: ConfigFactory
) -> None:
    path = Path(config().lake.path)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'x' FROM generate_series(1, 50) i"
    )
    applied = copied(lake, database, "t")
    source_id = f"7000000000000000000/5/{applied.schema.oid}"

    def same() -> None:
        with lake._spark.work("reading", NAME) as session:
            assert without_spark.find(path, NAME) == lake._tables.find(session, NAME)

    same()
    lake.restate(replace(applied, lsn=Lsn(applied.lsn + 100), manifest=7), source_id)
    same()
    with lake._spark.work("writing", NAME) as session:
        # Somebody else's commit has no record of ours: the one before it counts.
        session.sql("DELETE FROM lake.public.t WHERE id = 1")
    same()
    found = without_spark.find(path, NAME)
    assert found is not None and found.rows == 49
    assert found.record == Record(Lsn(applied.lsn + 100), 7, 0, LakeVersion(0, applied.version.commit + 1))
    assert without_spark.find(path, TableId("public", "none")) is None


def test_a_lake_without_our_catalog_is_left_to_iceberg(tmp_path: Path) -> None:
    with pytest.raises(without_spark.NotPlain):
        without_spark.find(tmp_path, NAME)
