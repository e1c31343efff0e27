"""The change log as files: contiguous, durable, never written over, and honest about damage."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from changelogs import ORIGIN, begun, directory_of
from wal2lake.changelog import ChangeLog, LogStorage, Manifest, ManifestEntry, Origin, Segment
from wal2lake.changelog.segment import SegmentRows, SegmentWriter
from wal2lake.changelog.storages.memory import Call, MemoryStorage
from wal2lake.changelog.store import SEGMENTS
from wal2lake.errors import ChangeLogDamaged, GroupHeld, SourceReplaced
from wal2lake.position import Lsn
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType
from wal2lake.visibility import Visibility

SCHEMA = TableSchema(
    42,
    TableId("public", "t"),
    (Column("id", 23, -1, "integer", LakeType.parse("int")),),
    ("id",),
    ReplicaIdentity.DEFAULT,
)


def segment(log: ChangeLog, *commits: int) -> Segment:
    batch = pa.record_batch({"id": pa.array(range(len(commits)), pa.int32()), "_commit_lsn": pa.array(commits)})
    writer = SegmentWriter(log, 42, log.schemas.version(SCHEMA), batch.schema)
    writer.write(SegmentRows(42, log.schemas.version(SCHEMA), batch, len(commits), 0, 0, 0, 0))
    return writer.finish()


def publish(log: ChangeLog, to: int) -> Manifest:
    cut = ManifestEntry(42, "public.t", (segment(log, to - 1),))
    return log.publish(Lsn(to), 1, datetime(2024, 1, 1, tzinfo=UTC), {42: cut})


def root_of(log: ChangeLog) -> str:
    """The place of a log on disk, for the code of another process."""
    return f"pathlib.Path({str(directory_of(log).parent)!r})"


def test_an_empty_log_is_at_its_start(log: ChangeLog) -> None:
    assert (log.position(), log.acknowledged(), log.last(), log.after(0)) == (Lsn(100), Lsn(100), None, [])
    assert log.exists and log.started and log.origin == ORIGIN and log.stretch.lsn == Lsn(100)


def test_a_log_without_a_slot_exists_and_is_not_started(storage: LogStorage) -> None:
    log = ChangeLog(storage, "g")
    assert (log.exists, log.started) == (False, False)
    log.create(ORIGIN, ORIGIN.slot)
    assert (log.exists, log.started) == (True, False)
    with pytest.raises(ChangeLogDamaged, match="no start"):
        log.position()


def test_manifests_are_contiguous_and_read_by_another_process(log: ChangeLog) -> None:
    reader = log.reopened()
    assert reader.after(0) == []
    written = [publish(log, to) for to in (200, 300, 400)]
    assert [m.number for m in written] == [1, 2, 3]
    assert [(m.from_lsn, m.to_lsn) for m in written] == [(100, 200), (200, 300), (300, 400)]
    assert reader.after(0) == written and reader.after(2) == written[2:] and reader.after(3) == []
    assert reader.position() == Lsn(400)
    publish(log, 500)
    assert [m.number for m in reader.after(3)] == [4]


def test_a_file_that_is_there_is_never_written_over(log: ChangeLog) -> None:
    log.storage.put_new("manifests/1.json", b"first")
    with pytest.raises(FileExistsError):
        log.storage.put_new("manifests/1.json", b"second")
    assert log.storage.get("manifests/1.json") == b"first" and log.storage.names("manifests") == ["manifests/1.json"]


def test_a_second_writer_fails_loudly(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    other = log.reopened()
    publish(log, 200)
    publish(log, 300)
    # What the other saw before this one wrote.
    monkeypatch.setattr(other, "last", lambda: other.read(1))
    with pytest.raises(ChangeLogDamaged, match="another process"):
        other.publish(Lsn(400), 1, None, {})
    assert log.reopened().position() == Lsn(300)


def test_a_held_log_is_refused_to_others(log: ChangeLog) -> None:
    with log.held(), pytest.raises(GroupHeld, match=str(os.getpid())), log.reopened().held():
        pass
    with log.reopened().held():
        assert log.started


def test_a_held_log_is_refused_to_others_until_its_holder_ends(log_on_disk: ChangeLog) -> None:
    log = log_on_disk
    code = "import os, sys, pathlib; from wal2lake.changelog import ChangeLog, storage_for\n"
    code += f"with ChangeLog(storage_for({root_of(log)}), 'g').held(): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with log.held():
        assert log.started


def test_a_missing_manifest_is_damage(log: ChangeLog) -> None:
    for to in (200, 300, 400):
        publish(log, to)
    log.storage.delete("manifests/2.json")
    with pytest.raises(ChangeLogDamaged, match="manifest 2 is missing"):
        log.reopened().after(0)
    assert [m.number for m in log.reopened().after(2)] == [3]


@pytest.mark.parametrize("text", ["", "{", '{"format": 99}', "{}"])
def test_a_manifest_that_can_t_be_read_is_damage(log: ChangeLog, text: str) -> None:
    publish(log, 200)
    log.storage.put("manifests/1.json", text.encode())
    with pytest.raises(ChangeLogDamaged):
        log.reopened().position()


def test_a_manifest_that_does_not_continue_the_one_before_is_damage(log: ChangeLog) -> None:
    publish(log, 200)
    publish(log, 300)
    log.storage.put("manifests/2.json", replace(log.read(2), from_lsn=Lsn(201)).to_json().encode())
    with pytest.raises(ChangeLogDamaged, match="begins at"):
        log.reopened().after(0)


def there(log: ChangeLog, segment: Segment) -> bool:
    return log.storage.stat(segment.file) is not None


def test_sweep_removes_segments_that_no_manifest_names(log: ChangeLog) -> None:
    kept = publish(log, 200).tables[42].segments[0]
    stray = segment(log, 250)
    assert log.sweep() == 1
    assert there(log, kept) and not there(log, stray)
    assert log.sweep() == 0


def test_sweep_removes_what_no_manifest_names(log_on_disk: ChangeLog) -> None:
    log = log_on_disk
    kept = publish(log, 200).tables[42].segments[0]
    stray = segment(log, 250)
    (directory_of(log) / "manifests" / ".2.json.4194305.tmp").write_text("half")
    assert log.sweep() == 2
    assert there(log, kept) and not there(log, stray)
    assert log.sweep() == 0


def test_retire_keeps_the_last_manifest_and_the_position(log: ChangeLog) -> None:
    cuts = [publish(log, to) for to in (200, 300, 400)]
    assert log.retire(99) == 2
    fresh = log.reopened()
    assert fresh.position() == Lsn(400) and [m.number for m in fresh.after(2)] == [3]
    assert [there(log, m.tables[42].segments[0]) for m in cuts] == [False, False, True]
    with pytest.raises(ChangeLogDamaged):
        fresh.after(0)
    assert publish(fresh, 500).number == 4


def test_a_segment_that_could_not_be_deleted_is_deleted_when_more_is_retired(
    log: ChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is gone already, so nothing else names it."""
    cuts = [publish(log, to) for to in (200, 300, 400)]
    delete = type(log.storage).delete

    def failing(storage: LogStorage, name: str) -> None:
        if name.startswith(SEGMENTS):
            raise OSError("the storage is away")
        delete(storage, name)

    with monkeypatch.context() as away:
        away.setattr(type(log.storage), "delete", failing)
        with pytest.raises(OSError, match="is away"):
            log.retire(99)
    log.retire(99)
    assert [there(log, m.tables[42].segments[0]) for m in cuts] == [False, False, True]


def test_acknowledged_positions_outlive_the_process(log: ChangeLog) -> None:
    log.record_acknowledged(Lsn(150))
    assert log.reopened().acknowledged() == Lsn(150)
    publish(log, 200)
    assert log.reopened().acknowledged() == Lsn(200)


def test_a_new_stretch_continues_the_numbers_and_not_the_positions(log: ChangeLog) -> None:
    publish(log, 200)
    log.record_acknowledged(Lsn(250))
    log.create(ORIGIN, ORIGIN.slot)
    log.begin(Lsn(1000))
    assert (log.position(), log.acknowledged(), log.stretch.lsn) == (Lsn(1000), Lsn(1000), Lsn(1000))
    after = publish(log, 1100)
    assert (after.number, after.from_lsn) == (3, Lsn(1000))
    boundary = log.reopened().after(0)[1]
    assert [m.number for m in log.reopened().after(0)] == [1, 2, 3] and not boundary.tables


def test_a_table_of_an_older_stretch_can_not_follow_wherever_it_is(log: ChangeLog) -> None:
    assert log.stretch.continues(0, Lsn(100)) and not log.stretch.continues(0, Lsn(99))
    publish(log, 200)
    log.begin(Lsn(150))
    assert not log.stretch.continues(1, Lsn(200))
    assert log.stretch.continues(2, Lsn(150)) and not log.stretch.continues(2, Lsn(149))


def test_a_stored_position_is_kept_until_a_lower_one_is_stored_or_a_new_stretch_begins(log: ChangeLog) -> None:
    witness = log.witness
    assert (witness.stored(), witness.timeline()) == (None, None)
    witness.has_stored(Lsn(120))
    witness.on_timeline(3)
    assert (log.reopened().witness.stored(), log.reopened().witness.timeline()) == (Lsn(120), 3)
    witness.storing(Lsn(130))
    assert witness.stored() == Lsn(120)
    witness.storing(Lsn(110))
    assert witness.stored() is None
    witness.has_stored(Lsn(110))
    log.begin(Lsn(150))
    assert (witness.stored(), witness.timeline()) == (None, None)


def test_schemas_get_a_version_when_they_differ_from_the_last(log: ChangeLog) -> None:
    wider = TableSchema(42, SCHEMA.id, (*SCHEMA.columns, Column("v", 25, -1, "text", LakeType.parse("string"))),
                        ("id",), ReplicaIdentity.DEFAULT)  # fmt: skip
    assert [log.schemas.version(s) for s in (SCHEMA, SCHEMA, wider, SCHEMA)] == [1, 1, 2, 3]
    fresh = log.reopened()
    assert [fresh.schema(42, n) for n in (1, 2, 3)] == [SCHEMA, wider, SCHEMA]
    assert fresh.schemas.version(SCHEMA) == 3
    with pytest.raises(ChangeLogDamaged):
        fresh.schema(42, 4)


def test_the_first_and_the_last_commit_of_a_segment_are_read_from_it(log: ChangeLog) -> None:
    assert log.commits(segment(log, 110, 130, 130)) == (Lsn(110), Lsn(130))


def test_a_log_of_another_database_is_refused(log: ChangeLog) -> None:
    log.must_be_from(Origin("1", 5, "any"))
    with pytest.raises(SourceReplaced):
        log.must_be_from(Origin("2", 5, "any"))
    with pytest.raises(SourceReplaced):
        log.must_be_from(Origin("1", 6, "any"))


def test_remove_leaves_nothing(log: ChangeLog) -> None:
    publish(log, 200)
    log.remove()
    assert not log.exists and log.last() is None and not log.storage.names() and not log.storage.prefixes()


def test_remove_leaves_no_directory(log_on_disk: ChangeLog) -> None:
    publish(log_on_disk, 200)
    log_on_disk.remove()
    assert not directory_of(log_on_disk).exists()


def test_a_segment_whose_writing_failed_can_not_be_finished(log: ChangeLog) -> None:
    version = log.schemas.version(SCHEMA)
    writer = SegmentWriter(log, 42, version, pa.schema([("id", pa.int64())]))
    with pytest.raises(ValueError, match="schema"):
        writer.write(SegmentRows(42, version, pa.record_batch({"other": pa.array(["x"])}), 1, 0, 0, 0, 0))
    with pytest.raises(ValueError, match="closed"):
        writer.finish()


def test_a_log_of_triggers_goes_on_with_a_slot_where_it_has_crossed(storage: LogStorage) -> None:
    log = ChangeLog(storage, "g")
    crossing = Visibility.of("7:8:7", Lsn(200))
    log.create(ORIGIN, "a_slot")
    by_triggers = [log.by_triggers]
    log.begin(Lsn(100), token="5:5:")
    log.publish(Lsn(150), 1, None, {}, "7:8:7")
    by_triggers += [log.by_triggers, log.reopened().by_triggers]
    log.cross(crossing)
    by_triggers += [log.by_triggers, log.reopened().by_triggers]
    assert (log.reopened().stretch.crossing, log.position()) == (crossing, Lsn(150))
    log.begin(Lsn(300), token="9:9:")
    assert [*by_triggers, log.by_triggers] == [False, True, True, False, False, True]


def test_sweep_leaves_the_file_that_another_living_process_is_about_to_name(log_on_disk: ChangeLog) -> None:
    log = log_on_disk
    alive = directory_of(log) / f".stored.json.{os.getppid()}.{threading.get_ident()}.tmp"
    alive.write_text("half")
    assert log.sweep() == 0
    assert alive.exists()


@pytest.mark.parametrize("writing", ["log.record_acknowledged(Lsn(150))", "log.publish(Lsn(200), 1, None, {})"])
def test_sweep_removes_the_file_of_a_process_that_died_before_it_was_named(
    log_on_disk: ChangeLog, writing: str
) -> None:
    log = log_on_disk
    code = f"""
import os, pathlib
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.position import Lsn
os.link = pathlib.Path.rename = lambda *_: os.kill(os.getpid(), 9)
log = ChangeLog(storage_for({root_of(log)}), "g")
{writing}
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(list(directory_of(log).rglob("*.tmp"))) == 1
    assert log.sweep() == 1
    assert list(directory_of(log).rglob("*.tmp")) == [] and log.position() == Lsn(100)


def test_a_segment_that_the_storage_can_not_give_at_the_moment_is_not_damaged() -> None:
    """Its table was stopped, as if it had to be copied again."""
    opened: list[Call] = []

    def hook(call: Call) -> None:
        if call.operation == "open" and call.done:
            opened.append(call)
            if len(opened) == 2:
                raise OSError(errno.EIO, "lost")

    storage = MemoryStorage(hook)
    log = begun(storage.within("g"))
    (one,) = publish(log, 200).tables[42].segments
    with pytest.raises(OSError, match="lost"):
        log.commits(one)
    assert log.commits(one) == (Lsn(199), Lsn(199))
