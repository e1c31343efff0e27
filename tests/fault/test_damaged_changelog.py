"""Bytes of the change log that are not those that were written: no wrong row, and the remedy heals."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from mirroring import Mirrored

from changelogs import file_of
from servers import Database
from wal2lake.changelog import ChangeLog
from wal2lake.changelog.segment import SegmentRows, SegmentWriter
from wal2lake.lake.applying.collapse import VERIFIED
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    """Tables `a` and `b`; changes of `a` wait in the change log."""
    for name in ("a", "b"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} SELECT g, 'v' || g "
            "FROM generate_series(1, 100) g"
        )
    made = Mirrored(database, tmp_path / "lake", spark)
    made.catches_up("a", "b")
    Mirror(made.config).pause(["public.a"])
    made.once()
    # Such values are not worth compressing, so they are in the segment as they are.
    database.execute("UPDATE a SET v = md5(id::text); UPDATE b SET v = md5(id::text)")
    made.once()
    Mirror(made.config).resume(["public.a"])
    return made


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(3).randrange(len(data))] ^= 4
    path.write_bytes(data)


def _damage_a_value(path: Path, value: str) -> None:
    """Change a bit of a value: the file can still be read, and has another row."""
    data = path.read_bytes()
    at = data.index(value.encode())
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def _segment(mirrored: Mirrored) -> Path:
    oid = mirrored.database.value("SELECT 'a'::regclass::oid::int")
    (path,) = (mirrored.changelog / "segments" / str(oid)).glob("*.parquet")
    return path


def _manifest(mirrored: Mirrored) -> Path:
    """The one with the changes that wait."""
    name = _segment(mirrored).name
    return next(path for path in (mirrored.changelog / "manifests").glob("*.json") if name in path.read_text())


def _schema(mirrored: Mirrored) -> Path:
    oid = mirrored.database.value("SELECT 'a'::regclass::oid::int")
    (path,) = (mirrored.changelog / "schemas" / str(oid)).glob("1.json")
    return path


def test_a_damaged_segment_stops_its_table_alone_until_that_is_copied(mirrored: Mirrored) -> None:
    path = _segment(mirrored)
    _damage_a_value(path, mirrored.database.value("SELECT v FROM a WHERE id = 50"))
    mirrored.database.execute("INSERT INTO b VALUES (1000, 'x')")
    result = mirrored.once()
    assert result.missed, "the damaged row is in the lake"
    (missed,) = result.missed
    assert missed.name == "public.a" and str(path) in str(missed.error)
    assert missed.remedy is not None and missed.remedy.endswith("wal2lake tables resync 'public.a'")
    mirrored.equal("b")
    mirrored.resync("a")
    mirrored.catches_up("a", "b")
    mirrored.database.execute("UPDATE a SET v = 'z'; DELETE FROM b WHERE id = 1")
    mirrored.catches_up("a", "b")


@pytest.mark.parametrize("part", [_manifest, _schema])
def test_a_damaged_manifest_or_schema_stops_the_group_until_it_is_copied(
    mirrored: Mirrored, part: Callable[[Mirrored], Path]
) -> None:
    path = part(mirrored)
    _damage(path)
    missed = mirrored.once().missed
    assert {table.name for table in missed} == {"public.a", "public.b"}
    assert all(str(path) in str(table.error) for table in missed), [table.error for table in missed]
    assert all("wal2lake tables resync --all" in str(table.remedy) for table in missed)
    mirrored.resync()
    mirrored.catches_up("a", "b")
    mirrored.database.execute("UPDATE a SET v = 'z'; DELETE FROM b WHERE id = 1")
    mirrored.catches_up("a", "b")
    assert json.loads((mirrored.changelog / "group.json").read_text())["starts"][-1]["manifest"] > 1


def test_spark_compares_the_pages_of_a_segment_with_their_checksums(
    log_on_disk: ChangeLog, spark: SparkSession
) -> None:
    batch = pa.record_batch({"v": pa.array([f"{random.Random(n).random()}" for n in range(100)])})
    writer = SegmentWriter(log_on_disk, 42, 1, batch.schema)
    writer.write(SegmentRows(42, 1, batch, 100, 0, 0, 0, 0))
    path = file_of(log_on_disk, writer.finish())
    value = batch.column(0)[50].as_py()
    path.write_bytes(path.read_bytes().replace(value.encode(), value[:-1].encode() + b"x"))
    assert spark.read.schema("v string").parquet(str(path)).filter("v LIKE '%x'").count() == 1
    with pytest.raises(Exception, match=r"(?i)crc|checksum"):
        spark.read.option(*VERIFIED).schema("v string").parquet(str(path)).collect()
