"""A table that gets and loses its key under load: its changes come once each, directly or through its buffer."""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from servers import Database
from trigger_lanes import contents
from waiting import wait_until
from wal2lake.capture.spool import Spools
from wal2lake.capture.streamed_transactions import Demultiplexer, Streamed
from wal2lake.config import Config
from wal2lake.decode.messages import parse_relation
from wal2lake.errors import SourceBusy
from wal2lake.position import Lsn
from wal2lake.source import Source, StreamRequest, connect, mark
from wal2lake.source.publishing import append_name, publication_name
from wal2lake.source.streaming import open_stream
from wal2lake.source.triggers import BufferedStream

GROUP = "g"
MANY = 900_000_000
CHANGES = 12
Row = list[bytes | None]


class Replayed:
    """The rows of a table by its changes in a stream: by the key, or by whole rows, as each message has it."""

    def __init__(self) -> None:
        self._by_id: defaultdict[bytes | None, list[Row]] = defaultdict(list)
        self.directly = self.by_buffer = 0
        """changes that came in either way"""
        self._whole = False

    @property
    def rows(self) -> Counter[tuple[str | None, ...]]:
        return Counter(
            tuple(None if cell is None else cell.decode() for cell in row)
            for some in self._by_id.values()
            for row in some
        )

    def take(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            kind, body = message[25:26], message[26:]
            if kind == b"R":
                self._whole = parse_relation(message).identity.value == "f"
            elif kind in (b"I", b"U", b"D"):
                self._change(kind, body[4:])

    def _change(self, kind: bytes, body: bytes) -> None:
        if self._whole:
            self.by_buffer += 1
        else:
            self.directly += 1
        old: Row | None = None
        if body[:1] in (b"K", b"O"):
            old, body = cells(body[1:])
        new = cells(body[1:])[0] if kind != b"D" else None
        if kind != b"I":
            self._remove(old or new or [])
        if new is not None:
            self._by_id[new[0]].append(new)

    def _remove(self, row: Row) -> None:
        same = self._by_id[row[0]]
        if not self._whole:
            assert len(same) == 1
            row = same[0]
        same.remove(row)


def cells(data: bytes) -> tuple[Row, bytes]:
    (count,) = struct.unpack(">H", data[:2])
    found: Row = []
    at = 2
    for _ in range(count):
        kind = data[at : at + 1]
        at += 1
        if kind == b"n":
            found.append(None)
            continue
        (length,) = struct.unpack(">I", data[at : at + 4])
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found, data[at:]


@contextmanager
def writers(database: Database, count: int) -> Iterator[None]:
    """Sessions that write the table all the time, in transactions of several statements."""
    stop, failures = threading.Event(), list[BaseException]()

    def write(number: int) -> None:
        chance, fresh = random.Random(number), number * 1_000_000
        try:
            with psycopg.connect(database.dsn) as connection:
                while not stop.is_set():
                    try:
                        for _ in range(chance.randint(1, 4)):
                            fresh += 1
                            key = number * 1_000_000 + chance.randint(max(0, fresh % 1_000_000 - 30), fresh % 1_000_000)
                            statement = chance.choice(
                                [
                                    f"INSERT INTO t VALUES ({fresh}, 0, 'v')", f"UPDATE t SET n = n + 1 WHERE id = {key}",
                                    f"UPDATE t SET id = {fresh} WHERE id = {key}", f"DELETE FROM t WHERE id = {key}",
                                    f"INSERT INTO t SELECT {fresh} + i * 10000000, i, 'many' FROM generate_series(1, 5) i",
                                ]
                            )  # fmt: skip
                            connection.execute(statement.encode())
                            stop.wait(0.001)
                    except psycopg.errors.ObjectNotInPrerequisiteState:
                        connection.rollback()
                    connection.rollback() if chance.random() < 0.1 else connection.commit()
        except BaseException as error:
            failures.append(error)

    def write_many() -> None:
        """Statements that last: their rows and those of the buffer are far from each other in the WAL."""
        try:
            with psycopg.connect(database.dsn, autocommit=True) as connection:
                while not stop.is_set():
                    with suppress(psycopg.errors.ObjectNotInPrerequisiteState):
                        connection.execute(f"UPDATE t SET n = n + 1 WHERE id >= {MANY}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, count + 1)]
    threads.append(threading.Thread(target=write_many))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


@pytest.mark.parametrize("streamed", [False, True])
def test_a_table_that_gets_and_loses_its_key_under_load_is_complete_and_nothing_comes_twice(
    database: Database, tmp_path: Path, streamed: bool
) -> None:
    if streamed:
        database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    database.execute("CREATE TABLE other (v int); CREATE TABLE t (id int NOT NULL, n int, v text)")
    config = Config(source={"dsn": database.dsn}, lake={"path": str(tmp_path)}, groups=[{"name": GROUP}])
    group = config.groups[0].model_copy(update={"capture": "wal"})
    with closing(Source(config, group)) as source:
        assert source.publish(source.discover()) == {}
        with source.create_slot() as made:
            start = made.snapshot.lsn
        database.execute(f"INSERT INTO t SELECT {MANY} + i, 0, 'many' FROM generate_series(1, 3000) i")
        with writers(database, 4):
            for number in range(CHANGES):
                keyed = number % 2 == 0
                alter(database, "ADD CONSTRAINT k PRIMARY KEY (id)" if keyed else "DROP CONSTRAINT k")
                wait_until(lambda keyed=keyed: ways(source, keyed), 90, "the table to change its way")  # type: ignore[misc]
                before = database.value("SELECT pg_current_wal_insert_lsn()")
                wait_until(
                    lambda before=before: database.value(f"SELECT pg_current_wal_insert_lsn() - '{before}' > 500000"),  # type: ignore[misc]
                    90, "changes",
                )  # fmt: skip
        oid = database.value("SELECT 't'::regclass::oid::int8")
        with closing(Spools(tmp_path / "spools")) as spools:
            replayed = read(config, source, start, oid, streamed, spools)
        with connect(config.source) as conn:
            expected = contents(conn, str(oid))
        assert replayed.directly > 100 and replayed.by_buffer > 100
        assert replayed.rows == expected
        source.drop_publication()
        source.drop_slot()


def alter(database: Database, what: str) -> None:
    def attempt() -> bool:
        try:
            database.execute(f"SET lock_timeout = '500ms'; ALTER TABLE t {what}")
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    wait_until(attempt, 60, "the table to be altered")


def ways(source: Source, keyed: bool) -> bool:
    schemas = source.discover()
    try:
        refused = source.publish(schemas)
        source.maintain_triggers()
    except SourceBusy:
        return False
    (oid,) = [schema.oid for schema in schemas if schema.id.name == "t"]
    # Else it would be copied again.
    assert oid not in refused
    return (oid in source.by_triggers()) is not keyed


def read(config: Config, source: Source, start: Lsn, oid: int, streamed: bool, spools: Spools) -> Replayed:
    """The stream up to its present end."""
    replayed, demultiplexer, streamed_ones = Replayed(), Demultiplexer(spools), 0
    request = StreamRequest(source.slot_name, (publication_name(GROUP), append_name(GROUP)), start, streamed=streamed)
    with connect(config.source) as conn:
        end = mark(conn)
    with BufferedStream(open_stream(config.source, request, GROUP), config.source, GROUP) as stream:
        while stream.keepalive_lsn < end:
            for item in demultiplexer.feed(stream.read(1.0)):
                parts = item.chunks(1 << 20) if isinstance(item, Streamed) else [item]
                replayed.take([one for part in parts for one in part if concerns(one, oid)])
                streamed_ones += isinstance(item, Streamed)
    assert bool(streamed_ones) is streamed
    return replayed


def concerns(message: bytes, oid: int) -> bool:
    return message[25:26] in (b"R", b"I", b"U", b"D") and message[26:30] == struct.pack(">I", oid)
