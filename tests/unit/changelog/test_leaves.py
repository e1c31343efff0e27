"""The change log remembers which table a partition was mirrored with."""

from pathlib import Path

from wal2lake.changelog.leaves import Leaves


def test_partitions_are_remembered_after_they_are_gone(tmp_path: Path) -> None:
    writer, reader = Leaves(tmp_path), Leaves(tmp_path)
    assert reader.root_of(11) is None
    writer.note({11: 1, 12: 1})
    assert reader.root_of(11) == 1
    writer.note({12: 2})
    assert (reader.root_of(11), reader.root_of(12), Leaves(tmp_path).root_of(12)) == (1, 2, 2)


def test_what_is_known_is_not_written_again(tmp_path: Path) -> None:
    leaves = Leaves(tmp_path)
    leaves.note({})
    assert not list(tmp_path.iterdir())
    leaves.note({11: 1})
    (tmp_path / "leaves.json").unlink()
    leaves.note({11: 1})
    assert not list(tmp_path.iterdir())
