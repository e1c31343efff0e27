"""The changes of a cut, their order, and what remains for the next one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from inline_decoder import Cut, InlineDecoder
from stream_encoder import (
    begin,
    commit,
    decode,
    decoder,
    delete,
    insert,
    other,
    relation,
    rows,
    table,
    truncate,
    update,
)  # fmt: skip
from wal2lake.decode import Relation, Target
from wal2lake.decode.messages import Messages
from wal2lake.errors import SourceError
from wal2lake.position import ZERO, Lsn
from wal2lake.schema import Bounds

ONE = table({"id": "int", "name": "string"}, oid=1)
TWO = table({"id": "int"}, oid=2, name="two")


def test_seq_counts_the_changes_of_a_transaction_over_all_tables() -> None:
    made = decoder(ONE, TWO)
    made.feed([
        begin(100, us=5, xid=4_000_000_000), relation(ONE), insert(1, ["1", "a"]), relation(TWO), insert(2, ["7"]),
        insert(1, ["2", "b"]), commit(100, 150, us=5), begin(200), insert(1, ["3", "c"]), commit(200, 260),
    ])  # fmt: skip
    cut = made.cut()
    by_table = {decoded.schema.oid: decoded for decoded in cut.tables}
    assert rows([by_table[1]], "id", "_commit_lsn", "_seq", "_xid") == [
        (1, 100, 0, 4_000_000_000), (2, 100, 4, 4_000_000_000), (3, 200, 0, 1),
    ]  # fmt: skip
    assert rows([by_table[2]], "id", "_commit_lsn", "_seq") == [(7, 100, 2)]
    assert rows([by_table[1]], "_commit_ts")[0] == (datetime(2000, 1, 1, 0, 0, 0, 5, tzinfo=UTC),)
    assert (cut.to_lsn, cut.transactions) == (Lsn(260), 2)


def test_a_cut_leaves_the_open_transaction_and_its_bytes() -> None:
    made = decoder(ONE)
    first = [begin(100), relation(ONE), insert(1, ["1", "a"]), commit(100, 110)]
    second = [begin(200), insert(1, ["2", "b"])]
    made.feed(first + second)
    assert (made.intake.in_transaction, made.intake.has_complete) == (True, True)
    assert made.intake.pending_bytes == sum(map(len, first + second))
    assert made.intake.open_bytes == sum(map(len, second))
    assert rows(made.cut().tables, "id") == [(1,)]
    assert (made.intake.in_transaction, made.intake.has_complete) == (True, False)
    assert made.intake.pending_bytes == made.intake.open_bytes == sum(map(len, second))
    made.feed([insert(1, ["3", "c"])])
    made.feed([commit(200, 210)])
    assert (made.intake.in_transaction, made.intake.has_complete) == (False, True)
    cut = made.cut()
    assert rows(cut.tables, "id", "_seq") == [(2, 0), (3, 2)]
    assert (made.intake.pending_bytes, made.intake.open_bytes, cut.to_lsn) == (0, 0, Lsn(210))


def test_messages_fed_one_by_one_give_the_same_as_at_once() -> None:
    stream = [begin(100), relation(ONE), insert(1, ["1", "a"]), update(1, ["1", "b"]), commit(100)]
    made = decoder(ONE)
    for message in stream:
        made.feed([message])
    assert made.cut().tables[0].batch.equals(decode(ONE, *stream[2:-1]).tables[0].batch)


def test_an_empty_transaction_moves_the_position() -> None:
    made = decoder(ONE)
    made.feed([begin(100), commit(100, 130, us=1_000_000)])
    assert made.intake.has_complete
    assert made.cut() == Cut(Lsn(130), 1, datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC), (), {}, {})


def test_a_cut_of_nothing_stays_where_it_was() -> None:
    made = decoder(ONE, position=Lsn(77))
    assert made.cut() == Cut(Lsn(77), 0, None, (), {}, {})


def test_transactions_that_commit_below_the_position_are_skipped_but_describe_their_tables() -> None:
    made = decoder(ONE, position=Lsn(150))
    made.feed([begin(100), relation(ONE), insert(1, ["1", "a"]), truncate(1), commit(100, 150)])
    made.feed([begin(150), insert(1, ["2", "b"]), commit(150, 190)])
    cut = made.cut()
    assert rows(cut.tables, "id", "_seq") == [(2, 0)]
    assert (cut.transactions, cut.truncations, cut.to_lsn) == (1, {}, Lsn(190))


def test_the_position_never_goes_back_for_a_skipped_transaction() -> None:
    made = decoder(ONE, position=Lsn(500))
    made.feed([begin(100), commit(100, 150)])
    cut = made.cut()
    assert (cut.to_lsn, cut.transactions) == (Lsn(500), 0)


def test_tables_that_are_not_mirrored_leave_no_trace() -> None:
    made = decoder(TWO)
    made.feed(
        [begin(100), relation(ONE), insert(1, ["1", "a"]), truncate(1), relation(TWO), insert(2, ["1"]), commit(100)]
    )
    cut = made.cut()
    assert [decoded.schema.oid for decoded in cut.tables] == [2]
    assert rows(cut.tables, "_seq") == [(4,)]
    assert cut.truncations == {}


def test_types_origins_and_logical_messages_are_passed_over() -> None:
    made = decoder(ONE)
    made.feed([other(b"M"), begin(100), other(b"O"), other(b"Y"), relation(ONE), insert(1, ["1", "a"]), commit(100)])
    assert rows(made.cut().tables, "id", "_seq") == [(1, 0)]


def test_a_truncate_of_several_tables_counts_once_between_the_rows() -> None:
    made = decoder(ONE, TWO)
    made.feed([
        begin(100), relation(ONE), relation(TWO), insert(1, ["1", "a"]), truncate(1, 2), insert(1, ["2", "b"]),
        commit(100),
    ])  # fmt: skip
    cut = made.cut()
    assert rows(cut.tables, "id", "_seq") == [(1, 0), (2, 4)]
    places = {oid: [(t.commit_lsn, t.seq, t.relation) for t in some] for oid, some in cut.truncations.items()}
    assert places == {1: [(100, 2, None)], 2: [(100, 2, None)]}


def test_a_description_in_the_middle_of_a_transaction_leaves_the_rows_before_it_alone() -> None:
    wider = table({"id": "int", "name": "string", "more": "long"}, oid=1)
    versions = {2: Target(ONE, 1), 3: Target(wider, 2)}
    asked: list[Relation] = []

    def resolve(described: Relation) -> Target:
        asked.append(described)
        return versions[len(described.columns)]

    made = InlineDecoder(resolve, ZERO)
    made.feed([
        begin(100), relation(ONE), insert(1, ["1", "a"]), relation(wider), insert(1, ["2", "b", "9"]), commit(100),
        begin(200), insert(1, ["3", "c", None]), commit(200),
    ])  # fmt: skip
    old, new = made.cut().tables
    assert (old.version, rows([old], "id", "_seq")) == (1, [(1, 0)])
    assert (new.version, rows([new], "id", "more", "_seq")) == (2, [(2, 9, 2), (3, None, 0)])
    made.feed([begin(300), insert(1, ["4", "d", "8"]), commit(300)])
    assert rows(made.cut().tables, "id", "more") == [(4, 8)]
    assert len(asked) == 2


def test_a_resolver_that_fails_loses_nothing() -> None:
    answers: list[Target | None] = []

    def resolve(described: Relation) -> Target | None:
        return answers.pop()

    made = InlineDecoder(resolve, ZERO)
    messages = [Messages.of([begin(100), relation(ONE), insert(1, ["1", "a"]), truncate(1), commit(100)])]
    with pytest.raises(IndexError):
        made.decode(messages)
    answers.append(Target(ONE, 1))
    cut = made.boundary(made.decode(messages))
    assert rows(cut.tables, "id") == [(1,)]
    assert len(cut.truncations[1]) == 1


def test_partitions_with_another_order_of_columns_come_in_one_batch_in_order() -> None:
    def bounds(leaf: int) -> Bounds:
        return Bounds(f"part {leaf}", (("id", 1),))

    root = table({"id": "int", "name": "string"}, oid=1, partitioned=True)
    made = InlineDecoder(lambda described: Target(root, 1, described.oid, bounds(described.oid)), ZERO)
    made.feed([
        begin(100), relation(root, 11), relation(root, 12, ["name", "id"]), insert(11, ["1", "a"]),
        insert(12, ["b", "2"]), insert(11, ["3", "c"]), truncate(12), delete(12, [None, "4"]), commit(100),
    ])  # fmt: skip
    cut = made.cut()
    assert rows(cut.tables, "id", "name", "_op", "_relation", "_seq") == [
        (1, "a", "I", 11, 0), (2, "b", "I", 12, 2), (3, "c", "I", 11, 4), (4, None, "D", 12, 8),
    ]  # fmt: skip
    (emptied,) = cut.truncations[1]
    assert (emptied.relation, emptied.predicate, emptied.seq) == (12, "part 12", 6)
    assert emptied.columns == (("id", 1),)
    assert (cut.tables[0].inserts, cut.tables[0].deletes) == (3, 1)


def test_a_spilled_transaction_counts_on_and_keeps_its_truncations_for_the_cut() -> None:
    made = decoder(ONE)
    made.feed([begin(100, us=3, xid=9), relation(ONE), insert(1, ["1", "a"]), truncate(1)])
    assert rows(made.spill(), "id", "_seq", "_xid", "_commit_lsn") == [(1, 0, 9, 100)]
    assert (made.intake.pending_bytes, made.intake.open_bytes, made.intake.in_transaction) == (0, 0, True)
    made.feed([insert(1, ["2", "b"]), insert(1, ["x", "b"])])
    spilled = made.spill()
    assert rows(spilled, "id", "_seq", "_xid") == [(2, 4, 9), (None, 6, 9)]
    made.feed([insert(1, ["3", "c"]), commit(100, 110), begin(200), insert(1, ["4", "d"])])
    cut = made.cut()
    assert rows(cut.tables, "id", "_seq", "_xid") == [(3, 8, 9)]
    assert [(t.commit_lsn, t.seq) for t in cut.truncations[1]] == [(100, 2)]
    assert [(r.commit_lsn, r.seq, r.error) for r in cut.refusals[1]] == [(100, 6, "ValueRefused")]
    made.feed([commit(200, 220)])
    last = made.cut()
    assert rows(last.tables, "id", "_seq", "_xid") == [(4, 0, 1)]
    assert (last.truncations, last.refusals, last.transactions) == ({}, {}, 1)


def test_a_spilled_transaction_below_the_position_gives_nothing() -> None:
    made = decoder(ONE, position=Lsn(500))
    made.feed([begin(100), relation(ONE), insert(1, ["1", "a"])])
    assert made.spill() == ()
    made.feed([insert(1, ["2", "b"]), commit(100, 110)])
    assert made.cut().tables == ()


def test_spilling_outside_of_a_transaction_gives_nothing_and_before_a_cut_is_a_mistake() -> None:
    made = decoder(ONE)
    assert made.spill() == ()
    made.feed([begin(100), relation(ONE), insert(1, ["1", "a"]), commit(100), begin(200)])
    with pytest.raises(RuntimeError):
        made.spill()


def test_a_boundary_before_the_end_of_a_spilled_transaction_holds_nothing_of_it() -> None:
    made = decoder(ONE)
    made.feed(
        [begin(100), relation(ONE), truncate(1), commit(100, 110), begin(200), insert(1, ["x", "b"]), truncate(1)]
    )
    first = made.cut()
    made.spill()
    assert [t.commit_lsn for t in first.truncations[1]] == [100]
    assert made.boundary() == Cut(Lsn(110), 0, None, (), {}, {})
    made.feed([commit(200, 210)])
    last = made.cut()
    assert [t.commit_lsn for t in last.truncations[1]] == [200]
    assert [(r.commit_lsn, r.error) for r in last.refusals[1]] == [(200, "ValueRefused")]


@pytest.mark.parametrize("most_bytes", [1, 60, 130, 1000])
def test_where_the_stream_is_sliced_makes_no_difference(most_bytes: int) -> None:
    stream = [begin(100), relation(ONE), insert(1, ["1", "a"]), insert(1, ["2", "a"]), truncate(1), commit(100, 110),
              begin(110), commit(110, 120), begin(120, xid=7), insert(1, ["3", "a"]), commit(120, 130)]  # fmt: skip
    whole, sliced = decoder(ONE), decoder(ONE)
    whole.feed(stream)
    expected = whole.cut()
    sliced.feed(stream)
    cut = sliced.cut(most_bytes)
    columns = "id", "_commit_lsn", "_seq", "_xid"
    assert rows(cut.tables, *columns) == rows(expected.tables, *columns)
    assert replace(cut, tables=()) == replace(expected, tables=())


def test_large_tables_come_in_several_batches() -> None:
    made = decoder(ONE)
    made.feed([begin(100), relation(ONE), *(insert(1, [str(n), "x" * 90]) for n in range(100)), commit(100)])
    cut = made.cut(most_bytes=2000)
    assert len(cut.tables) > 3
    assert rows(cut.tables, "id", "_seq") == [(n, 2 * n) for n in range(100)]
    assert sum(decoded.inserts for decoded in cut.tables) == 100


@pytest.mark.parametrize(
    "stream",
    [
        [begin(1), begin(2), commit(2)],
        [commit(1)],
        [begin(1), relation(ONE), commit(1), insert(1, ["1", "a"]), begin(2), commit(2)],
        [begin(1), insert(1, ["1", "a"]), commit(1)],
        [begin(1), truncate(5), commit(1)],
        [begin(1), other(b"S"), commit(1)],
    ],
    ids=["begin in begin", "commit alone", "row outside", "unknown table", "unknown truncated", "unknown kind"],
)
def test_a_stream_out_of_order_is_an_error_of_the_source(stream: list[bytes]) -> None:
    made = decoder(ONE)
    made.feed(stream)
    with pytest.raises(SourceError):
        made.cut()
