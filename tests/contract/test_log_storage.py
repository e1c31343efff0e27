"""The contract of LogStorage, for every implementation; and the directory storage through a crash."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from wal2lake.changelog import LogStorage
from wal2lake.changelog.stamp import Mark
from wal2lake.changelog.storage import AlreadyHeld
from wal2lake.changelog.storages.directory import DirectoryStorage
from wal2lake.changelog.storages.memory import MemoryStorage

Place = Callable[[], LogStorage]
"""one place, each time as another process has it"""


@pytest.fixture(params=["directory", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return lambda: DirectoryStorage(tmp_path / "logs")
    shared = MemoryStorage()
    return lambda: shared


@pytest.fixture
def storage(place: Place) -> LogStorage:
    made = place()
    made.prepare()
    return made


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStorage:
    made = DirectoryStorage(tmp_path)
    made.prepare()
    return made


# ---- things and names


def test_what_is_missing_is_said_to_be(storage: LogStorage) -> None:
    assert (storage.get("a/b.json"), storage.stat("a/b.json"), storage.names("a"), storage.prefixes("a")) == (
        None, None, [], [],
    )  # fmt: skip
    storage.delete("a/b.json")
    with pytest.raises(FileNotFoundError) as raised:
        storage.open("a/b.json")
    assert raised.value.filename is not None and str(raised.value.filename) == storage.uri("a/b.json")


def test_a_name_below_a_thing_is_missing(storage: LogStorage) -> None:
    storage.put("a", b"1")
    assert (storage.get("a/b"), storage.stat("a/b"), storage.names("a"), storage.prefixes("a")) == (None, None, [], [])


@pytest.mark.parametrize("how", ["put", "put_new"])
def test_what_was_put_is_seen_by_every_process(place: Place, storage: LogStorage, how: str) -> None:
    getattr(storage, how)("manifests/1.json", b"one")
    for seen in (storage, place()):
        assert seen.get("manifests/1.json") == b"one"
        assert seen.names("manifests") == ["manifests/1.json"] and seen.prefixes() == ["manifests"]
        facts = seen.stat("manifests/1.json")
        assert facts is not None and facts.bytes == 3
        with seen.open("manifests/1.json") as file:
            assert (file.seek(1), file.read(), file.seek(0), file.read(1)) == (1, b"ne", 0, b"o")


def test_a_thing_may_be_empty(storage: LogStorage) -> None:
    storage.put("a", b"")
    facts = storage.stat("a")
    assert storage.get("a") == b"" and facts is not None and facts.bytes == 0


def test_put_takes_the_place_of_what_was_there_and_gives_it_another_tag(place: Place, storage: LogStorage) -> None:
    storage.put("group.json", b"same")
    before = storage.stat("group.json")
    assert place().stat("group.json") == before, "it is the same as long as the thing is"
    storage.put("group.json", b"same")
    assert storage.get("group.json") == b"same" and storage.stat("group.json") != before
    storage.put("group.json", b"longer than that")
    assert place().get("group.json") == b"longer than that"


def test_a_name_that_is_taken_is_refused_and_what_has_it_stays(place: Place, storage: LogStorage) -> None:
    storage.put_new("manifests/1.json", b"first")
    for other in (storage, place()):
        with pytest.raises(FileExistsError):
            other.put_new("manifests/1.json", b"second")
    assert storage.get("manifests/1.json") == b"first" and storage.names("manifests") == ["manifests/1.json"]
    storage.delete("manifests/1.json")
    storage.put_new("manifests/1.json", b"third")
    assert storage.get("manifests/1.json") == b"third"


def test_of_many_that_put_the_same_new_name_one_does(place: Place, storage: LogStorage) -> None:
    workers, names = 6, [f"manifests/{number}.json" for number in range(15)]
    storage.prepare("manifests")
    together = threading.Barrier(workers)
    won: list[tuple[str, bytes]] = []

    def work(number: int) -> None:
        mine = place()
        for name in names:
            together.wait(30)
            with suppress(FileExistsError):
                mine.put_new(name, b"%d" % number)
                won.append((name, b"%d" % number))

    in_threads(*(lambda number=number: work(number) for number in range(workers)))
    assert sorted(name for name, _ in won) == sorted(names)
    assert all(storage.get(name) == data for name, data in won)


def test_a_thing_that_is_replaced_is_always_seen_whole(place: Place, storage: LogStorage) -> None:
    versions = {bytes([byte]) * 200_000 for byte in range(40)}
    storage.put("group.json", min(versions))
    over = threading.Event()
    seen = []

    def write() -> None:
        for data in sorted(versions):
            storage.put("group.json", data)
        over.set()

    def read() -> None:
        mine = place()
        while not over.is_set():
            seen.append(mine.get("group.json") in versions and mine.names() == ["group.json"])

    in_threads(write, read)
    assert all(seen) and storage.get("group.json") == max(versions)


def test_names_are_those_directly_below_a_prefix_by_code_points(storage: LogStorage) -> None:
    for name in ("s/9.json", "s/10.json", "s/a", "s/B", "s/é", "s/deep/1", "s/deeper/2/3", "st/1", "top"):
        storage.put(name, b"")
    assert storage.names("s") == ["s/10.json", "s/9.json", "s/B", "s/a", "s/é"]
    assert storage.prefixes("s") == ["s/deep", "s/deeper"]
    assert (storage.names(), storage.prefixes()) == (["top"], ["s", "st"])
    assert (storage.names("s/deeper"), storage.prefixes("s/deeper")) == ([], ["s/deeper/2"])


def test_a_listing_has_what_is_there_all_the_time(place: Place, storage: LogStorage) -> None:
    kept = [f"manifests/{number}.json" for number in range(0, 60, 2)]
    for name in kept:
        storage.put(name, b"")
    over = threading.Event()
    seen = []

    def change() -> None:
        for number in range(1, 60, 2):
            storage.put(f"manifests/{number}.json", b"")
            storage.delete(f"manifests/{number}.json")
        over.set()

    def read() -> None:
        mine = place()
        while not over.is_set():
            names = mine.names("manifests")
            seen.append(set(kept) <= set(names) and all(name.endswith(".json") for name in names))

    in_threads(change, read)
    assert all(seen) and storage.names("manifests") == sorted(kept)


def test_what_is_deleted_is_gone_for_every_process(place: Place, storage: LogStorage) -> None:
    storage.put("segments/1/a.parquet", b"x")
    place().delete("segments/1/a.parquet")
    assert storage.get("segments/1/a.parquet") is None and storage.names("segments/1") == []
    storage.delete("segments/1/a.parquet")


def test_who_reads_a_thing_that_is_deleted_gets_it_whole_or_an_error(place: Place, storage: LogStorage) -> None:
    data = os.urandom(300_000)
    storage.put("a", data)
    with storage.open("a") as file, suppress(FileNotFoundError):
        begin = file.read(10)
        place().delete("a")
        assert begin + file.read() == data


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a/.", ".."])
def test_what_is_no_name_is_refused(storage: LogStorage, name: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: storage.get(name), lambda: storage.put(name, b""), lambda: storage.put_new(name, b""),
        lambda: storage.open(name), lambda: storage.stat(name), lambda: storage.delete(name),
        lambda: storage.open_segment(name), lambda: storage.within(name), lambda: storage.prepare(name),
    ]  # fmt: skip
    if name:
        calls += [lambda: storage.names(name), lambda: storage.prefixes(name), lambda: storage.uri(name)]
    for call in calls:
        with pytest.raises(ValueError, match="no name"):
            call()


# ---- places


def test_a_place_within_has_the_names_below_its_prefix(storage: LogStorage) -> None:
    group = storage.within("shop")
    group.prepare()
    group.put("group.json", b"x")
    assert storage.get("shop/group.json") == b"x" and storage.prefixes() == ["shop"] and group.names() == ["group.json"]
    storage.put("shop/manifests/1.json", b"y")
    assert group.get("manifests/1.json") == b"y" == storage.within("shop").within("manifests").get("1.json")
    assert group.uri("group.json") == storage.uri("shop/group.json") == f"{group.uri()}/group.json"


def test_nothing_is_put_before_a_place_is_prepared_or_after_it_was_removed(storage: LogStorage) -> None:
    group = storage.within("shop")
    puts: list[Callable[[], object]] = [
        lambda: group.put("a", b""), lambda: group.put_new("b", b""), lambda: group.put_new("c/d", b""),
        lambda: group.open_segment("segments/1/a.parquet"),
    ]  # fmt: skip
    for turn in range(2):
        for put in puts:
            with pytest.raises(FileNotFoundError):
                put()
        assert (group.names(), group.prefixes(), storage.prefixes()) == ([], [], []), turn
        group.prepare("segments")
        group.put("a", b"1")
        group.prepare("segments")
        assert group.get("a") == b"1", "what is there stays"
        group.remove()


def test_remove_deletes_a_place_with_all_that_is_in_it_and_nothing_else(storage: LogStorage) -> None:
    for name in ("shop", "shop2"):
        group = storage.within(name)
        group.prepare("manifests")
        group.put("group.json", b"")
        group.put("manifests/1.json", b"")
    storage.within("shop").remove()
    storage.within("never").remove()
    assert storage.within("shop").names() == [] == storage.names("shop/manifests")
    assert storage.names("shop2/manifests") == ["shop2/manifests/1.json"]


def test_sweep_leaves_what_was_put(storage: LogStorage) -> None:
    storage.put("a", b"1")
    with storage.held():
        assert storage.sweep() == 0 == storage.within("never").sweep()
    assert storage.get("a") == b"1"


# ---- segments


def test_a_segment_is_there_when_it_is_finished(place: Place, storage: LogStorage) -> None:
    opened = storage.open_segment("segments/1/a.parquet")
    parts = [os.urandom(size) for size in (1, 70_000, 0, 3)]
    for part in parts:
        opened.sink.write(part)
    data = b"".join(parts)
    assert opened.sink.tell() == len(data)
    assert opened.finish() == (len(data), hashlib.sha256(data).hexdigest())
    assert opened.sink.closed and place().get("segments/1/a.parquet") == data
    assert place().names("segments/1") == ["segments/1/a.parquet"]


def test_a_segment_takes_no_name_that_is_taken(storage: LogStorage) -> None:
    opened = storage.open_segment("segments/1/a.parquet")
    for _ in range(2):
        with pytest.raises(FileExistsError):
            storage.open_segment("segments/1/a.parquet")
        if not opened.sink.closed:
            opened.finish()
    with pytest.raises(FileExistsError):
        storage.put_new("segments/1/a.parquet", b"")


def test_a_segment_that_ended_can_not_be_finished(storage: LogStorage) -> None:
    for number, end in enumerate(("finish", "abandon", "discard")):
        opened = storage.open_segment(f"segments/1/{number}")
        opened.sink.write(b"x")
        getattr(opened, end)()
        assert opened.sink.closed
        with pytest.raises(ValueError, match="closed"):
            opened.finish()


def test_what_was_abandoned_is_nothing_or_an_orphan_that_can_be_deleted(storage: LogStorage) -> None:
    opened = storage.open_segment("segments/1/a")
    opened.sink.write(b"x")
    opened.abandon()
    opened.abandon()
    for name in storage.names("segments/1"):
        storage.delete(name)
    assert storage.names("segments/1") == []


@pytest.mark.parametrize("finished", [False, True])
def test_what_was_discarded_is_gone(storage: LogStorage, finished: bool) -> None:
    opened = storage.open_segment("segments/1/a")
    opened.sink.write(b"x")
    if finished:
        opened.finish()
    opened.discard()
    opened.discard()
    assert storage.get("segments/1/a") is None and storage.names("segments/1") == []


def test_a_stamp_is_in_the_bytes_and_in_the_checksum(storage: LogStorage) -> None:
    opened = storage.open_segment("segments/1/a")
    opened.sink.write(b"head ....MARK.. mid" + b"MARK" + b" tail" * 5000)
    opened.stamp([Mark(0, 16, b"MARK", b"1234"), Mark(16, 30, b"MARK", b"5678")])
    data = b"head ....1234.. mid" + b"5678" + b" tail" * 5000
    assert opened.finish() == (len(data), hashlib.sha256(data).hexdigest())
    assert storage.get("segments/1/a") == data


@pytest.mark.parametrize(("begin", "end"), [(0, 5), (0, 20), (8, 11)])
def test_a_mark_that_is_not_there_once_is_refused(storage: LogStorage, begin: int, end: int) -> None:
    opened = storage.open_segment("segments/1/a")
    opened.sink.write(b"12345MARK5MARK567890")
    with pytest.raises(ValueError, match="mark"):
        opened.stamp([Mark(begin, end, b"MARK", b"0000")])
    opened.discard()


# ---- holding


def test_one_at_a_time_holds_a_place(place: Place, storage: LogStorage) -> None:
    group, other = storage.within("shop"), place().within("shop")
    with group.held():
        with pytest.raises(AlreadyHeld) as raised, other.held():
            pass
        assert raised.value.holder == f"process {os.getpid()}"
        with storage.within("other").held():
            group.put("a", b"a place that is held is prepared")
        assert group.names() == ["a"], "what holds it is no thing"
    with pytest.raises(KeyError), other.held():
        raise KeyError
    with group.held():
        pass


# ---- the directory through crashes


def test_everything_is_on_disk_before_it_has_a_name_and_the_name_before_it_counts(
    directory: DirectoryStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def shown(path: Any) -> str:
        text = os.path.relpath(path, tmp_path)
        return "temporary" if text.endswith(".tmp") else text

    def synced(fd: int) -> None:
        steps.append(f"sync {shown(Path(f'/proc/self/fd/{fd}').readlink())}")

    link, rename = os.link, Path.rename

    def linked(source: Path, target: Path) -> None:
        steps.append(f"link {shown(target)}")
        link(source, target)

    def renamed(source: Path, target: Path) -> Path:
        steps.append(f"rename {shown(target)}")
        return rename(source, target)

    def done(act: Callable[[], object]) -> list[str]:
        steps.clear()
        act()
        return list(steps)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(Path, "rename", renamed)
    assert done(lambda: directory.put_new("manifests/1.json", b"")) == [
        "sync .", "sync temporary", "link manifests/1.json", "sync manifests",
    ]  # fmt: skip
    assert done(lambda: directory.put_new("manifests/2.json", b"")) == [
        "sync temporary", "link manifests/2.json", "sync manifests",
    ]  # fmt: skip
    assert done(lambda: directory.put("group.json", b"")) == ["sync temporary", "rename group.json", "sync ."]
    opened = directory.open_segment("segments/1/a")
    assert steps[3:] == ["sync .", "sync segments"], "the directories are made, and their names are on disk"
    assert done(opened.finish) == ["sync segments/1/a", "sync segments/1"]


@pytest.mark.parametrize("writing", ["put('a/b.json', b'x')", "put_new('a/b.json', b'x')"])
def test_a_writer_that_dies_before_its_thing_has_a_name_leaves_what_is_swept(
    directory: DirectoryStorage, tmp_path: Path, writing: str
) -> None:
    code = f"""
import os, pathlib
from wal2lake.changelog.storages.directory import DirectoryStorage
os.link = pathlib.Path.rename = lambda *_: os.kill(os.getpid(), 9)
DirectoryStorage(pathlib.Path({str(tmp_path)!r})).{writing}
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    left = list(tmp_path.rglob("*.tmp"))
    assert len(left) == 1 and directory.names("a") == [] and directory.get("a/b.json") is None
    alive = tmp_path / "a" / f".c.json.{os.getppid()}.1.tmp"
    alive.write_text("half")
    assert directory.sweep() == 1
    assert list(tmp_path.rglob("*.tmp")) == [alive], "that process is alive, and may be about to name it"


def test_a_refused_put_leaves_no_temporary_file(directory: DirectoryStorage, tmp_path: Path) -> None:
    directory.put_new("a", b"1")
    with pytest.raises(FileExistsError):
        directory.put_new("a", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_where_a_directory_belongs_is_no_name_that_is_taken(directory: DirectoryStorage) -> None:
    directory.put("schemas", b"")
    for put in (directory.put, directory.put_new):
        with pytest.raises(NotADirectoryError):
            put("schemas/1/1.json", b"")


def test_a_directory_that_another_process_deleted_is_made_again(directory: DirectoryStorage, tmp_path: Path) -> None:
    directory.prepare("segments")
    for number in range(3):
        directory.open_segment(f"segments/1/{number}").finish()
        directory.put(f"schemas/1/{number}", b"")
        assert directory.names("segments/1") == [f"segments/1/{number}"]
        assert directory.names("schemas/1") == [f"schemas/1/{number}"]
        for name in ("segments", "schemas"):
            shutil.rmtree(tmp_path / name)
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError):
        directory.put("schemas/1/1", b"")


def test_a_holder_that_is_killed_holds_nothing(directory: DirectoryStorage, tmp_path: Path) -> None:
    code = f"""
import os, pathlib
from wal2lake.changelog.storages.directory import DirectoryStorage
with DirectoryStorage(pathlib.Path({str(tmp_path)!r})).held():
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with directory.held():
        assert directory.names() == []


def in_threads(*work: Callable[[], object]) -> None:
    """Do all at the same time; the first error is raised."""
    errors: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
