"""Locations lead to storages."""

from pathlib import Path

import pytest

from wal2lake.changelog import storage_for


def test_a_directory_is_named_by_its_path_or_by_a_file_uri(tmp_path: Path) -> None:
    place = tmp_path / "a log"
    by_path, by_text, by_uri = storage_for(place), storage_for(str(place)), storage_for(place.as_uri())
    assert by_path.uri("x") == by_text.uri("x") == by_uri.uri("x")


def test_a_location_without_a_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="no storage for s3://"):
        storage_for("s3://bucket/log")
