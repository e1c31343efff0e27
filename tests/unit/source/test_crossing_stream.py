"""The stream of a slot that takes over from triggers: what they have captured is left out, the rest comes once."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from change_sources import ends, kinds
from replayed_source import TRANSACTION_BYTES, Replay, ReplayedStream
from stream_encoder import begin
from wal2lake.decode import Relation, RelationColumn
from wal2lake.position import Lsn
from wal2lake.schema import ReplicaIdentity
from wal2lake.source.streaming import CrossingStream
from wal2lake.visibility import Visibility

TABLE = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, (RelationColumn("id", 23, -1, True),))
BEGINS = Lsn(1000)


@dataclass(frozen=True)
class Numbered(Replay):
    """The transactions 100, 101, …, each with a row of that value."""

    def messages(self, number: int) -> list[bytes]:
        found = super().messages(number)
        return [begin(self.begins + TRANSACTION_BYTES * number, us=number, xid=100 + number), *found[1:]]


def stream(count: int) -> ReplayedStream:
    rows = [[("I", (str(100 + number),))] for number in range(count)]
    return ReplayedStream(Numbered(TABLE, BEGINS, rows), BEGINS)


def commit_of(number: int) -> Lsn:
    return Lsn(BEGINS + TRANSACTION_BYTES * number)


def everything(crossing: CrossingStream, until: Lsn) -> list[bytes]:
    found: list[bytes] = []
    while crossing.keepalive_lsn < until:
        found += crossing.read(0.0)
    return found


def values(messages: list[bytes]) -> list[int]:
    return [int(message[-3:]) for message in messages if message[25:26] == b"I"]


def begun(messages: list[bytes]) -> list[int]:
    return [struct.unpack_from(">q", message, 26)[0] for message in messages if message[25:26] == b"B"]


def test_what_the_snapshot_sees_is_left_out_and_the_rest_below_the_boundary_is_one_transaction() -> None:
    boundary = Lsn(commit_of(5) + 8)
    crossing = CrossingStream(stream(8), commit_of(4), Visibility.of("102:105:102,104", boundary))
    found = everything(crossing, commit_of(8))
    # 105 has committed below the boundary, and began after the snapshot.
    assert values(found) == [102, 104, 105, 106, 107]
    assert kinds(found) == "BIIICBICBIC"
    assert begun(found) == [boundary - 1, commit_of(6), commit_of(7)]
    assert ends(found) == [boundary, commit_of(7), commit_of(8)]


def test_nothing_is_given_at_the_boundary_if_the_snapshot_sees_everything_below_it() -> None:
    boundary = Lsn(commit_of(4) + 8)
    crossing = CrossingStream(stream(6), commit_of(4), Visibility.of("105:105:", boundary))
    found = everything(crossing, commit_of(6))
    assert values(found) == [105]
    assert begun(found) == [commit_of(5)]


def test_a_stream_without_changes_beyond_the_boundary_gives_what_is_below_it() -> None:
    boundary = commit_of(3)
    crossing = CrossingStream(stream(3), commit_of(1), Visibility.of("102:102:", boundary))
    found = everything(crossing, boundary)
    assert values(found) == [102]
    assert ends(found) == [boundary]


def test_the_position_stands_still_and_nothing_is_acknowledged_before_the_boundary() -> None:
    boundary, position = Lsn(commit_of(2) + 8), commit_of(1)
    inner = stream(4)
    crossing = CrossingStream(inner, position, Visibility.of("100:100:", boundary))
    crossing.read(0.0)
    assert (crossing.keepalive_lsn, crossing.received, crossing.acknowledged) == (position, position, position)
    crossing.acknowledge(position)
    assert inner.acknowledged == BEGINS
    everything(crossing, commit_of(4))
    crossing.acknowledge(boundary)
    assert inner.acknowledged == boundary == crossing.acknowledged
