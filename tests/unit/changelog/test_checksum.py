"""A changed bit anywhere in a manifest, a schema or a segment is an error that names the file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from wal2lake.changelog import ChangeLog, Manifest, Segment, TableCut, verify
from wal2lake.changelog.segment import Rows, SegmentWriter
from wal2lake.errors import ChangeLogDamaged
from wal2lake.pgtypes import LakeType
from wal2lake.position import Lsn
from wal2lake.schema import Column, Identity, TableId, TableSchema

SCHEMA = TableSchema(
    42, TableId("public", "t"), (Column("id", 23, -1, "integer", LakeType.parse("int")),), ("id",), Identity.DEFAULT
)


@pytest.fixture
def written(log: ChangeLog) -> Manifest:
    """A manifest with one segment of some rows."""
    batch = pa.record_batch({
        "id": pa.array(range(500), pa.int32()), "v": [f"value {n}" for n in range(500)],
        "_commit_lsn": pa.array([150] * 500),
    })  # fmt: skip
    writer = SegmentWriter(log, 42, log.schemas.version(SCHEMA), batch.schema)
    writer.write(Rows(42, 1, batch, 500, 0, 0, 0, 0))
    cut = TableCut(42, "public.t", (writer.finish(),))
    return log.publish(Lsn(200), 1, datetime(2024, 1, 1, tzinfo=UTC), {42: cut})


def flips(path: Path, most: int | None = None) -> Iterator[int]:
    """Change one bit after the other, at every place or at some, each time with all the others as they were."""
    whole = path.read_bytes()
    places = [(at, bit) for at in range(len(whole)) for bit in range(8)]
    for at, bit in places if most is None else random.Random(7).sample(places, most):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        yield at
    path.write_bytes(whole)


def assert_noticed(path: Path, read: Callable[[], object], most: int | None = None) -> None:
    for at in flips(path, most):
        with pytest.raises(ChangeLogDamaged) as raised:
            read()
        assert str(path) in str(raised.value), f"byte {at}"
    read()


def test_bits_of_a_manifest(log: ChangeLog, written: Manifest) -> None:
    path = log.directory / "manifests" / "1.json"
    assert_noticed(path, lambda: ChangeLog(log.directory.parent, "g").read(1), most=400)


def test_bits_of_a_schema(log: ChangeLog, written: Manifest) -> None:
    path = log.directory / "schemas" / "42" / "1.json"
    assert_noticed(path, lambda: ChangeLog(log.directory.parent, "g").schema(42, 1), most=400)


def test_bits_of_a_segment(log: ChangeLog, written: Manifest) -> None:
    (segment,) = written.tables[42].segments
    assert_noticed(log.path(segment), lambda: verify(log.path(segment), segment.sha256), most=300)


def test_a_segment_that_was_cut_off_or_is_gone(log: ChangeLog, written: Manifest) -> None:
    (segment,) = written.tables[42].segments
    path = log.path(segment)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ChangeLogDamaged, match="checksum"):
        log.commits(segment)
    path.unlink()
    with pytest.raises(ChangeLogDamaged, match="missing"):
        verify(path, segment.sha256)


def test_files_from_before_checksums_are_read(log: ChangeLog, written: Manifest) -> None:
    path = log.directory / "manifests" / "1.json"
    data = json.loads(path.read_text())
    del data["sha256"], data["tables"][0]["segments"][0]["sha256"]
    path.write_text(json.dumps(data, indent=1))
    schema = log.directory / "schemas" / "42" / "1.json"
    schema.write_text(json.dumps(SCHEMA.to_json(), indent=1))
    fresh = ChangeLog(log.directory.parent, "g")
    (segment,) = fresh.read(1).tables[42].segments
    assert segment == Segment(**{**vars(written.tables[42].segments[0]), "sha256": ""})
    assert fresh.commits(segment) == (Lsn(150), Lsn(150))


def test_a_log_that_begins_after_damage_has_nothing_of_it(log: ChangeLog, written: Manifest) -> None:
    (log.directory / "manifests" / "1.json").write_text("x")
    (log.directory / "schemas" / "42" / "1.json").write_text("x")
    fresh = ChangeLog(log.directory.parent, "g")
    fresh.begin(Lsn(300), damaged=True)
    assert (fresh.position(), fresh.stretch.manifest, fresh.oldest()) == (Lsn(300), 2, 2)
    assert fresh.schemas.version(SCHEMA) == 1 and fresh.schema(42, 1) == SCHEMA
    assert fresh.sweep() == 1 and not fresh.stretch.continues(1, Lsn(300))
