"""The change log remembers which table a partition was mirrored with."""

from wal2lake.changelog import LogStorage
from wal2lake.changelog.leaves import Leaves
from wal2lake.position import ZERO, Lsn


def test_partitions_are_remembered_after_they_are_gone(storage: LogStorage) -> None:
    storage.prepare()
    writer, reader = Leaves(storage), Leaves(storage)
    assert reader.root_of(11) is None
    writer.note({11: 1, 12: 1})
    assert reader.root_of(11) == 1
    writer.note({12: 2})
    assert (reader.root_of(11), reader.root_of(12), Leaves(storage).root_of(12)) == (1, 2, 2)


def test_the_tables_that_a_partition_may_have_had_at_a_position(storage: LogStorage) -> None:
    storage.prepare()
    leaves = Leaves(storage)
    leaves.note({1: 1, 11: 1, 12: 1}, {12: Lsn(100)})
    leaves.note({2: 2, 11: 2}, {11: Lsn(200)})
    leaves.note({11: 1}, {11: Lsn(300)})
    reader = Leaves(storage)
    assert reader.roots_of(11, Lsn(199)) == (1, 2, 1)
    assert reader.roots_of(11, Lsn(200)) == (2, 1), "it moved between two readings"
    assert reader.roots_of(11, Lsn(300)) == (1,)
    assert reader.roots_of(12, Lsn(99)) == (None, 1), "it was attached, so it may have been another's"
    assert reader.roots_of(12, Lsn(100)) == (1,)
    assert reader.roots_of(13, Lsn(1 << 40)) == (None,)
    assert reader.tables() == {1, 2} and reader.root_of(11) == 1


def test_partitions_in_a_log_of_an_earlier_version_have_had_one_table(storage: LogStorage) -> None:
    storage.prepare()
    storage.put("leaves.json", b'{"11": 1}')
    leaves = Leaves(storage)
    assert leaves.roots_of(11, ZERO) == (1,)
    leaves.note({11: 2}, {11: Lsn(100)})
    assert leaves.roots_of(11, Lsn(99)) == (1, 2) and Leaves(storage).roots_of(11, Lsn(100)) == (2,)


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
    assert reader.was_published(11, ZERO), "of a log that has no such file, any table may have been"
    writer.note_published({})
    assert not reader.was_published(11, Lsn(1 << 40))
    writer.note_published({11: ZERO})
    writer.note_published({12: ZERO})
    assert reader.was_published(11, ZERO) and reader.was_published(12, ZERO) and not reader.was_published(13, ZERO)


def test_partitions_that_were_published_after_a_position_are_remembered_with_it(storage: LogStorage) -> None:
    storage.prepare()
    leaves = Leaves(storage)
    leaves.note_published({11: Lsn(100), 12: ZERO})
    leaves.note_published({11: ZERO, 12: ZERO})
    assert (leaves.published_since(11), leaves.published_since(12), leaves.published_since(13)) == (100, 0, 0)
    assert not leaves.was_published(11, Lsn(99)) and leaves.was_published(11, Lsn(100))
    leaves.note_published({11: Lsn(200)})
    assert leaves.published_since(11) == 200
    assert leaves.was_published(11, Lsn(100)), "it was published before that, too"


def test_a_log_of_an_earlier_version_has_no_positions(storage: LogStorage) -> None:
    storage.prepare()
    storage.put("published.json", b"[11, 12]")
    leaves = Leaves(storage)
    assert leaves.was_published(11, ZERO) and leaves.published_since(11) == ZERO
    leaves.note_published({11: ZERO, 13: Lsn(100)})
    assert leaves.was_published(12, ZERO) and leaves.published_since(13) == 100
