"""What is read from PostgreSQL's binary form is what its text gives, to the last bit; where it can't be, text is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capture_worker import RunningPump
from capturing import CapturedGroup
from decoding import KINDS, Source
from inline_decoder import Cut
from servers import Database, can_declare
from wal2lake.decode import TextNeeded
from wal2lake.source.streaming.stream import ReplicationStream

BINARY = {
    "boolean", "int2", "int4", "int8", "float4", "float8", "numeric(5,-2)", "numeric(3,5)", "text", "char(5)", "name",
    "bytea", "date", "timestamp", "timestamptz", "jsonb", "uuid", "json",
}  # fmt: skip
"""of KINDS those that are read in binary form"""
DECIMALS = [
    (1, 0), (4, 4), (4, 0), (5, 2), (9, 3), (12, 2), (14, 4), (16, 8), (17, 9), (18, 0), (18, 1), (18, 2), (18, 5),
    (18, 16), (18, 17), (18, 18),
]  # fmt: skip


@pytest.fixture
def source(database: Database) -> Iterator[Source]:
    made = Source(psycopg.connect(database.dsn, autocommit=True))
    yield made
    made.close()


def assert_same(source: Source) -> Cut:
    """The stream so far gives the same in both forms: rows, refusals, counts."""
    binary, text = source.cut_binary(), source.cut()
    assert len(binary.tables) == len(text.tables) > 0
    for one, other in zip(binary.tables, text.tables, strict=True):
        one.batch.validate(full=True)
        assert one.batch.schema == other.batch.schema
        for name, left, right in zip(one.batch.schema.names, one.batch.columns, other.batch.columns, strict=True):
            assert left.to_pylist() == right.to_pylist() or left.equals(right), name
        assert (one.inserts, one.updates, one.deletes, one.key_changes, one.unchanged) == (
            other.inserts, other.updates, other.deletes, other.key_changes, other.unchanged,
        )  # fmt: skip
    assert binary.refusals == text.refusals
    assert (binary.to_lsn, binary.transactions, binary.truncations) == (
        text.to_lsn,
        text.transactions,
        text.truncations,
    )
    return binary


@pytest.mark.parametrize("kind", [kind for kind in sorted(BINARY) if can_declare(kind)])
def test_every_value_is_that_of_the_text(source: Source, kind: str) -> None:
    source.run(f"CREATE TABLE t (id int PRIMARY KEY, v {kind}, n {kind})")
    source.open_slot()
    for number, value in enumerate(KINDS[kind]):
        source.run(f"INSERT INTO t VALUES ({number}, ({value})::{kind}, NULL)")
    source.run("INSERT INTO t VALUES (-1, NULL, NULL)", "INSERT INTO t SELECT 100 + id, v, v FROM t WHERE id = 0")
    cut = assert_same(source)
    assert cut.tables[0].batch.num_rows == len(KINDS[kind]) + 2 and cut.refusals == {}


OTHERS = [*sorted(KINDS.keys() - BINARY), "int[]", "numeric(19,2)", "numeric(18,-1)"]


@pytest.mark.parametrize("kind", [kind for kind in OTHERS if can_declare(kind)])
def test_other_types_lists_and_large_numbers_ask_for_text(source: Source, kind: str) -> None:
    source.run(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    source.open_slot()
    source.run("INSERT INTO t VALUES (1, NULL)")
    with pytest.raises(TextNeeded):
        source.cut_binary()


def numbers(precision: int, scale: int) -> list[str]:
    """Decimal numbers with the ends of the range, round ones, and some of any length."""
    pick = random.Random(f"{precision},{scale}")
    most = 10**precision - 1
    units = {0, 1, -1, most, -most, most - 1}
    for digits in range(precision + 1):
        units |= {10**digits, -(10**digits), 10**digits - 1, 10**digits + 1}
        units |= {pick.randrange(10**digits + 1) * pick.choice((1, -1)) for _ in range(20)}
        units |= {pick.randrange(1, 10**4) * 10**digits, pick.randrange(10**4) * 10**digits + pick.randrange(10**4)}
    return [f"{unit}e-{scale}" for unit in sorted(units) if abs(unit) <= most]


def test_decimals_of_any_length_and_place(source: Source) -> None:
    for precision, scale in DECIMALS:
        source.run(f"CREATE TABLE t_{precision}_{scale} (id serial PRIMARY KEY, v numeric({precision},{scale}))")
    source.open_slot()
    expected = {}
    for precision, scale in DECIMALS:
        some = numbers(precision, scale)
        expected[f"t_{precision}_{scale}"] = len(some)
        values = ", ".join(f"('{value}'::numeric)" for value in some)
        source.run(f"INSERT INTO t_{precision}_{scale} (v) VALUES {values}")
    cut = assert_same(source)
    assert {table.schema.id.name: table.batch.num_rows for table in cut.tables} == expected
    assert cut.refusals == {}


def test_what_does_not_fit_is_refused_with_the_same_words(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, d date, s timestamp, z timestamptz, n numeric(9,2))")
    source.open_slot()
    source.run(
        "INSERT INTO t VALUES (1, NULL, NULL, NULL, NULL), (2, '2024-01-01', '2024-01-01', '2024-01-01', 1.5)",
        "INSERT INTO t VALUES (3, 'infinity', '-infinity', '0001-01-01 BC', 'NaN')",
        "INSERT INTO t VALUES (4, '10000-01-01', '0044-01-01 BC', '294276-01-01', 1)",
        "INSERT INTO t VALUES (5, '-infinity', 'infinity', 'infinity', 2), (6, '0001-01-01', NULL, NULL, 3)",
    )
    (refusals,) = assert_same(source).refusals.values()
    assert {(r.fields["column"], r.fields["what"], r.fields["key"]) for r in refusals} == {
        ("d", "infinity", "id=3"), ("s", "infinity", "id=3"),
        ("z", "a date before year 1 or after 9999", "id=3"), ("n", "NaN", "id=3"),
    }  # fmt: skip


def test_updates_deletes_key_changes_and_unchanged_values(source: Source) -> None:
    source.run(
        "CREATE TABLE t (n int, body text, id uuid, at timestamptz, j jsonb, PRIMARY KEY (id, at))",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER j SET STORAGE EXTERNAL",
        "CREATE TABLE u (n int, f float8, body text)", "ALTER TABLE u REPLICA IDENTITY FULL",
    )  # fmt: skip
    source.open_slot()
    source.run(
        "INSERT INTO t SELECT i, repeat('x', i * 300), md5(i::text)::uuid, timestamptz '2024-01-01' + i * interval '1 s',"
        " jsonb_build_object('a', repeat('y', i * 300)) FROM generate_series(1, 40) i",
        "UPDATE t SET n = -n WHERE n % 3 = 0",
        "UPDATE t SET id = md5(n::text || 'z')::uuid WHERE n % 4 = 1",
        "UPDATE t SET at = at + interval '1 day', j = NULL WHERE n % 4 = 2",
        "DELETE FROM t WHERE n % 5 = 1",
        "INSERT INTO u SELECT i, sqrt(i), repeat('q', 5000) FROM generate_series(1, 9) i",
        "UPDATE u SET n = n + 1", "DELETE FROM u WHERE n > 5", "TRUNCATE u",
    )  # fmt: skip
    cut = assert_same(source)
    assert sum(table.key_changes for table in cut.tables) > 5
    assert sum(table.unchanged for table in cut.tables) > 5


class Streams:
    """The forms in which streams were asked for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.binary: list[bool] = []
        self._opened = ReplicationStream.of
        monkeypatch.setattr(ReplicationStream, "of", self._open)

    def _open(self, *arguments: Any) -> ReplicationStream:
        stream = self._opened(*arguments)
        self.binary.append(stream.capabilities.binary)
        return stream


@pytest.fixture
def captured(database: Database, tmp_path: Path) -> CapturedGroup:
    return CapturedGroup(database, tmp_path)


def mirrored_table(captured: CapturedGroup, columns: str) -> Database:
    """Table t, from whose first row on all is captured."""
    captured.database.execute(f"CREATE TABLE t ({columns})")
    captured.begin("public.t").close()
    return captured.database


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    return Streams(monkeypatch)


def test_a_column_that_needs_text_turns_the_stream_to_text(captured: CapturedGroup, streams: Streams) -> None:
    database = mirrored_table(captured, "id int PRIMARY KEY, v text")
    with RunningPump(captured) as worker:
        database.execute("INSERT INTO t VALUES (1, 'a')")
        worker.catch_up()
        assert streams.binary == [True]
        database.execute("INSERT INTO t VALUES (2, 'b')")
        database.execute("ALTER TABLE t ADD w interval")
        database.execute("INSERT INTO t VALUES (3, 'c', '1 day')")
        worker.catch_up()
        database.execute("INSERT INTO t VALUES (4, 'd', NULL)")
        worker.catch_up()
    assert streams.binary == [True, False]
    rows = [(row["id"], row["v"], row.get("w")) for row in captured.changes("public.t")]
    assert rows == [(1, "a", None), (2, "b", None), (3, "c", "1 day"), (4, "d", None)]
    assert all(report.error is None for report in worker.reports), "it is no failure"


def test_a_transaction_that_is_streamed_while_it_runs_turns_the_stream_to_text(
    captured: CapturedGroup, streams: Streams
) -> None:
    captured.database.execute(f"ALTER DATABASE \"{captured.database.name}\" SET logical_decoding_work_mem = '64kB'")
    database = mirrored_table(captured, "id int PRIMARY KEY, v text")
    with RunningPump(captured) as worker:
        worker.catch_up()
        database.execute("ALTER TABLE t ADD w interval")
        # More than one slice, so that it is decoded before its commit comes.
        database.execute(
            "INSERT INTO t SELECT i, repeat('x', 1000), i * interval '1 s' FROM generate_series(1, 30000) i"
        )
        worker.catch_up()
    assert streams.binary == [True, False]
    rows = captured.changes("public.t")
    assert [row["id"] for row in rows] == list(range(1, 30001))
    assert rows[59]["w"] == "00:01:00"


def test_text_is_requested_at_once_if_the_catalog_shows_the_need(captured: CapturedGroup, streams: Streams) -> None:
    database = mirrored_table(captured, "id int PRIMARY KEY, v inet")
    with RunningPump(captured) as worker:
        database.execute("INSERT INTO t VALUES (1, '10.0.0.1')")
        worker.catch_up()
    assert streams.binary == [False]
    assert [row["v"] for row in captured.changes("public.t")] == ["10.0.0.1"]


def test_a_stream_is_opened_though_a_table_is_being_altered(captured: CapturedGroup, streams: Streams) -> None:
    database = captured.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    captured.begin("public.t", "public.u").close()
    altering = database.connect(autocommit=False)
    altering.execute("ALTER TABLE t ADD w interval")
    with RunningPump(captured) as worker:
        database.execute("INSERT INTO u VALUES (1)")
        worker.catch_up()
        altering.commit()
    assert streams.binary == [True]
    assert [row["id"] for row in captured.changes("public.u")] == [1]


def test_text_is_requested_if_configured(captured: CapturedGroup, streams: Streams) -> None:
    database = captured.database
    source = captured.config.source.model_copy(update={"binary": False})
    captured.config = captured.config.model_copy(update={"source": source})
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.begin("public.t").close()
    with RunningPump(captured) as worker:
        database.execute("INSERT INTO t VALUES (1)")
        worker.catch_up()
    assert streams.binary == [False]
    assert [row["id"] for row in captured.changes("public.t")] == [1]
