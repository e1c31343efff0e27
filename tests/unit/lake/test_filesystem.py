import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wal2lake.config import Config
from wal2lake.errors import LakeUnwritable
from wal2lake.lake import Lake
from wal2lake.lake.iceberg import filesystem
from wal2lake.lake.iceberg.catalog import sqlite_file

TMPFS, PROC = 0x01021994, 0x9FA0


def test_the_kind_of_a_file_system_is_what_the_kernel_says() -> None:
    assert filesystem._magic(Path("/proc")) == PROC
    assert filesystem._magic(Path("/dev/shm")) == TMPFS


def test_a_local_directory_is_on_no_network(tmp_path: Path) -> None:
    assert filesystem.network_file_system(tmp_path / "lake" / "that is not there yet") is None


@pytest.mark.parametrize(("magic", "name"), [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0x65735546, "FUSE")])
def test_a_sqlite_catalog_on_a_network_file_system_is_refused_before_spark_starts(
    magic: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_magic", lambda _: magic)
    lake = Lake(Config(source={"dsn": "postgresql://nowhere"}, lake={"path": str(tmp_path / "lake")}))
    with pytest.raises(LakeUnwritable, match=name) as refused:
        lake.start()
    assert "[lake.catalog]" in refused.value.remedy
    assert not (tmp_path / "lake" / "catalog.db").exists()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on another file system than the tests' own, which counts as one of a network."""
    monkeypatch.setattr(filesystem, "_NETWORK", {TMPFS: "NFS"})
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


@pytest.fixture
def near() -> Iterator[Path]:
    """A directory of this checkout: those of tests may be in memory."""
    cache = Path(__file__).parents[3] / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        yield Path(made)


def test_what_counts_is_where_a_path_leads_to(far: Path, near: Path) -> None:
    assert filesystem._magic(near) != TMPFS, "the tests' own directory has to be on another file system"
    (near / "directory").symlink_to(far)
    (near / "file.db").symlink_to(far / "not there yet.db")
    (far / "back").symlink_to(near)
    linked = near / "directory"
    for path in (far, far / "a" / "b", linked, linked / "c.db", linked / ".." / "c.db", near / "file.db"):
        assert filesystem.network_file_system(path) == "NFS", path
    for path in (near, near / "a" / "b", far / "back", far / "back" / "c.db"):
        assert filesystem.network_file_system(path) is None, path


def test_a_path_is_taken_from_where_the_process_is(far: Path, near: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(far)
    assert filesystem.network_file_system(Path("lake/catalog.db")) == "NFS"
    monkeypatch.chdir(near)
    assert filesystem.network_file_system(Path("lake/catalog.db")) is None


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("jdbc:sqlite:/lake/c.db", "/lake/c.db"),
        ("JDBC:SQLite:/lake/c.db?journal_mode=WAL", "/lake/c.db"),
        ("jdbc:sqlite:c.db", "c.db"),
        ("jdbc:sqlite:file:/lake/a%20b.db?cache=shared", "/lake/a b.db"),
        ("jdbc:sqlite:file:///lake/c.db", "/lake/c.db"),
        ("jdbc:sqlite:file://localhost/lake/c.db", "/lake/c.db"),
        ("jdbc:sqlite:", None),
        ("jdbc:sqlite::memory:", None),
        ("jdbc:sqlite:file:c?mode=memory&cache=shared", None),
        ("jdbc:postgresql://db/catalog", None),
        ("http://rest:8181", None),
    ],
)
def test_the_file_of_a_sqlite_address(uri: str, file: str | None) -> None:
    assert sqlite_file(uri) == (None if file is None else Path(file))


def test_a_sqlite_catalog_that_is_named_is_refused_on_a_network_file_system(far: Path, near: Path) -> None:
    def started(file: Path, path: Path) -> None:
        catalog = {"type": "jdbc", "uri": f"jdbc:sqlite:{file}", "warehouse": str(path)}
        config = Config(source={"dsn": "postgresql://nowhere"}, lake={"path": str(path), "catalog": catalog})
        Lake(config)._tables.require_usable()

    with pytest.raises(LakeUnwritable, match="NFS") as refused:
        started(far / "c.db", near)
    assert str(far / "c.db") in str(refused.value) and "[lake.catalog]" in refused.value.remedy
    started(near / "c.db", far)


def test_a_catalog_that_is_named_may_be_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_magic", lambda _: 0x6969)
    catalog = {"type": "jdbc", "uri": "jdbc:postgresql://db/catalog", "warehouse": str(tmp_path)}
    config = Config(source={"dsn": "postgresql://nowhere"}, lake={"path": str(tmp_path), "catalog": catalog})
    Lake(config)._tables.require_usable()
