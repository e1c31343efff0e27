"""`on_partition_drop = "keep"`: the lake is the archive of partitions that the source has no more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirroring import Mirrored, missed
from test_filters import _rows

from remedies import heals
from servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = """
    CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
    CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
    CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (20) TO (30);
    INSERT INTO parts SELECT i, i FROM generate_series(0, 29) i;
"""


def _mirrored(database: Database, lake: Path, spark: SparkSession, **sections: Any) -> Mirrored:
    groups = [{"name": "default", "flush_interval": 0.1, "tables": ["public.parts"]}]
    settings = {"public.parts": {"on_partition_drop": "keep"}}
    return Mirrored(database, lake, spark, groups=groups, tables=settings, **sections)


def _lake(mirrored: Mirrored) -> dict[int, int]:
    return dict(_rows(mirrored.lake, "parts", ("id", "n")))


def _source(database: Database) -> dict[int, int]:
    return dict(database.rows("SELECT id, n FROM parts"))


def test_rows_of_partitions_that_went_stay_through_changes_and_a_resync(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(PARTS)
    mirrored = _mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up("parts")
    # What was changed last, while nothing ran, is kept as well.
    database.execute("UPDATE parts SET n = -n WHERE id IN (3, 13)")
    database.execute("DELETE FROM parts WHERE id = 4; ALTER TABLE parts DETACH PARTITION parts_1; DROP TABLE parts_2")
    database.execute("UPDATE parts_1 SET n = 1000; UPDATE parts SET n = -n WHERE id > 25")
    assert not mirrored.once().missed
    kept = {i: -i if i in (3, 13) else i for i in range(20) if i != 4}
    assert _lake(mirrored) == kept | _source(database)
    mirrored.resync("parts")
    assert not mirrored.once().missed
    assert _lake(mirrored) == kept | _source(database)
    database.execute("ALTER TABLE parts RENAME id TO ident; TRUNCATE parts_3")
    mirrored.resync("parts")
    assert not mirrored.once().missed
    assert dict(_rows(mirrored.lake, "parts", ("ident", "n"))) == kept


def test_a_partition_that_comes_takes_the_place_of_rows_that_were_kept(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(PARTS)
    mirrored = _mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up("parts")
    database.execute("DROP TABLE parts_1; ALTER TABLE parts DETACH PARTITION parts_2")
    assert not mirrored.once().missed
    database.execute(
        "CREATE TABLE parts_n PARTITION OF parts FOR VALUES FROM (0) TO (5); INSERT INTO parts VALUES (1, 11)"
    )
    database.execute(
        "UPDATE parts_2 SET n = 2 * n; ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20)"
    )
    assert not mirrored.once().missed
    kept = {i: i for i in range(5, 10)}
    assert _lake(mirrored) == kept | _source(database)
    mirrored.resync("parts")
    assert not mirrored.once().missed
    assert _lake(mirrored) == kept | _source(database)


@heals("RowsNotKept")
def test_rows_that_cannot_be_distinguished_stop_the_table_instead_of_being_kept(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(PARTS + "CREATE TABLE parts_rest PARTITION OF parts DEFAULT; INSERT INTO parts VALUES (50, 1);")
    mirrored = _mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up("parts")
    database.execute("DROP TABLE parts_1; INSERT INTO parts VALUES (5, 55)")
    table = missed(mirrored.once())["parts"]
    assert "can't be distinguished from others" in str(table.error)
    assert 'on_partition_drop = "delete"' in str(table.remedy)
    assert _lake(mirrored)[6] == 6
    mirrored.configure(tables={"public.parts": {"on_partition_drop": "delete"}})
    mirrored.apply_requests(table.remedy)
    mirrored.catches_up("parts")
