"""The decoder on the server's own bytes, with the server's own SELECT as the oracle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from decoding import KINDS, Source
from inline_decoder import Cut
from servers import Database, can_declare
from wal2lake.types import Kind


@pytest.fixture
def source(database: Database) -> Iterator[Source]:
    made = Source(psycopg.connect(database.dsn, autocommit=True))
    yield made
    made.close()


def held(cut: Cut, *columns: str) -> list[tuple[Any, ...]]:
    tables = pa.Table.from_batches([decoded.batch for decoded in cut.tables])
    return list(zip(*(tables.column(name).to_pylist() for name in columns), strict=True))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if can_declare(kind)])
def test_every_value_is_the_servers_own(source: Source, kind: str) -> None:
    source.run(f"CREATE TABLE t (id int PRIMARY KEY, v {kind}, a {kind}[], n {kind})")
    source.open_slot()
    for number, value in enumerate(KINDS[kind]):
        cast = f"({value})::{kind}"
        source.run(f"INSERT INTO t VALUES ({number}, {cast}, ARRAY[{cast}, NULL, {cast}], NULL)")
    source.run("INSERT INTO t VALUES (-1, NULL, '{}', NULL), (-2, NULL, NULL, NULL), (-3, NULL, '{NULL}', NULL)")
    cut = source.cut()
    assert cut.refusals == {}
    schema = next(iter(source.schemas.values()))
    # A real is read as the double that equals it; what the lake has as text, in the words of its output function.
    value = "concat(v)" if schema.column("v").lake.kind is Kind.STRING else "v::float8" if kind == "float4" else "v"
    found = held(cut, "id", "v", "n")
    wanted = source.rows(f"SELECT id, CASE WHEN v IS DISTINCT FROM NULL THEN {value} END, n FROM t")
    assert [_comparable(row) for row in sorted(found)] == [_comparable(row) for row in sorted(wanted)]
    scalars = {id: value for id, value, _ in found}
    lists = dict(held(cut, "id", "a"))
    assert (lists.pop(-1), lists.pop(-2), lists.pop(-3)) == ([], None, [None])
    assert {id: repr(one) for id, one in lists.items()} == {id: repr([scalars[id], None, scalars[id]]) for id in lists}


def _comparable(row: tuple[Any, ...]) -> list[Any]:
    """Values by what they are, also where == says more (0 and -0) or less (NaN)."""
    return [one if isinstance(one, datetime) else repr(one) for one in row]


def test_values_that_fit_nowhere_are_refused(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, d date, s timestamp, z timestamptz, n numeric(9,2), a int[])")
    source.open_slot()
    source.run(
        "INSERT INTO t VALUES (1, 'infinity', '-infinity', '0001-01-01 BC', 'NaN', '{{1}}')",
        "INSERT INTO t VALUES (2, '10000-01-01', '0044-01-01 BC', '294276-01-01', 1, '[0:1]={1,2}')",
    )
    (refusals,) = source.cut().refusals.values()
    assert {(r.fields["column"], r.fields["what"], r.fields["key"]) for r in refusals} == {
        ("d", "infinity", "id=1"), ("s", "infinity", "id=1"),
        ("z", "a date before year 1 or after 9999", "id=1"), ("n", "NaN", "id=1"),
        ("a", "an array of more than one dimension", "id=1"),
    }  # fmt: skip


def test_unchanged_toast_key_changes_and_deletes(source: Source) -> None:
    source.run(
        "CREATE TABLE t (n int, body text, id text PRIMARY KEY)",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER id SET STORAGE EXTERNAL",
    )
    source.open_slot()
    source.run(
        "INSERT INTO t VALUES (1, repeat('x', 9000), 'a')",
        "UPDATE t SET n = 2",
        "UPDATE t SET id = 'b'",
        "UPDATE t SET n = 3, body = 'short'",
        "DELETE FROM t",
    )
    assert held(source.cut(), "_op", "n", "body", "id", "_key_changed", "_old_id", "_unchanged") == [
        ("I", 1, "x" * 9000, "a", False, None, None),
        ("U", 2, None, "a", False, None, [1]),
        ("U", 2, None, "b", True, "a", [1]),
        ("U", 3, "short", "b", False, None, None),
        ("D", None, None, "b", False, None, None),
    ]


def test_a_full_identity_without_a_key_gives_whole_rows(source: Source) -> None:
    source.run("CREATE TABLE t (n int, body text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    source.run("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    source.open_slot()
    source.run("INSERT INTO t VALUES (1, repeat('x', 9000))", "UPDATE t SET n = 2", "DELETE FROM t")
    long = "x" * 9000
    cut = source.cut()
    assert held(cut, "_op", "n", "body", "_unchanged") == [
        ("I", 1, long, None), ("D", 1, long, None), ("I", 2, long, None), ("D", 2, long, None),
    ]  # fmt: skip
    assert cut.refusals == {}


def test_ddl_between_changes_of_one_transaction_and_truncates_of_several_tables(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY REFERENCES t)")
    source.open_slot()
    with source.connection.transaction():
        source.run("INSERT INTO t VALUES (1)", "ALTER TABLE t ADD v int DEFAULT 5", "INSERT INTO t VALUES (2, 6)")
        source.run("INSERT INTO u VALUES (1)", "TRUNCATE t CASCADE", "INSERT INTO t VALUES (3, 7)")
    cut = source.cut()
    of_t = [decoded for decoded in cut.tables if decoded.schema.id.name == "t"]
    assert [row for decoded in of_t for row in decoded.batch.column("id").to_pylist()] == [1, 2, 3]
    assert sorted(len(decoded.schema.columns) for decoded in of_t) == [1, 2]
    assert [[t.seq for t in some] for some in cut.truncations.values()] == [[6], [6]]


def test_positions_are_those_of_the_server(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    source.open_slot()
    source.run("INSERT INTO t VALUES (1)")
    (before,) = source.rows("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn, xmin::text::int8 FROM t")
    cut = source.cut()
    ((commit_lsn, xid, stamp),) = held(cut, "_commit_lsn", "_xid", "_commit_ts")
    assert commit_lsn < cut.to_lsn <= before[0]
    assert xid == before[1]
    assert cut.commit_ts == stamp
    ((age,),) = source.rows(f"SELECT clock_timestamp() - '{stamp.isoformat()}'::timestamptz")
    assert 0 <= age.total_seconds() < 60
    assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", str(cut.to_lsn))
