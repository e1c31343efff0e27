"""The change log remembers which table a partition was mirrored with."""

from wal2lake.changelog import LogStorage
from wal2lake.changelog.leaves import Leaves


def test_partitions_are_remembered_after_they_are_gone(storage: LogStorage) -> None:
    storage.prepare()
    writer, reader = Leaves(storage), Leaves(storage)
    assert reader.root_of(11) is None
    writer.note({11: 1, 12: 1})
    assert reader.root_of(11) == 1
    writer.note({12: 2})
    assert (reader.root_of(11), reader.root_of(12), Leaves(storage).root_of(12)) == (1, 2, 2)


def test_what_is_known_is_not_written_again(storage: LogStorage) -> None:
    storage.prepare()
    leaves = Leaves(storage)
    leaves.note({})
    assert not storage.names()
    leaves.note({11: 1})
    storage.delete("leaves.json")
    leaves.note({11: 1})
    assert not storage.names()


def test_tables_that_were_published_are_remembered_after_they_became_partitions(storage: LogStorage) -> None:
    storage.prepare()
    writer, reader = Leaves(storage), Leaves(storage)
    assert reader.was_published(11), "of a log that has no such file, any table may have been"
    writer.note_published([])
    assert not reader.was_published(11)
    writer.note_published([11])
    writer.note_published([12])
    assert reader.was_published(11) and reader.was_published(12) and not reader.was_published(13)
