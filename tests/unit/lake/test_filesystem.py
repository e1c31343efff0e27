from pathlib import Path

import pytest

from wal2lake.config import Config
from wal2lake.errors import LakeUnwritable
from wal2lake.lake import Lake, filesystem

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


def test_a_catalog_that_is_named_may_be_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_magic", lambda _: 0x6969)
    catalog = {"type": "jdbc", "uri": "jdbc:postgresql://db/catalog", "warehouse": str(tmp_path)}
    config = Config(source={"dsn": "postgresql://nowhere"}, lake={"path": str(tmp_path), "catalog": catalog})
    Lake(config)._require_local_catalog()
