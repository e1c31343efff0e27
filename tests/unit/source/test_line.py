"""The wire that reads the socket directly, with a peer that sends messages of a server in pieces of any size."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import pq

from wal2lake.source.streaming.wire import Arrived, Broken, Refused, Said
from wal2lake.source.streaming.wire.line import Line

BUFFER = 256
NOTICE = b"SWARNING\0VWARNING\0C55000\0Mskipped \xc3\xa9\0Da row: 1\0\0"


@dataclass
class Connection:
    """What a wire needs of libpq: its socket, and its end."""

    socket: int
    finished: bool = False

    def finish(self) -> None:
        self.finished = True


class Peer:
    def __init__(self) -> None:
        self.line, self._theirs = socket.socketpair()
        self.connection = Connection(self._theirs.fileno())
        self.notices: list[Said] = []
        self.wire = Line(cast(pq.abc.PGconn, self.connection), self.notices.append, BUFFER)

    def begin(self) -> None:
        self.wire.ask(b"START")
        self.line.sendall(frame(b"W", b"\0\0\0"))
        assert self.wire.agreed()
        self.line.recv(1000)

    def arrive(self) -> Arrived:
        self.wire.gather()
        return self.wire.take()

    def close(self) -> None:
        self.wire.close()
        self.line.close()
        self._theirs.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


def row(body: bytes) -> bytes:
    return b"w" + bytes(24) + body


def keepalive(number: int) -> bytes:
    return b"k" + struct.pack(">QqB", number, 0, 0)


message = st.one_of(
    st.binary(min_size=1, max_size=3 * BUFFER).map(lambda body: frame(b"d", row(body))),
    st.integers(0, 2**40).map(lambda number: frame(b"d", keepalive(number))),
    st.just(frame(b"S", b"TimeZone\0UTC\0")),
    st.just(frame(b"N", NOTICE)),
)


@settings(max_examples=60, deadline=None)
@given(sent=st.lists(message, max_size=30), pieces=st.lists(st.integers(1, 2 * BUFFER), min_size=1, max_size=40))
def test_what_is_sent_arrives_whole_and_in_order_in_whatever_pieces(sent: list[bytes], pieces: list[int]) -> None:
    peer = Peer()
    try:
        peer.begin()
        stream, arrived = b"".join(sent), []
        for size in pieces:
            peer.line.sendall(stream[:size])
            stream = stream[size:]
            arrived.append(peer.arrive())
        peer.line.sendall(stream)
        # A long message takes several turns, as room is made for it.
        arrived += [peer.arrive() for _ in range(2 * len(sent) + len(stream) // BUFFER + 2)]
        bodies = [each[5:] for each in sent if each[:1] == b"d"]
        assert [each for some in arrived for each in some.messages] == [each for each in bodies if each[:1] == b"w"]
        assert [each for some in arrived for each in some.keepalives] == [each for each in bodies if each[:1] == b"k"]
        assert peer.notices == [Said("55000", "skipped é")] * sent.count(frame(b"N", NOTICE))
    finally:
        peer.close()


def test_an_answer_that_has_not_come_yet_is_no_agreement(peer: Peer) -> None:
    peer.wire.ask(b"START")
    assert peer.line.recv(1000) == frame(b"Q", b"START\0")
    assert not peer.wire.agreed()
    peer.line.sendall(frame(b"N", NOTICE) + b"W\0\0")
    assert not peer.wire.agreed()
    peer.line.sendall(b"\0\7\0\0\0" + frame(b"d", row(b"first")))
    assert peer.wire.agreed()
    assert list(peer.arrive().messages) == [row(b"first")] and len(peer.notices) == 1


def test_a_refusal_has_its_state_and_its_words_and_no_detail(peer: Peer) -> None:
    peer.wire.ask(b"START")
    peer.line.sendall(frame(b"E", b"SERROR\0C42704\0Mno such slot\0Da secret row\0\0") + frame(b"Z", b"I"))
    with pytest.raises(Refused) as raised:
        peer.wire.agreed()
    assert raised.value.said == Said("42704", "no such slot") and "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([frame(b"c", b"")], "ended the stream"),
        ([frame(b"C", b"COPY 0\0")], "ended the stream"),
        ([frame(b"x", b"?")], "a message that PostgreSQL does not send"),
        ([b"d\0\0\0\0", frame(b"d", row(b"x"))], "a message that PostgreSQL does not send"),
        ([b"d\xff\xff\xff\xff" + bytes(BUFFER)], "a message that PostgreSQL does not send"),
    ],
)  # fmt: skip
def test_an_end_or_nonsense_breaks_it(peer: Peer, sent: Sequence[bytes], words: str) -> None:
    peer.begin()
    peer.line.sendall(b"".join(sent))
    with pytest.raises(Broken, match=words):
        for _ in range(3):
            peer.arrive()


def test_what_came_before_the_line_was_cut_is_handed_out_first(peer: Peer) -> None:
    peer.begin()
    peer.line.sendall(frame(b"d", row(b"whole")) + frame(b"d", row(b"cut"))[:-1])
    peer.line.shutdown(socket.SHUT_RDWR)
    assert list(peer.arrive().messages) == [row(b"whole")]
    with pytest.raises(Broken, match="closed the connection"):
        peer.arrive()


def test_what_the_line_does_not_take_is_sent_later(peer: Peer) -> None:
    peer.begin()
    status = b"r" + bytes(33)
    sent = 0
    while peer.wire.flush():
        peer.wire.send(status)
        sent += 1
    received = b""
    peer.line.settimeout(0)
    while not peer.wire.flush() or len(received) < sent * 39:
        received += peer.line.recv(1 << 20)
    assert received == frame(b"d", status) * sent
    peer.wire.end()
    assert peer.line.recv(100) == frame(b"c", b"")


def test_closing_ends_the_connection(peer: Peer) -> None:
    peer.wire.close()
    assert peer.connection.finished


def test_a_long_message_does_not_keep_its_room(peer: Peer) -> None:
    peer.begin()
    long = frame(b"d", row(b"y" * 5000))
    peer.line.sendall(long)
    arrived: list[Any] = []
    while not arrived:
        arrived += peer.arrive().messages
    assert arrived == [long[5:]]
    assert len(peer.wire._buffer) == BUFFER
