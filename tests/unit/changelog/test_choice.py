"""Locations lead to storages."""

from pathlib import Path

import pytest

from wal2lake.changelog import scratch_for, storage_for


def test_a_directory_is_named_by_its_path_or_by_a_file_uri(tmp_path: Path) -> None:
    place = tmp_path / "a log"
    by_path, by_text, by_uri = storage_for(place), storage_for(str(place)), storage_for(place.as_uri())
    assert by_path.uri("x") == by_text.uri("x") == by_uri.uri("x")


def test_a_location_without_a_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="no storage for s3://"):
        storage_for("s3://bucket/log")


def test_scratch_files_of_a_directory_are_in_it_and_removed_with_it(tmp_path: Path) -> None:
    spools = {name: scratch_for(tmp_path) / name / "spool" for name in ("shop", "shop2")}
    assert scratch_for(tmp_path) == scratch_for(tmp_path.as_uri()) and not spools["shop"].exists()
    for name, spool in spools.items():
        storage_for(tmp_path).within(name).prepare()
        spool.mkdir(parents=True)
        (spool / "1.spool").write_bytes(b"x")
    storage_for(tmp_path).within("shop").remove()
    assert not spools["shop"].exists() and spools["shop2"].exists()


def test_scratch_files_of_a_log_elsewhere_are_on_a_local_disk_and_found_again() -> None:
    shop = scratch_for("s3://bucket/shop")
    assert shop.is_absolute() and shop == scratch_for("s3://bucket/shop") != scratch_for("s3://bucket/other")
