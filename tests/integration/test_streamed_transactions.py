"""Transactions that the server streams while they run give the same changes as those that it sends at their commit."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.pq import ExecStatus

from changelogs import directory_of, file_of
from inline_decoder import Cut, InlineDecoder
from servers import Database
from waiting import wait_until
from wal2lake.capture.pipeline import Pipeline
from wal2lake.capture.speculative import SpeculativeReader
from wal2lake.capture.spool import Spools
from wal2lake.capture.streamed_transactions import Demultiplexer, Streamed
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import SourceConfig
from wal2lake.decode import DecodedTable, Intake, Relation, Target
from wal2lake.decode import intake as intake_module
from wal2lake.position import ZERO, Lsn
from wal2lake.schema import Column, Membership, ReplicaIdentity, TableId, TableSchema
from wal2lake.source import connect, server_facts
from wal2lake.source.sessions.connect import replication_connect
from wal2lake.types import PgType, lake_type

TABLES = """
    CREATE TABLE t (id int PRIMARY KEY, v text);
    CREATE TABLE u (id int PRIMARY KEY, v text);
    CREATE TABLE big (id int PRIMARY KEY, n int, doc text);
    ALTER TABLE big ALTER doc SET STORAGE EXTERNAL;
    CREATE TABLE whole (a int, b text);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE hidden (id int, v text);
    CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE part_a PARTITION OF part FOR VALUES FROM (0) TO (1000);
    CREATE TABLE part_b PARTITION OF part FOR VALUES FROM (1000) TO (100000);
    CREATE PUBLICATION p FOR TABLE t, u, big, whole, part;
"""


class Wire:
    """Reads a slot over the replication protocol, up to a position."""

    def __init__(self, dsn: str, *settings: str) -> None:
        options = " ".join(f"-c {setting}" for setting in settings)
        self.source = SourceConfig(dsn=f"{dsn}?options={quote(options)}")

    def read(self, slot: str, options: str, end: int) -> Iterator[list[bytes]]:
        pgconn = replication_connect(self.source)
        try:
            result = pgconn.exec_(
                f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options}, publication_names 'p')".encode()
            )
            assert result.status == ExecStatus.COPY_BOTH, result.get_error_message()
            deadline, reached = time.monotonic() + 60, 0
            while reached < end:
                assert time.monotonic() < deadline, f"the server is at {reached:X} of {end:X}"
                select.select([pgconn.socket], [], [], 1)
                pgconn.consume_input()
                messages: list[bytes] = []
                while (answer := pgconn.get_copy_data(1))[0] > 0:
                    data = bytes(answer[1])
                    if data[0] == ord("w"):
                        messages.append(data)
                    else:
                        (reached,) = struct.unpack_from(">Q", data, 1)
                assert answer[0] == 0, pgconn.get_error_message()
                if messages:
                    yield messages
                pgconn.put_copy_data(struct.pack(">cQQQqB", b"r", 0, 0, 0, 0, 1))
                pgconn.flush()
        finally:
            pgconn.finish()


class Reading:
    """What a decoder makes of a stream, cut and spilled as it comes."""

    def __init__(self, database: Database) -> None:
        self._types = {
            oid: PgType(oid, name, kind, element, base, base_typmod, base_dims)
            for oid, name, kind, element, base, base_typmod, base_dims in database.rows(
                "SELECT oid::int, typname, typtype::text, (CASE WHEN typcategory = 'A' THEN typelem ELSE 0 END)::int,"
                " typbasetype::int, typtypmod, typndims FROM pg_type"
            )
        }
        self._decoder = InlineDecoder(self._resolve, ZERO)
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.truncations: list[tuple[int, Any]] = []
        self.transactions = 0

    def _resolve(self, relation: Relation) -> Target:
        columns = tuple(
            Column(c.name, c.type_oid, c.typmod, "?", lake_type(c.type_oid, c.typmod, 0, self._types))
            for c in relation.columns
        )
        key = tuple(c.name for c in relation.columns if c.key and relation.identity is not ReplicaIdentity.FULL)
        table = TableId(relation.namespace, relation.name)
        return Target(TableSchema(relation.oid, table, columns, key, relation.identity), len(columns))

    def feed(self, messages: Sequence[bytes]) -> None:
        self._decoder.feed(messages)
        self._cut(self._decoder.cut())
        for decoded in self._decoder.spill():
            self._take(decoded)

    def _cut(self, cut: Cut) -> None:
        assert cut.refusals == {}
        self.transactions += cut.transactions
        self.truncations += [(oid, each) for oid, some in sorted(cut.truncations.items()) for each in some]
        for decoded in cut.tables:
            self._take(decoded)

    def _take(self, decoded: DecodedTable) -> None:
        self.rows.setdefault(str(decoded.schema.id), []).extend(decoded.batch.to_pylist())

    @property
    def in_order(self) -> dict[str, list[dict[str, Any]]]:
        order = {
            name: sorted(some, key=lambda row: (row["_commit_lsn"], row["_seq"])) for name, some in self.rows.items()
        }
        return order


class Logging(Reading):
    """What the pipeline makes of the same stream when it decodes ahead; segments are read back."""

    def __init__(self, database: Database, directory: Path, spools: Spools) -> None:
        super().__init__(database)
        self._log = ChangeLog(storage_for(directory / "log"), "g")
        with connect(SourceConfig(dsn=database.dsn)) as conn:
            self._log.create(server_facts(conn), "s")
        self._log.begin(ZERO)
        self.names: dict[int, str] = {}
        self.attached: dict[int, tuple[Membership, ...]] = {}
        self._pipeline = Pipeline(self._log, self, ZERO)
        self._ahead = SpeculativeReader(self._pipeline)
        self._intake = Intake()
        self._demultiplexer = Demultiplexer(spools, self._ahead)

    def doubts(self, upto: Lsn) -> dict[int, frozenset[int]]:
        return {}

    def __call__(self, relation: Relation, commit_lsn: Lsn) -> Target:
        return self.resolve_at_once(relation)

    def resolve_at_once(self, relation: Relation) -> Target:
        target = self._resolve(relation)
        self.names[relation.oid] = str(target.schema.id)
        return target

    def feed(self, messages: Sequence[bytes]) -> None:
        for item in self._demultiplexer.feed(messages):
            if not isinstance(item, Streamed):
                self._intake.feed(item)
                continue
            self._pipeline.take(self._intake.take_complete())
            self._pipeline.take(self._intake.take_open())
            self._ahead.complete(item.xid)
            self._pipeline.take_streamed(item)

    def finish(self) -> None:
        self._pipeline.take(self._intake.take_complete())
        self._pipeline.publish()
        wait_until(lambda: bool(self._pipeline.published()), 30, "the manifest")
        self._pipeline.close()
        left = set(directory_of(self._log).glob("segments/*/*.parquet"))
        for manifest in self._log.after(0):
            self.transactions += manifest.transactions
            for oid, cut in sorted(manifest.tables.items()):
                self.truncations += [(oid, each) for each in cut.truncations]
                for segment in cut.segments:
                    path = file_of(self._log, segment)
                    left.remove(path)
                    table = pq.read_table(path)
                    assert table.num_rows == segment.rows
                    self.rows.setdefault(cut.name, []).extend(table.to_pylist())
        assert left == set()


class Comparison:
    """A slot and its copies, one read with protocol 1, the others with protocol 2."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        database.execute(TABLES)
        self._names = [f"streamed_{way}_{database.name}".replace("-", "_").lower() for way in ("plain", "on")]
        database.rows(f"SELECT pg_create_logical_replication_slot('{self._names[0]}', 'pgoutput')")
        database.rows(f"SELECT pg_copy_logical_replication_slot('{self._names[0]}', '{self._names[1]}')")
        self._directory = directory
        self._spools = Spools(directory / "spool")
        self.ahead = Logging(database, directory, Spools(directory / "ahead"))

    def must_agree(self, *settings: str) -> bytes:
        """Read both, compare, and give the kinds of protocol 2's messages."""
        plain = Reading(self.database)
        for messages in Wire(self.database.dsn).read(self._names[0], "proto_version '1'", self._end()):
            plain.feed(messages)
        streamed, kinds = self.streamed(*settings)
        assert streamed.in_order == plain.in_order
        assert streamed.truncations == plain.truncations
        assert self.ahead.in_order == plain.in_order
        assert self.ahead.truncations == plain.truncations
        assert self.ahead.transactions == streamed.transactions
        return kinds

    def _end(self) -> int:
        return int(self.database.value("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def streamed(self, *settings: str) -> tuple[Reading, bytes]:
        reading, kinds = Reading(self.database), b""
        demultiplexer = Demultiplexer(self._spools)
        wire = Wire(self.database.dsn, *settings)
        for messages in wire.read(self._names[1], "proto_version '2', streaming 'on'", self._end()):
            kinds += bytes(message[25] for message in messages)
            self.ahead.feed(messages)
            for item in demultiplexer.feed(messages):
                if isinstance(item, Streamed):
                    for chunk in item.chunks(50_000):
                        reading.feed(chunk)
                    item.remove()
                else:
                    reading.feed(item)
        self.ahead.finish()
        assert demultiplexer.running == 0
        assert (self._spools.bytes, self._spools.buffered, list(self._spools.directory.iterdir())) == (0, 0, [])
        return reading, kinds

    def close(self) -> None:
        for name in self._names:
            self.database.rows(f"SELECT pg_drop_replication_slot('{name}')")


@pytest.fixture
def comparison(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    # So that even these small transactions are decoded in several portions.
    monkeypatch.setattr(intake_module, "SLICE_BYTES", 10_000)
    made = Comparison(database, tmp_path)
    yield made
    made.close()


Session = psycopg.Connection[Any]


def many(table: str, first: int, count: int) -> str:
    return f"INSERT INTO {table} SELECT i, 'value ' || i FROM generate_series({first}, {first + count - 1}) i"


def interleaved(database: Database, size: int) -> None:
    one, two, three = (database.connect(autocommit=False) for _ in range(3))
    for round in range(3):
        for number, session in enumerate((one, two, three)):
            session.execute(many(("t", "u", "whole")[number], 10_000 * number + size * round, size).encode())
        database.execute(f"INSERT INTO t VALUES ({-1 - round}, 'plain')")
        one.execute(
            f"UPDATE t SET v = v || '!' WHERE id BETWEEN {size * round} AND {size * round + size // 2}".encode()
        )
        two.execute(f"DELETE FROM u WHERE id % 3 = {round}".encode())
    two.commit()
    database.execute("UPDATE u SET v = 'plain'")
    three.commit()
    one.rollback()
    one.execute(many("t", 0, size).encode())
    one.commit()


def nested_savepoints(database: Database, size: int) -> None:
    session = database.connect(autocommit=False)
    for statement in [
        many("t", 0, size), "SAVEPOINT a", many("t", 10_000, size), "SAVEPOINT b", "UPDATE t SET v = v || 'b'", "ROLLBACK TO b",
        many("u", 0, size), "RELEASE b", "SAVEPOINT c", many("u", 10_000, size), "RELEASE c", many("t", 20_000, size), "ROLLBACK TO a",
        many("t", 30_000, size), "SAVEPOINT d", many("u", 20_000, size), "RELEASE d", "SAVEPOINT e", many("hidden", 0, size),
        "ROLLBACK TO e", many("u", 30_000, size),
    ]:  # fmt: skip
        session.execute(statement.encode())
    session.commit()


def loop_of_failing_sub_transactions(database: Database, size: int) -> None:
    database.execute(f"""
        DO $$ BEGIN
            FOR i IN 1..{size // 4} LOOP
                INSERT INTO t SELECT i * 10000 + j, 'kept' FROM generate_series(1, 3) j;
                BEGIN
                    INSERT INTO t SELECT i * 10000 + 10 + j, 'tried' FROM generate_series(1, 30) j;
                    BEGIN
                        INSERT INTO u SELECT i * 10000 + j, 'inner' FROM generate_series(1, 5) j;
                        IF i % 3 = 0 THEN RAISE EXCEPTION 'inner'; END IF;
                    EXCEPTION WHEN others THEN NULL; END;
                    INSERT INTO t VALUES (i * 10000 + 50, 'after the inner');
                    IF i % 2 = 0 THEN RAISE EXCEPTION 'outer'; END IF;
                EXCEPTION WHEN others THEN NULL; END;
            END LOOP;
        END $$
    """)


def described_in_one_that_rolls_back(database: Database, size: int) -> None:
    session = database.connect(autocommit=False)
    session.execute(many("t", 0, size).encode())
    session.rollback()
    database.execute("INSERT INTO t VALUES (1, 'plain')")
    session.execute(many("t", 2, size).encode())
    session.execute(b"SAVEPOINT a")
    session.execute(many("u", 0, size).encode())
    session.execute(b"ROLLBACK TO a")
    session.execute(many("u", 7, size).encode())
    session.commit()
    database.execute("INSERT INTO u VALUES (1, 'plain')")


def described_in_one_that_commits(database: Database, size: int) -> None:
    database.execute(many("t", 0, size))
    database.execute("INSERT INTO t VALUES (-1, 'plain')")
    database.execute(many("t", 10_000, size))


def ddl_inside(database: Database, size: int) -> None:
    session = database.connect(autocommit=False)
    for statement in [
        many("t", 0, size), "ALTER TABLE t ADD COLUMN w int DEFAULT 5", "UPDATE t SET w = id", "SAVEPOINT a",
        "ALTER TABLE t DROP COLUMN v", "UPDATE t SET w = w + 1", "ROLLBACK TO a", "UPDATE t SET v = v || '!'",
        "ALTER TABLE u RENAME v TO renamed", many("u", 0, size),
    ]:  # fmt: skip
        session.execute(statement.encode())
    session.commit()
    database.execute("INSERT INTO t VALUES (-1, 'plain', 1); INSERT INTO u VALUES (-1, 'plain')")


def truncate_inside(database: Database, size: int) -> None:
    database.execute(many("t", 0, size))
    session = database.connect(autocommit=False)
    for statement in [
        many("u", 0, size), "TRUNCATE t, u", many("t", 0, size), "SAVEPOINT a", "TRUNCATE t", many("t", 5, size), "ROLLBACK TO a",
        many("u", 9, size),
    ]:  # fmt: skip
        session.execute(statement.encode())
    session.commit()


def toast_keys_and_identities(database: Database, size: int) -> None:
    database.execute("INSERT INTO big SELECT i, i, repeat(i || 'x', 3000) FROM generate_series(1, 30) i")
    session = database.connect(autocommit=False)
    for statement in [
        "UPDATE big SET n = -n", "UPDATE big SET id = id + 1000", "UPDATE big SET doc = doc || '!' WHERE id % 2 = 0",
        many("whole", 0, size), "UPDATE whole SET b = b || '!' WHERE a % 2 = 0", "DELETE FROM whole WHERE a % 5 = 0",
        many("part", 0, size), "UPDATE part SET id = id + 2000 WHERE id < 500", "DELETE FROM part WHERE id % 7 = 0",
    ]:  # fmt: skip
        session.execute(statement.encode())
    session.commit()


def nothing_for_us(database: Database, size: int) -> None:
    database.execute(many("hidden", 0, size))
    session = database.connect(autocommit=False)
    session.execute(many("hidden", 0, size).encode())
    session.rollback()
    database.execute("INSERT INTO t VALUES (1, 'plain')")


HISTORIES = [
    interleaved, nested_savepoints, loop_of_failing_sub_transactions, described_in_one_that_rolls_back,
    described_in_one_that_commits, ddl_inside, truncate_inside, toast_keys_and_identities, nothing_for_us,
]  # fmt: skip
History = Callable[[Database, int], None]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__.replace("_", " "))
def test_streamed_transactions_give_the_changes_of_plain_ones(comparison: Comparison, history: History) -> None:
    history(comparison.database, 1500)
    kinds = comparison.must_agree("logical_decoding_work_mem=64kB")
    assert b"S" in kinds
    assert b"c" in kinds


@pytest.mark.parametrize("history", HISTORIES[:4], ids=lambda history: history.__name__.replace("_", " "))
def test_a_block_for_every_change_gives_the_same(comparison: Comparison, history: History) -> None:
    if comparison.database.value("SELECT current_setting('server_version_num')::int") < 160000:
        pytest.skip("servers before 16 can't be told to stream at once")
    history(comparison.database, 12)
    kinds = comparison.must_agree("debug_logical_replication_streaming=immediate")
    assert kinds.count(b"S") >= 20


def test_a_column_list_that_changes_beside_a_streamed_transaction_holds_after_it(comparison: Comparison) -> None:
    database = comparison.database
    if database.value("SELECT current_setting('server_version_num')::int") < 150000:
        pytest.skip("publications have column lists from 15 on")
    session = database.connect(autocommit=False)
    session.execute(many("t", 0, 1500).encode())
    # With these behind them, no row of t is left to be sent at the commit.
    session.execute(many("hidden", 0, 3000).encode())
    database.execute("ALTER PUBLICATION p SET TABLE t (id)")
    database.execute("INSERT INTO t VALUES (-1, 'plain')")
    session.commit()
    database.execute("INSERT INTO t VALUES (-2, 'plain')")
    reading, kinds = comparison.streamed("logical_decoding_work_mem=64kB")
    assert kinds.count(b"c") == 1
    found = [(row["id"], "v" in row) for row in reading.in_order["public.t"]]
    assert found == [(-1, False), *((number, True) for number in range(1500)), (-2, False)]
