"""The replication stream alone: reading, acknowledging, time-outs."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import pytest

from proxy import Proxy
from remedies import heals, steps
from servers import Database
from waiting import wait_until
from wal2lake.config import SourceConfig
from wal2lake.errors import ConnectionFailed, SlotInUse, SlotLost
from wal2lake.position import Lsn
from wal2lake.source import connect, mark
from wal2lake.source.publishing import slot
from wal2lake.source.streaming.stream import ReplicationStream, StreamTimeouts
from wal2lake.source.streaming.wire import choice

SLOT, PUBLICATION = "wal2lake_s", "a \"publication\", with 'quotes'"


@pytest.fixture(autouse=True, params=["past libpq", "by libpq"])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of this holds on both wires."""
    if request.param == "by libpq":
        monkeypatch.setattr(choice, "encrypted", lambda _: True)


@pytest.fixture
def source(database: Database) -> Iterator[SourceConfig]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, at timestamptz, v interval, b bytea, f float8)")
    database.execute('CREATE PUBLICATION "a ""publication"", with \'quotes\'" FOR TABLE t')
    yield SourceConfig(dsn=database.dsn)


def start(source: SourceConfig) -> Lsn:
    with slot.create(source, SLOT, "s") as held:
        return held.snapshot.lsn


def opened(source: SourceConfig, at: Lsn, patience: StreamTimeouts | None = None) -> ReplicationStream:
    return ReplicationStream(source, SLOT, PUBLICATION, at, group="s", patience=patience)


def reopened(source: SourceConfig, database: Database, at: Lsn) -> ReplicationStream:
    """A stream after another one, which the server may end a moment after its connection."""
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    wait_until(lambda: not database.value(active), 20, "the slot is free")
    return opened(source, at)


def read_until(stream: ReplicationStream, end: Lsn) -> list[bytes]:
    messages: list[bytes] = []

    def there() -> bool:
        messages.extend(stream.read(0.2))
        return max(stream.keepalive_lsn, stream.received) >= end

    wait_until(there, 20, f"the stream to reach {end}")
    return messages


def test_messages_come_whole_and_in_the_dialect_whatever_the_database_has_set(
    source: SourceConfig, database: Database
) -> None:
    for setting in ("DateStyle = 'German'", "TimeZone = 'Asia/Tokyo'", "bytea_output = 'escape'",
                    "IntervalStyle = 'iso_8601'", "extra_float_digits = 0", "statement_timeout = '100ms'"):  # fmt: skip
        database.execute(f'ALTER DATABASE "{database.name}" SET {setting}')
    at = start(source)
    database.execute(
        "INSERT INTO t VALUES (1, '2024-02-29 23:59:59.123456+00', '1 day 2 hours', '\\x00ff', 0.1 + 0.2::float8)"
    )
    with connect(source) as conn:
        end = mark(conn)
    with opened(source, at) as stream:
        messages = read_until(stream, end)
    # Servers before 15 send the heartbeat's empty transaction too.
    assert [chr(message[25]) for message in messages][:4] == ["B", "R", "I", "C"]
    for text in (b"2024-02-29 23:59:59.123456+00", b"1 day 02:00:00", b"\\x00ff", b"0.30000000000000004"):
        assert text in messages[2]


def test_the_same_transactions_come_again_until_they_are_acknowledged(source: SourceConfig, database: Database) -> None:
    at = start(source)
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("INSERT INTO t VALUES (2)")
    with connect(source) as conn:
        end = mark(conn)
    seen = []
    for _ in range(2):
        with reopened(source, database, at) as stream:
            messages = read_until(stream, end)
            seen.append([message[25:] for message in messages if message[25:26] in (b"B", b"I", b"C")])
    assert seen[0] == seen[1]
    first_end = Lsn(struct.unpack_from(">Q", seen[0][2], 10)[0])
    with reopened(source, database, at) as stream:
        stream.acknowledge(first_end)
        wait_until(lambda: stream.read(0.05) is not None and confirmed(database) == first_end, 10, "confirmation")
        stream.finish()
    with reopened(source, database, first_end) as stream:
        messages = read_until(stream, end)
    assert [m[25:] for m in messages if m[25:26] in (b"B", b"I", b"C")] == seen[0][3:]


def test_values_longer_than_the_buffer_come_whole_between_others(source: SourceConfig, database: Database) -> None:
    at = start(source)
    sizes = [1, 3_000_000, 9_000_000, 5, 4_194_304, 2]
    for number, size in enumerate(sizes):
        database.execute("INSERT INTO t (id, b) VALUES (%s, %s)", (number, bytes([65 + number]) * size))
    with connect(source) as conn:
        end = mark(conn)
    with opened(source, at) as stream:
        inserts = [message for message in read_until(stream, end) if message[25:26] == b"I"]
    assert [bytes([65 + number]).hex().encode() * size in message for number, (size, message) in
            enumerate(zip(sizes, inserts, strict=True))] == [True] * len(sizes)  # fmt: skip


def confirmed(database: Database) -> Lsn:
    return Lsn.parse(database.value("SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
                                    f" WHERE slot_name = '{SLOT}'"))  # fmt: skip


def test_a_status_update_goes_out_by_itself(source: SourceConfig, database: Database) -> None:
    with opened(source, start(source), StreamTimeouts(status=0.2)) as stream:
        query = (
            "SELECT reply_time FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid"
            f" WHERE slot_name = '{SLOT}'"
        )

        def replied() -> object:
            stream.read(0.1)
            return database.value(query)

        first = wait_until(replied, 10, "a reply")
        wait_until(lambda: replied() != first, 10, "another reply")


def test_a_server_that_has_gone_silent_is_given_up(source: SourceConfig, database: Database) -> None:
    at = start(source)
    url = urlsplit(database.dsn)
    with Proxy(url.hostname or "127.0.0.1", url.port or 5432) as proxy:
        through = urlunsplit(url._replace(netloc=url.netloc.rpartition(":")[0] + f":{proxy.port}"))
        patience = StreamTimeouts(status=0.1, ask=0.3, give_up=0.7)
        with opened(SourceConfig(dsn=through), at, patience) as stream:
            began = time.monotonic()
            while time.monotonic() - began < 2:
                stream.read(0.1)  # silence alone, with a server that answers, is no reason
            proxy.go_deaf()
            with pytest.raises(ConnectionFailed, match="no sign of life"):
                while time.monotonic() - began < 20:
                    stream.read(0.1)


def test_a_wake_descriptor_ends_the_wait(source: SourceConfig) -> None:
    readable, writable = os.pipe()
    try:
        with opened(source, start(source)) as stream:
            while stream.read(0.3):
                pass
            os.write(writable, b"x")
            began = time.monotonic()
            assert not stream.read(30, [readable])
            assert time.monotonic() - began < 10
    finally:
        os.close(readable)
        os.close(writable)


@heals("SlotInUse")
def test_a_slot_in_use_is_refused_with_its_holder(source: SourceConfig, database: Database) -> None:
    at = start(source)
    holder = opened(source, at)
    with pytest.raises(SlotInUse) as raised:
        opened(source, at)
    (statement,) = steps(raised.value.remedy)
    database.execute(str(statement))
    with suppress(ConnectionFailed):
        holder.close()
    with opened(source, at) as stream:
        stream.read(0.1)


def test_a_missing_slot_is_lost(source: SourceConfig) -> None:
    with pytest.raises(SlotLost) as raised:
        opened(source, Lsn.parse("0/1"))
    assert "does not exist" in str(raised.value) and "0/1" in str(raised.value)


def test_changes_made_without_the_publication_are_not_passed_over(source: SourceConfig, database: Database) -> None:
    at = start(source)
    database.execute('DROP PUBLICATION "a ""publication"", with \'quotes\'"')
    database.execute("INSERT INTO t VALUES (1)")
    database.execute('CREATE PUBLICATION "a ""publication"", with \'quotes\'" FOR TABLE t')
    with connect(source) as conn:
        end = mark(conn)
    with opened(source, at) as stream, pytest.raises(SlotLost, match="publication"):
        read_until(stream, end)


def test_an_ended_backend_is_a_lost_connection(source: SourceConfig, database: Database) -> None:
    with opened(source, start(source)) as stream:
        database.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                         f" WHERE slot_name = '{SLOT}'")  # fmt: skip
        with pytest.raises(ConnectionFailed):
            wait_until(lambda: stream.read(0.2) is None, 10, "the stream to end")
