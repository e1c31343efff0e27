"""Groups whose tables are the leaves of partitioned tables, through a mirror: each leaf's lake table equals the leaf."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import PATIENCE, Mirrored
from test_filters import SECRET, _becomes, _files_with, _rows

from capturing import CapturedGroup
from servers import Database
from waiting import wait_until
from wal2lake.config import TableConfig
from wal2lake.demo.compare import open_catalog
from wal2lake.errors import CommandRefused
from wal2lake.mirror import Mirror
from wal2lake.types import Masking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAFWISE = {"name": "default", "flush_interval": 0.1, "partitions": "leaf", "tables": ["public.parts"]}
PARTS = """
    CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
    CREATE TABLE parts_mid PARTITION OF parts FOR VALUES FROM (100) TO (300) PARTITION BY RANGE (id);
    CREATE TABLE parts_2 PARTITION OF parts_mid FOR VALUES FROM (100) TO (200);
    CREATE TABLE parts_3 PARTITION OF parts_mid FOR VALUES FROM (200) TO (300);
    INSERT INTO parts SELECT i, 'copied ' || i FROM generate_series(0, 290, 10) i;
"""
LEAVES = ("parts_1", "parts_2", "parts_3")


@pytest.fixture
def parted(database: Database) -> Database:
    database.execute(PARTS)
    return database


def _mirrored(database: Database, lake: Path, spark: SparkSession, **sections: Any) -> Mirrored:
    return Mirrored(database, lake, spark, groups=[LEAFWISE], **sections)


def _lake_tables(mirrored: Mirrored) -> set[str]:
    with open_catalog(mirrored.lake) as catalog:
        return {name for _, name in catalog.list_tables("public")}


def _known(mirrored: Mirrored) -> set[str]:
    return {table.name.removeprefix("public.") for table in Mirror(mirrored.config).tables()}


def test_leaves_are_followed_through_inserts_moves_and_truncations(
    parted: Database, tmp_path: Path, spark: SparkSession
) -> None:
    mirrored = _mirrored(parted, tmp_path / "lake", spark)
    with mirrored.running():
        mirrored.is_streaming(*LEAVES)
        parted.execute(
            "INSERT INTO parts VALUES (1, 'a'), (101, 'b'), (201, 'c'); UPDATE parts SET v = 'x' WHERE id = 10"
        )
        parted.execute("UPDATE parts SET id = 102 WHERE id = 1; UPDATE parts SET id = 202, v = NULL WHERE id = 101")
        parted.execute("DELETE FROM parts WHERE id IN (20, 120); INSERT INTO parts_2 VALUES (199, 'directly')")
        mirrored.follows(*LEAVES)
        parted.execute("TRUNCATE parts_2; INSERT INTO parts VALUES (150, 'after')")
        mirrored.follows(*LEAVES)
        parted.execute("TRUNCATE parts; INSERT INTO parts VALUES (5, 'after'), (205, 'after')")
        mirrored.follows(*LEAVES)
    assert _lake_tables(mirrored) == set(LEAVES) == _known(mirrored)


def test_partitions_come_and_go_while_a_run_is_active(parted: Database, tmp_path: Path, spark: SparkSession) -> None:
    mirrored = _mirrored(parted, tmp_path / "lake", spark)
    with mirrored.running():
        mirrored.is_streaming(*LEAVES)
        parted.execute("CREATE TABLE parts_4 PARTITION OF parts FOR VALUES FROM (300) TO (400)")
        parted.execute("INSERT INTO parts SELECT i, 'at once' FROM generate_series(300, 320) i")
        parted.execute(
            "CREATE TABLE parts_5 (v text, gone int, id int PRIMARY KEY); ALTER TABLE parts_5 DROP COLUMN gone;"
            "INSERT INTO parts_5 SELECT 'attached', i FROM generate_series(400, 450) i;"
            "ALTER TABLE parts ATTACH PARTITION parts_5 FOR VALUES FROM (400) TO (500)"
        )
        for i in range(5):
            parted.execute(f"INSERT INTO parts VALUES ({330 + i}, 'later'), ({460 + i}, 'later')")
        mirrored.is_streaming("parts_4", "parts_5")
        parted.execute("UPDATE parts SET id = id + 170 WHERE id IN (301, 302); DELETE FROM parts WHERE id = 400")
        mirrored.follows(*LEAVES, "parts_4", "parts_5")
        before = parted.value("SELECT count(*) FROM parts_1")
        parted.execute("ALTER TABLE parts DETACH PARTITION parts_1; INSERT INTO parts_1 VALUES (77, 'on its own')")
        wait_until(lambda: "parts_1" not in _known(mirrored), PATIENCE, lambda: f"let go of: {_known(mirrored)}")
        parted.execute("INSERT INTO parts VALUES (298, 'x'), (398, 'x'), (498, 'x'); DELETE FROM parts WHERE id = 200")
        mirrored.follows("parts_2", "parts_3", "parts_4", "parts_5")
    assert len(_rows(mirrored.lake, "parts_1", ("id",))) in (before, before + 1)
    assert _lake_tables(mirrored) == {*LEAVES, "parts_4", "parts_5"}


HASHED = "SELECT id, encode(sha256(convert_to(v, 'UTF8')), 'hex') FROM {}"
MASKS = {"public.parts": {"mask": {"v": "sha256"}}}


def test_a_mask_of_the_root_is_every_leaf_s(database: Database, tmp_path: Path, spark: SparkSession) -> None:
    database.execute(PARTS.replace("copied ", SECRET))
    mirrored = _mirrored(database, tmp_path / "lake", spark, tables=MASKS)
    with mirrored.running():
        for leaf in LEAVES:
            _becomes(mirrored, leaf, ("id", "v"), HASHED.format(leaf))
        database.execute(
            f"CREATE TABLE parts_4 PARTITION OF parts_mid DEFAULT; INSERT INTO parts VALUES (1, '{SECRET}a');"
            "ALTER TABLE parts DETACH PARTITION parts_mid;"
            "ALTER TABLE parts ATTACH PARTITION parts_mid FOR VALUES FROM (100) TO (400);"
            f"INSERT INTO parts VALUES (301, '{SECRET}b'), (202, '{SECRET}c')"
        )
        for leaf in (*LEAVES, "parts_4"):
            _becomes(mirrored, leaf, ("id", "v"), HASHED.format(leaf))


@pytest.mark.slow
def test_a_leaf_that_is_detached_does_not_lose_the_mask_of_its_root(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """A pattern still means it, and its settings are gone: it stops until somebody has said what is meant."""
    database.execute(PARTS.replace("copied ", SECRET))
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=[{**LEAFWISE, "tables": ["public.*"]}], tables=MASKS)
    with mirrored.running():
        mirrored.is_streaming(*LEAVES)
        database.execute(
            f"INSERT INTO parts VALUES (1, '{SECRET}'); ALTER TABLE parts DETACH PARTITION parts_1;"
            f"INSERT INTO parts_1 VALUES (2, '{SECRET}'); ALTER TABLE parts_1 ADD COLUMN w text;"
        )
        database.execute(f"INSERT INTO parts_1 VALUES (3, '{SECRET}', '{SECRET}'); INSERT INTO parts VALUES (299, 'x')")
        # Rows whose values were withheld ask for a copy first, and that is what is refused.
        mirrored.fails("parts_1", "masks and filters of public.parts")
        _becomes(mirrored, "parts_3", ("id", "v"), HASHED.format("parts_3"))
        mirrored.resync("parts_1")
        database.execute(f"INSERT INTO parts_1 VALUES (4, '{SECRET}', NULL)")
        mirrored.slot_passes(mirrored.now())
        assert not _files_with(mirrored.lake, SECRET)
    missed = {table.name: str(table.error) for table in mirrored.once().missed}
    assert set(missed) == {"public.parts_1"} and "masks and filters of public.parts" in missed["public.parts_1"]
    assert not _files_with(mirrored.lake, SECRET)
    mirrored.configure(tables={**MASKS, "public.parts_1": {"mask": {"v": "sha256", "w": "null"}}})
    assert mirrored.once().ok
    assert _rows(mirrored.lake, "parts_1", ("id", "v")) == _rows_hashed(database, "parts_1")
    assert not _files_with(mirrored.lake, SECRET)
    mirrored.configure(tables={**MASKS, "public.parts_1": {"mask": {}}})
    mirrored.catches_up("parts_1")


def test_rows_that_are_read_after_their_leaf_was_detached_are_masked_all_the_same(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Not one row of it was streamed before."""
    database.execute(PARTS.replace("copied ", SECRET))
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=[{**LEAFWISE, "tables": ["public.*"]}], tables=MASKS)
    assert mirrored.once().ok
    oid = database.value("SELECT 'parts_1'::regclass::oid::int8")
    database.execute(f"INSERT INTO parts VALUES (1, '{SECRET}'); ALTER TABLE parts DETACH PARTITION parts_1")
    missed = {table.name: str(table.error) for table in mirrored.once().missed}
    assert set(missed) == {"public.parts_1"} and "masks and filters of public.parts" in missed["public.parts_1"]
    assert list(mirrored.changelog.glob(f"segments/{oid}/*.parquet"))
    assert not _files_with(mirrored.lake, SECRET)


@pytest.mark.parametrize(
    ("partitions", "away"),
    [
        ("root", "DROP TABLE parts_1"),
        ("leaf", "DROP TABLE parts_1"),
        ("root", "ALTER TABLE parts DETACH PARTITION parts_1"),
    ],
)
def test_rows_of_a_leaf_that_went_away_before_it_was_ever_seen_are_withheld(
    database: Database, tmp_path: Path, partitions: str, away: str
) -> None:
    database.execute(PARTS.replace("copied ", SECRET))
    group = CapturedGroup(database, tmp_path, partitions=partitions)
    tables = {"public.parts": TableConfig(mask={"v": Masking.SHA256})}
    group.config = group.config.model_copy(update={"tables": tables})
    group.begin("public.parts").close()
    oid = group.oid("parts_1")
    database.execute(f"INSERT INTO parts VALUES (1, '{SECRET}'); {away}")
    group.start()
    try:
        group.catch_up()
    finally:
        group.stop()
    assert list(tmp_path.rglob(f"segments/{oid}/*.parquet"))
    assert not _files_with(tmp_path, SECRET)


def _rows_hashed(database: Database, table: str) -> list[tuple[Any, ...]]:
    return sorted(database.rows(HASHED.format(table)), key=repr)


def test_a_filter_and_a_list_of_columns_of_the_root_are_every_leaf_s(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    if database.connect().info.server_version < 150000:
        pytest.skip("PostgreSQL 14 publishes whole tables")
    database.execute(PARTS.replace("copied ", SECRET))
    settings = {"public.parts": {"where": "id % 20 <> 0", "columns": ["id"]}}
    mirrored = _mirrored(database, tmp_path / "lake", spark, tables=settings)
    with mirrored.running():
        mirrored.is_streaming(*LEAVES)
        database.execute(
            f"DELETE FROM parts WHERE id IN (140, 220); INSERT INTO parts VALUES (1, '{SECRET}'), (220, '{SECRET}');"
            "UPDATE parts SET id = 131 WHERE id = 20;"
            "UPDATE parts SET id = 140 WHERE id = 30; CREATE TABLE parts_4 PARTITION OF parts FOR VALUES FROM (300) TO (400);"
            f"INSERT INTO parts SELECT i, '{SECRET}' FROM generate_series(300, 340) i"
        )
        for leaf in (*LEAVES, "parts_4"):
            _becomes(mirrored, leaf, ("id",), f"SELECT id FROM {leaf} WHERE id % 20 <> 0")


@pytest.mark.slow
def test_a_group_goes_from_roots_to_leaves_and_back(parted: Database, tmp_path: Path, spark: SparkSession) -> None:
    mirrored = _mirrored(parted, tmp_path / "lake", spark)
    mirrored.configure(groups=[{**LEAFWISE, "partitions": "root"}])
    mirrored.catches_up("parts")
    parted.execute("INSERT INTO parts VALUES (1, 'not captured yet'); UPDATE parts SET id = 101 WHERE id = 1")
    mirrored.configure(groups=[LEAFWISE])
    mirrored.catches_up(*LEAVES)
    assert _known(mirrored) == set(LEAVES)
    parted.execute("UPDATE parts SET id = 1 WHERE id = 101; CREATE TABLE parts_4 PARTITION OF parts DEFAULT")
    parted.execute("INSERT INTO parts VALUES (1000, 'unpublished')")
    mirrored.configure(groups=[{**LEAFWISE, "partitions": "root"}])
    mirrored.catches_up("parts")
    parted.execute("INSERT INTO parts VALUES (1001, 'x'); DELETE FROM parts WHERE id = 1; TRUNCATE parts_3")
    mirrored.catches_up("parts")
    assert _known(mirrored) == {"parts"}
    assert _lake_tables(mirrored) == {"parts", *LEAVES}


@pytest.mark.slow
def test_commands_mean_leaves_where_they_are_the_tables(parted: Database, tmp_path: Path, spark: SparkSession) -> None:
    groups = [{**LEAFWISE, "tables": []}, {"name": "roots", "tables": []}]
    mirrored = Mirrored(parted, tmp_path / "lake", spark, groups=groups)
    mirror = Mirror(mirrored.config)
    assert mirrored.once().ok
    mirror.add(["public.parts"], group="default")
    mirrored.catches_up(*LEAVES)
    mirror.remove(["public.parts_2"])
    parted.execute("CREATE TABLE parts_4 PARTITION OF parts DEFAULT; INSERT INTO parts VALUES (1, 'x'), (1000, 'y')")
    mirrored.catches_up("parts_1", "parts_3", "parts_4")
    assert _known(mirrored) == {"parts_1", "parts_3", "parts_4"}
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: mirror.move(["public.parts_1"], "roots"), "partitions are one table"),
        (lambda: mirror.add(["public.parts_2"], group="roots"), "partitions are one table"),
        (lambda: mirror.add(["public.parts"], group="default", copy=False), "each leaf partition is a table"),
        (lambda: mirror.add(["public.parts"], group="default", target="x.y"), "each leaf partition is a table"),
    ]
    for refused, cause in refusals:
        with pytest.raises(CommandRefused, match=cause):
            refused()
    mirror.add(["public.parts_2"])
    mirrored.catches_up(*LEAVES, "parts_4")
