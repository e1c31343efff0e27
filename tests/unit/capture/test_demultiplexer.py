"""Streamed transactions become whole ones, in commit order."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stream_encoder as plain
from stream_encoder import decoder, relation, rows, table
from wal2lake.capture import spool as spool_module
from wal2lake.capture.spool import Spools
from wal2lake.capture.streamed_transactions import Demultiplexer, Streamed
from wal2lake.decode import Messages
from wal2lake.errors import SourceError
from wal2lake.position import Lsn

TABLE = table({"id": "int", "v": "string"})
BODY = 26


@pytest.fixture
def spools(tmp_path: Path) -> Iterator[Spools]:
    made = Spools(tmp_path / "spool")
    yield made
    made.close()


def of(xid: int, message: bytes) -> bytes:
    """A message as it is inside a block: with its transaction after the kind."""
    return message[:BODY] + struct.pack(">I", xid) + message[BODY:]


def start(xid: int, first: bool = True) -> bytes:
    return plain._message(b"S" + struct.pack(">IB", xid, first))


STOP = plain._message(b"E")


def committed(xid: int, lsn: int, us: int = 0) -> bytes:
    return plain._message(b"c" + struct.pack(">IBQQq", xid, 0, lsn, lsn + 10, us))


def aborted(xid: int, subxid: int | None = None) -> bytes:
    return plain._message(b"A" + struct.pack(">II", xid, xid if subxid is None else subxid))


def row(number: int, value: str = "x") -> bytes:
    return plain.insert(TABLE.oid, [str(number), value])


def block(xid: int, *messages: bytes, first: bool = True) -> list[bytes]:
    return [start(xid, first), *(of(xid, message) for message in messages), STOP]


def body(messages: Sequence[bytes]) -> list[bytes]:
    return [message[BODY - 1 :] for message in messages]


def flat(items: Sequence[Sequence[bytes] | Streamed], most_bytes: int = 1 << 20) -> list[bytes]:
    """What a decoder is given."""
    found: list[bytes] = []
    for item in items:
        if isinstance(item, Streamed):
            for chunk in item.chunks(most_bytes):
                found += chunk
        else:
            found += item
    return found


def test_a_stream_without_blocks_passes_as_it_is(spools: Spools) -> None:
    messages = [plain.begin(1), relation(TABLE), row(1), plain.commit(1), plain.other(b"?")]
    (item,) = Demultiplexer(spools).feed(messages)
    assert item is messages


def test_a_streamed_transaction_comes_whole_at_its_commit(spools: Spools) -> None:
    made = Demultiplexer(spools)
    assert made.feed(block(7, relation(TABLE), row(1))) == []
    assert made.running == 1
    (item,) = made.feed([*block(7, row(2), first=False), committed(7, 100, us=5)])
    assert isinstance(item, Streamed)
    assert (item.xid, item.commit_lsn, item.end_lsn, item.commit_us, item.messages) == (7, 100, 110, 5, 3)
    assert item.bytes == sum(map(len, [relation(TABLE), row(1), row(2)])) + 3 * 4
    wanted = [plain.begin(100, 5, 7), relation(TABLE), row(1), row(2), plain.commit(100, us=5)]
    assert body(flat([item])) == body(wanted)
    assert made.running == 0


def test_the_decoder_reads_it_like_any_other(spools: Spools) -> None:
    read = decoder(TABLE)
    read.feed(flat(Demultiplexer(spools).feed([*block(7, relation(TABLE), row(1), row(2)), committed(7, 100)])))
    assert rows(read.cut().tables, "id", "_commit_lsn", "_xid") == [(1, 100, 7), (2, 100, 7)]


def test_a_transaction_that_is_logged_already_is_left_out_but_its_descriptions_count(spools: Spools) -> None:
    read = decoder(TABLE, position=Lsn(101))
    made = Demultiplexer(spools)
    read.feed(flat(made.feed([*block(7, relation(TABLE), row(1)), committed(7, 100)])))
    read.feed(flat(made.feed([plain.begin(120), row(2), plain.commit(120)])))
    assert rows(read.cut().tables, "id") == [(2,)]


def test_plain_transactions_stand_between_in_the_order_of_commits(spools: Spools) -> None:
    one, two = [plain.begin(50), row(8), plain.commit(50)], [plain.begin(60), row(9), plain.commit(60)]
    stream = [*block(1, row(1)), *one, *block(2, row(2)), *two, committed(2, 70), *one, committed(1, 80)]
    first, second, third, fourth = Demultiplexer(spools).feed(stream)
    assert isinstance(first, Messages)
    assert list(first) == one + two
    assert isinstance(second, Streamed)
    assert second.xid == 2
    assert isinstance(third, Messages)
    assert list(third) == one
    assert isinstance(fourth, Streamed)
    assert fourth.xid == 1


def test_an_aborted_transaction_leaves_nothing(spools: Spools) -> None:
    made = Demultiplexer(spools)
    big = row(1, "x" * 2_000_000)
    made.feed(block(1, big))
    assert spools.bytes > 2_000_000
    assert made.feed([aborted(1)]) == []
    assert (spools.bytes, spools.buffered, made.running) == (0, 0, 0)
    assert list(spools.directory.iterdir()) == []


def test_a_sub_transaction_is_cut_out_with_its_children(spools: Spools) -> None:
    changes = [of(1, row(0)), of(2, row(1)), of(3, row(2)), of(2, row(3))]
    stream = [start(1), *changes, STOP, aborted(1, 3), aborted(1, 2), start(1, False), of(4, row(4)), STOP]
    found = flat(Demultiplexer(spools).feed([*stream, committed(1, 100)]))
    assert body(found[1:-1]) == body([row(0), row(4)])


def test_a_sub_transaction_in_several_blocks_is_cut_from_its_first_change(spools: Spools) -> None:
    stream = [start(1), of(1, row(0)), of(2, row(1)), STOP, start(1, False), of(2, row(2)), STOP, aborted(1, 2)]
    found = flat(Demultiplexer(spools).feed([*stream, committed(1, 100)]))
    assert body(found[1:-1]) == body([row(0)])


def test_a_sub_transaction_without_a_streamed_change_cuts_nothing(spools: Spools) -> None:
    stream = [start(1), of(1, row(0)), of(5, row(1)), STOP, aborted(1, 4), aborted(9, 9), committed(1, 100)]
    assert body(flat(Demultiplexer(spools).feed(stream))[1:-1]) == body([row(0), row(1)])


def test_a_transaction_with_nothing_for_us_is_an_empty_one(spools: Spools) -> None:
    found = flat(Demultiplexer(spools).feed([start(1), STOP, committed(1, 100)]))
    assert body(found) == body([plain.begin(100, xid=1), plain.commit(100)])


def test_an_origin_has_no_transaction_to_take_out(spools: Spools) -> None:
    origin = plain.other(b"O")
    found = flat(Demultiplexer(spools).feed([start(1), origin, of(1, row(0)), STOP, committed(1, 100)]))
    assert found[1:-1] == [origin, row(0)]


@pytest.mark.parametrize(
    "stream",
    [
        [start(1), start(2)],
        [STOP],
        [start(1, first=False)],
        [start(1), STOP, start(1)],
        [committed(1, 100)],
        [start(1), committed(1, 100)],
        [start(1), aborted(1)],
        [start(1), plain.begin(5)],
        [start(1), plain.commit(5)],
        [start(1), of(0, row(1))],
        [start(1), plain._message(b"I")],
    ],
    ids=[
        "block in a block", "end without a block", "block of an unknown transaction", "begun twice",
        "commit of an unknown transaction", "commit in a block", "abort in a block", "begin in a block",
        "plain commit in a block", "row of no transaction", "row too short",
    ],
)  # fmt: skip
def test_a_stream_out_of_order_is_refused(spools: Spools, stream: list[bytes]) -> None:
    with pytest.raises(SourceError, match="reading the stream"):
        Demultiplexer(spools).feed(stream)


def test_a_description_newer_than_the_streamed_ones_holds_after_the_commit(spools: Spools) -> None:
    newer = relation(TABLE, columns=["v", "id"])
    between = [plain.begin(50), newer, plain.insert(TABLE.oid, ["a", "1"]), plain.commit(50)]
    after = [plain.begin(200), plain.insert(TABLE.oid, ["b", "3"]), plain.commit(200)]
    read = decoder(TABLE)
    read.feed(flat(Demultiplexer(spools).feed([
        *block(1, relation(TABLE), row(2)), *between, committed(1, 100), *after,
    ])))  # fmt: skip
    assert rows(read.cut().tables, "id", "v") == [(1, "a"), (2, "x"), (3, "b")]


def test_a_description_of_another_streamed_transaction_holds_when_it_is_newer(spools: Spools) -> None:
    newer = relation(TABLE, columns=["v", "id"])
    stream = [*block(1, relation(TABLE), row(2)), *block(2, newer, plain.insert(TABLE.oid, ["a", "1"]))]
    after = [plain.begin(200), plain.insert(TABLE.oid, ["b", "3"]), plain.commit(200)]
    read = decoder(TABLE)
    read.feed(flat(Demultiplexer(spools).feed([*stream, committed(2, 90), committed(1, 100), *after])))
    assert rows(read.cut().tables, "id", "v") == [(1, "a"), (2, "x"), (3, "b")]


def test_a_description_that_was_rolled_back_does_not_count(spools: Spools) -> None:
    known = relation(TABLE, columns=["v", "id"])
    stream = [
        plain.begin(10), known, plain.insert(TABLE.oid, ["a", "1"]), plain.commit(10),
        start(1), of(1, relation(TABLE)), of(1, row(2)), of(2, relation(TABLE)), of(2, row(9)), STOP, aborted(1, 2),
        committed(1, 100), plain.begin(200), plain.insert(TABLE.oid, ["b", "3"]), plain.commit(200),
    ]  # fmt: skip
    read = decoder(TABLE)
    read.feed(flat(Demultiplexer(spools).feed(stream)))
    assert rows(read.cut().tables, "id", "v") == [(1, "a"), (2, "x"), (3, "b")]


def test_closing_removes_what_still_runs_and_keeps_what_has_committed(spools: Spools) -> None:
    made = Demultiplexer(spools)
    big = row(1, "x" * 2_000_000)
    (item,) = made.feed([*block(1, big), *block(2, big), committed(2, 50)])
    made.close()
    assert body(flat([item])[1:-1]) == body([big])
    assert isinstance(item, Streamed)
    item.remove()
    assert spools.bytes == 0


@dataclass
class Running:
    """A transaction of the random stream: what it wrote, and its open and ended sub-transactions."""

    xid: int
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    """open ones, from the outermost"""
    under: dict[int, int] = field(default_factory=dict)
    """parents"""
    begun: bool = False

    def children(self, subxid: int) -> list[int]:
        """A sub-transaction and all below it."""
        found = {subxid}
        for child in sorted(self.under):
            if self.under[child] in found:
                found.add(child)
        return sorted(found)


class History:
    """A random stream, and what reading it in the simplest way gives."""

    def __init__(self) -> None:
        self.stream: list[bytes] = []
        self.wanted: list[bytes] = []
        self.running: list[Running] = []
        self.number = 0

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _row(self) -> bytes:
        number = self._next()
        made = row(number, "v" * (number % 37))
        # Each envelope is another, to see that it stays with its message.
        return b"w" + struct.pack(">QQQ", number, number, number) + made[25:]

    def step(self, action: str, which: int, handovers: str) -> None:
        if action == "plain":
            lsn = self._next()
            made = [plain.begin(lsn), self._row(), plain.commit(lsn)]
            self.stream += made
            self.wanted += made
        elif action == "begin":
            self.running.append(Running(self._next()))
        elif self.running:
            chosen = self.running[which % len(self.running)]
            match action:
                case "block":
                    self._block(chosen, handovers)
                case "roll back" if chosen.path and chosen.begun:
                    self._roll_back(chosen, chosen.path[which % len(chosen.path)])
                case "abort" | "commit" if chosen.begun:
                    self.running.remove(chosen)
                    self._end(chosen, action)

    def _block(self, chosen: Running, handovers: str) -> None:
        self.stream.append(start(chosen.xid, not chosen.begun))
        chosen.begun = True
        for move in handovers:
            current = chosen.path[-1] if chosen.path else chosen.xid
            if move == "s":
                made = self._next()
                chosen.under[made] = current
                chosen.path.append(made)
            elif move == "/" and chosen.path:
                chosen.path.pop()
            elif move == "w":
                message = self._row()
                chosen.kept.append((current, message))
                self.stream.append(of(current, message))
        self.stream.append(STOP)

    def _roll_back(self, chosen: Running, subxid: int) -> None:
        gone = chosen.children(subxid)
        self.stream += [aborted(chosen.xid, each) for each in [*gone[1:], subxid]]
        chosen.kept = [kept for kept in chosen.kept if kept[0] not in gone]
        del chosen.path[chosen.path.index(subxid) :]

    def _end(self, chosen: Running, action: str) -> None:
        if action == "abort":
            self.stream += [aborted(chosen.xid, each) for each in sorted(chosen.under)]
            self.stream.append(aborted(chosen.xid))
            return
        lsn = self._next()
        self.stream.append(committed(chosen.xid, lsn))
        self.wanted += [plain.begin(lsn, xid=chosen.xid), *(kept[1] for kept in chosen.kept), plain.commit(lsn)]


ACTIONS = ["begin", "begin", "block", "block", "block", "block", "abort", "commit", "plain", "roll back"]
steps = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11), st.text("wwwws/", max_size=12))


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=60), st.lists(st.integers(0, 400), max_size=5), st.integers(1, 3000))
def test_random_interleavings_come_out_as_whole_transactions(
    history_steps: list[tuple[str, int, str]], stops: list[int], most_bytes: int
) -> None:
    history = History()
    for step in history_steps:
        history.step(*step)
    stream = history.stream
    bounds = [0, *sorted(min(stop, len(stream)) for stop in stops), len(stream)]
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "FRAME_BYTES", 600)
        patch.setattr(spool_module, "BUFFER_BYTES", 2000)
        spools = Spools(Path(directory) / "spool")
        made = Demultiplexer(spools)
        items = [item for begin, end in pairwise(bounds) for item in made.feed(Messages.of(stream[begin:end]))]
        found = flat(items, most_bytes)
        for item in items:
            if isinstance(item, Streamed):
                assert all(
                    len(chunk) <= 3 or sum(map(len, chunk)) <= most_bytes + 100 for chunk in item.chunks(most_bytes)
                )
                item.remove()
        made.close()
        assert (spools.bytes, spools.buffered, list(spools.directory.iterdir())) == (0, 0, [])
    assert body(found) == body(history.wanted)
    ours = [message for message in found if message[25] == ord("I")]
    assert ours == [message for message in history.wanted if message[25] == ord("I")]
