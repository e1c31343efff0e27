"""A changed bit anywhere in a manifest, a schema or a segment is an error that names the file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from wal2lake.changelog import ChangeLog, Manifest, ManifestEntry, Segment
from wal2lake.changelog.segment import SegmentRows, SegmentWriter
from wal2lake.errors import ChangeLogDamaged
from wal2lake.position import Lsn
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType

SCHEMA = TableSchema(
    42,
    TableId("public", "t"),
    (Column("id", 23, -1, "integer", LakeType.parse("int")),),
    ("id",),
    ReplicaIdentity.DEFAULT,
)

MANIFEST = "manifests/1.json"
WRITTEN_IN = "schemas/42/1.json"


@pytest.fixture
def written(log: ChangeLog) -> Manifest:
    """A manifest with one segment of some rows."""
    batch = pa.record_batch({
        "id": pa.array(range(500), pa.int32()), "v": [f"value {n}" for n in range(500)],
        "_commit_lsn": pa.array([150] * 500),
    })  # fmt: skip
    writer = SegmentWriter(log, 42, log.schemas.version(SCHEMA), batch.schema)
    writer.write(SegmentRows(42, 1, batch, 500, 0, 0, 0, 0))
    cut = ManifestEntry(42, "public.t", (writer.finish(),))
    return log.publish(Lsn(200), 1, datetime(2024, 1, 1, tzinfo=UTC), {42: cut})


def flips(log: ChangeLog, name: str, most: int | None = None) -> Iterator[int]:
    """Change one bit after the other, at every place or at some, each time with all the others as they were."""
    whole = got(log, name)
    places = [(at, bit) for at in range(len(whole)) for bit in range(8)]
    for at, bit in places if most is None else random.Random(7).sample(places, most):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        log.storage.put(name, bytes(damaged))
        yield at
    log.storage.put(name, whole)


def got(log: ChangeLog, name: str) -> bytes:
    data = log.storage.get(name)
    assert data is not None
    return data


def assert_noticed(log: ChangeLog, name: str, read: Callable[[], object], most: int | None = None) -> None:
    for at in flips(log, name, most):
        with pytest.raises(ChangeLogDamaged) as raised:
            read()
        assert log.storage.uri(name) in str(raised.value), f"byte {at}"
    read()


def test_bits_of_a_manifest(log: ChangeLog, written: Manifest) -> None:
    assert_noticed(log, MANIFEST, lambda: log.reopened().read(1), most=400)


def test_bits_of_a_schema(log: ChangeLog, written: Manifest) -> None:
    assert_noticed(log, WRITTEN_IN, lambda: log.reopened().schema(42, 1), most=400)


def test_bits_of_a_segment(log: ChangeLog, written: Manifest) -> None:
    (segment,) = written.tables[42].segments
    assert_noticed(log, segment.file, lambda: log.verify(segment), most=300)


def test_a_segment_that_was_cut_off_or_is_gone(log: ChangeLog, written: Manifest) -> None:
    (segment,) = written.tables[42].segments
    log.storage.put(segment.file, got(log, segment.file)[:-1])
    with pytest.raises(ChangeLogDamaged, match="checksum"):
        log.commits(segment)
    log.storage.delete(segment.file)
    with pytest.raises(ChangeLogDamaged, match="missing"):
        log.verify(segment)


def test_files_from_before_checksums_are_read(log: ChangeLog, written: Manifest) -> None:
    data = json.loads(got(log, MANIFEST))
    del data["sha256"], data["tables"][0]["segments"][0]["sha256"]
    log.storage.put(MANIFEST, json.dumps(data, indent=1).encode())
    log.storage.put(WRITTEN_IN, json.dumps(SCHEMA.to_json(), indent=1).encode())
    fresh = log.reopened()
    (segment,) = fresh.read(1).tables[42].segments
    assert segment == Segment(**{**vars(written.tables[42].segments[0]), "sha256": ""})
    assert fresh.commits(segment) == (Lsn(150), Lsn(150))


def test_a_log_that_begins_after_damage_has_nothing_of_it(log: ChangeLog, written: Manifest) -> None:
    log.storage.put(MANIFEST, b"x")
    log.storage.put(WRITTEN_IN, b"x")
    fresh = log.reopened()
    fresh.begin(Lsn(300), damaged=True)
    assert (fresh.position(), fresh.stretch.manifest, fresh.oldest()) == (Lsn(300), 2, 2)
    assert fresh.schemas.version(SCHEMA) == 1 and fresh.schema(42, 1) == SCHEMA
    assert fresh.sweep() == 1 and not fresh.stretch.continues(1, Lsn(300))
    assert log.storage.get("schemas/42/1.damaged") == b"x"
