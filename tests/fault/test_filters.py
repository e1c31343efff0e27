"""Masks, row filters, column lists and named publications, through a mirror: hidden data never reach the lake."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mirroring import PATIENCE, Mirrored

from capturing import CapturedGroup
from lake_history import read_lake
from servers import Database
from waiting import wait_until
from wal2lake.config import TableConfig
from wal2lake.mirror import Mirror
from wal2lake.schema import TableId
from wal2lake.source.publishing import publication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "clear-value-3f9a"
"""is part of every value that must not be on disk"""
DIALECT = (
    "SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; SET extra_float_digits = 3; "
    "SET bytea_output = 'hex';"
)


@pytest.fixture
def narrowed(database: Database) -> Database:
    """A database whose server has row filters and column lists."""
    if database.connect().info.server_version < 150000:
        pytest.skip("PostgreSQL 14 publishes whole tables")
    return database


def _sha(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def _rows(lake: Path, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            tuple(row.get(name, "no such column") for name in columns)
            for row in read_lake(lake, TableId("public", table))
        ),
        key=repr,
    )


def _columns(lake: Path) -> set[str]:
    return set(read_lake(lake, TableId("public", "t"))[0])


def _wanted(database: Database, query: str) -> list[tuple[Any, ...]]:
    database.execute(DIALECT)
    return sorted(database.rows(query), key=repr)


def _files_with(directory: Path, marker: str) -> list[str]:
    """Files that have a text in them, as bytes or in a value."""
    found = []
    for path in directory.rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue  # a file of the change log that is done with
        if marker.encode() in content or marker in _values(path, content):
            found.append(str(path.relative_to(directory)))
    return found


def _values(path: Path, content: bytes) -> str:
    """The values of a Parquet file, which are compressed in its bytes; a file that is being written has no end yet."""
    if path.suffix != ".parquet" or not content.endswith(b"PAR1"):
        return ""
    table = pq.read_table(pa.BufferReader(content))
    texts = [column for column in table.columns if pa.types.is_string(column.type)]
    return "\n".join(str(value) for column in texts for value in column.unique().to_pylist()[:1000])


def _becomes(mirrored: Mirrored, table: str, columns: Sequence[str], query: str) -> None:
    """Wait until the lake has what a query of the source gives. Clear values are looked for all the while."""

    def look() -> bool:
        assert not _files_with(mirrored.lake, SECRET)
        return _rows(mirrored.lake, table, columns) == _wanted(mirrored.database, query)

    def seen() -> str:
        have, want = _rows(mirrored.lake, table, columns), _wanted(mirrored.database, query)
        return f"{table}: lake has {have}, wanted are {want}; {mirrored.table(table)}"

    mirrored.is_streaming(table)
    wait_until(look, PATIENCE, seen)


CUSTOMERS = {
    "mask": {"email": "sha256", "phone": "null", "note": "sha256"},
    "columns": ["id", "status", "email", "phone", "note"],
    "where": "status <> 'draft' -- what is finished",
}
AS_MIRRORED = (
    "SELECT id, status, encode(sha256(convert_to(email, 'UTF8')), 'hex'), NULL, "
    "encode(sha256(convert_to(note, 'UTF8')), 'hex') FROM customers WHERE status <> 'draft'"
)
COLUMNS = ("id", "status", "email", "phone", "note")


def test_a_masked_and_filtered_table_with_a_list_of_columns_is_followed(
    narrowed: Database, tmp_path: Path, spark: SparkSession
) -> None:
    narrowed.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, status text NOT NULL, email text, phone text, note text, "
        "internal text, UNIQUE (id, status));"
        "ALTER TABLE customers REPLICA IDENTITY USING INDEX customers_id_status_key;"
        "ALTER TABLE customers ALTER note SET STORAGE EXTERNAL;"
        f"INSERT INTO customers SELECT i, CASE i % 3 WHEN 0 THEN 'draft' ELSE 'done' END, '{SECRET}' || i, '{SECRET}', "
        f"repeat('{SECRET}' || i, 500), '{SECRET}' FROM generate_series(1, 30) i;"
        f"INSERT INTO customers VALUES (100, 'done', NULL, NULL, NULL, '{SECRET}'), (101, 'done', '', '', '', '')"
    )
    mirrored = Mirrored(narrowed, tmp_path / "lake", spark, tables={"public.customers": CUSTOMERS})
    mirrored.once()
    assert set(read_lake(mirrored.lake, TableId("public", "customers"))[0]) == set(COLUMNS)
    with mirrored.running():
        _becomes(mirrored, "customers", COLUMNS, AS_MIRRORED)
        before = _rows(mirrored.lake, "customers", COLUMNS)
        narrowed.execute(
            f"INSERT INTO customers VALUES (200, 'done', '{SECRET}x', '{SECRET}', 'n', ''), (201, 'draft', '', '', '', '');"
            "UPDATE customers SET status = 'done' WHERE id = 3;"  # into the filter
            "UPDATE customers SET status = 'draft' WHERE id = 4;"  # out of it
            "UPDATE customers SET status = 'paid' WHERE id = 5;"  # within it, the note stays out of line
            f"UPDATE customers SET email = '{SECRET}new' WHERE id IN (6, 7);"
            "DELETE FROM customers WHERE id IN (8, 9);"
            "UPDATE customers SET id = 1000 WHERE id = 10"
        )
        _becomes(mirrored, "customers", COLUMNS, AS_MIRRORED)
        assert _rows(mirrored.lake, "customers", COLUMNS) != before
        # One that is larger than what the stream keeps in memory.
        narrowed.execute(
            f"INSERT INTO customers SELECT i, 'done', '{SECRET}' || i, '{SECRET}', repeat('{SECRET}', 60), '' "
            "FROM generate_series(10001, 60000) i"
        )
        count = "SELECT count(*) FROM customers WHERE status <> 'draft'"
        wait_until(
            lambda: (
                not _files_with(mirrored.lake, SECRET)
                and len(read_lake(mirrored.lake, TableId("public", "customers"))) == narrowed.value(count)
            ),
            PATIENCE,
            lambda: f"{_files_with(mirrored.lake, SECRET)} {mirrored.table('customers')}",
        )
    assert _rows(mirrored.lake, "customers", COLUMNS) == _wanted(narrowed, AS_MIRRORED)
    assert not _files_with(mirrored.lake, SECRET)


VALUES = {
    "t": ("text", f"'{SECRET} é \\ \"'"), "i": ("int", "-5"), "n": ("numeric", "1.500"),
    "d": ("numeric(10,2)", "2.50"), "z": ("timestamptz", "'2024-02-29 12:00:00.120+02'"), "b": ("bytea", "'\\x00ff'"),
    "u": ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"), "j": ("jsonb", "'{\"b\": 1, \"a\": [null]}'"),
    "a": ("int[]", "'{1,NULL,3}'"), "x": ("text[]", f"ARRAY['{SECRET}', 'a,b', NULL]"), "f": ("float8", "0.1"),
    "c": ("char(5)", "'ab'"), "o": ("boolean", "true"), "v": ("interval", "'1 day 02:03'"), "y": ("inet", "'10.0.0.1'"),
    "r": ("double precision", "'infinity'"), "e": ("date", "'infinity'"), "w": ("date", "'0044-03-15 BC'"),
}  # fmt: skip


def test_copy_and_stream_hash_the_same_text_of_each_type(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
    values = ", ".join(value for _, value in VALUES.values())
    database.execute(
        f"CREATE TABLE typed (id int PRIMARY KEY, {columns}); INSERT INTO typed VALUES (1, {values}); "
        "INSERT INTO typed (id) VALUES (2)"
    )
    masks = dict.fromkeys(VALUES, "sha256")
    mirrored = Mirrored(database, tmp_path / "lake", spark, tables={"public.typed": {"mask": masks}})
    mirrored.once()
    database.execute(f"INSERT INTO typed VALUES (3, {values}); INSERT INTO typed (id) VALUES (4)")
    mirrored.once()
    rows = {row.pop("id"): row for row in read_lake(mirrored.lake, TableId("public", "typed"))}
    assert rows[1] == rows[3]
    assert rows[2] == rows[4] == dict.fromkeys(VALUES)
    assert rows[1]["i"] == _sha("-5")
    assert rows[1]["z"] == _sha("2024-02-29 10:00:00.12+00")
    assert rows[1]["u"] == _sha("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
    assert rows[1]["b"] == _sha("\\x00ff")
    assert rows[1]["c"] == _sha("ab   ")
    assert not _files_with(mirrored.lake, SECRET)


@pytest.mark.slow
def test_rows_with_a_masked_key_stay_distinct(database: Database, tmp_path: Path, spark: SparkSession) -> None:
    database.execute(
        "CREATE TABLE people (email text PRIMARY KEY, n int, big text);"
        "ALTER TABLE people ALTER big SET STORAGE EXTERNAL;"
        f"INSERT INTO people SELECT '{SECRET}' || i, i, repeat('{SECRET}', 400) FROM generate_series(1, 9) i;"
        "CREATE TABLE keyless (email text, n int); ALTER TABLE keyless REPLICA IDENTITY FULL;"
        f"INSERT INTO keyless SELECT '{SECRET}' || i % 3, i % 2 FROM generate_series(1, 12) i"
    )
    masks = {"mask": {"email": "sha256"}}
    people = {"mask": {"email": "sha256", "big": "sha256"}}
    mirrored = Mirrored(database, tmp_path / "lake", spark, tables={"public.people": people, "public.keyless": masks})
    sha = "encode(sha256(convert_to({}, 'UTF8')), 'hex')"
    as_people = f"SELECT {sha.format('email')}, n, {sha.format('big')} FROM people"
    as_keyless = f"SELECT {sha.format('email')}, n FROM keyless"
    with mirrored.running():
        _becomes(mirrored, "people", ("email", "n", "big"), as_people)
        database.execute(
            f"UPDATE people SET n = -n WHERE n < 4; UPDATE people SET email = '{SECRET}moved' WHERE n = 5;"
            "DELETE FROM people WHERE n = 6;"
            f"UPDATE keyless SET n = 7 WHERE email = '{SECRET}1'; DELETE FROM keyless WHERE email = '{SECRET}2'"
        )
        _becomes(mirrored, "people", ("email", "n", "big"), as_people)
        _becomes(mirrored, "keyless", ("email", "n"), as_keyless)


@pytest.mark.slow
def test_a_setting_that_changes_makes_a_re_copy(narrowed: Database, tmp_path: Path, spark: SparkSession) -> None:
    narrowed.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b jsonb); ALTER TABLE t REPLICA IDENTITY FULL;"
        """INSERT INTO t SELECT i, 'a' || i, jsonb_build_object('k' || i % 2, 'v') FROM generate_series(1, 5) i"""
    )
    mirrored = Mirrored(narrowed, tmp_path / "lake", spark)
    mirrored.catches_up("t")
    for settings, query, columns in (
        ({"where": "id > 2"}, "SELECT id, a, b::text FROM t WHERE id > 2", ("id", "a", "b")),
        ({"where": "b ? 'k1' OR a = '?'"}, "SELECT id, a, b::text FROM t WHERE b ? 'k1'", ("id", "a", "b")),
        ({"where": "id > 1", "mask": {"b": "null"}}, "SELECT id, a, NULL FROM t WHERE id > 1", ("id", "a", "b")),
        ({"mask": {"b": "null"}}, "SELECT id, a, NULL FROM t", ("id", "a", "b")),
        ({"columns": ["id", "a"]}, "SELECT id, a FROM t", ("id", "a")),
        ({"columns": ["id", "b"]}, "SELECT id, b::text FROM t", ("id", "b")),
        ({}, "SELECT id, a, b::text FROM t", ("id", "a", "b")),
    ):
        # FULL allows no list of columns, and a filter on columns outside of the key needs it.
        narrowed.execute(f"ALTER TABLE t REPLICA IDENTITY {'DEFAULT' if 'columns' in settings else 'FULL'}")
        mirrored.configure(tables={"public.t": settings})
        with mirrored.running():
            wait_until(lambda: _columns(mirrored.lake) == set(columns), PATIENCE, lambda: mirrored.table("t"))  # noqa: B023
            _becomes(mirrored, "t", columns, query)
            narrowed.execute("""INSERT INTO t SELECT max(id) + 1, 'a', '{"k1": 2}' FROM t""")
            _becomes(mirrored, "t", columns, query)


def test_a_column_or_table_with_a_mask_that_gets_another_name_is_withheld(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE one (id int PRIMARY KEY, email text); CREATE TABLE two (id int PRIMARY KEY, email text);"
        f"INSERT INTO one VALUES (1, '{SECRET}'); INSERT INTO two VALUES (1, '{SECRET}')"
    )
    masks = {"mask": {"email": "sha256"}}
    mirrored = Mirrored(database, tmp_path / "lake", spark, tables={"public.one": masks, "public.two": masks})
    with mirrored.running():
        mirrored.is_streaming("one", "two")
        database.execute(f"INSERT INTO one VALUES (2, '{SECRET}'); INSERT INTO two VALUES (2, '{SECRET}')")
        mirrored.slot_passes(mirrored.now())
        database.execute(f"ALTER TABLE one RENAME email TO mail; INSERT INTO one VALUES (3, '{SECRET}')")
        database.execute(f"ALTER TABLE two RENAME TO three; INSERT INTO three VALUES (3, '{SECRET}')")
        mirrored.fails("one")
        mirrored.fails("three")
        mirrored.slot_passes(mirrored.now())
        assert not _files_with(mirrored.lake, SECRET)
    assert not _files_with(mirrored.lake, SECRET)
    mirrored.configure(tables={"public.one": {"mask": {"mail": "sha256"}}, "public.two": masks})
    mirrored.resync("one")
    assert [table.name for table in mirrored.once().missed] == ["public.three"]
    assert not _files_with(mirrored.lake, SECRET)
    mirrored.configure(tables={"public.one": {"mask": {"mail": "sha256"}}, "public.three": masks})
    result = mirrored.once()
    assert not result.missed, result.missed
    assert _rows(mirrored.lake, "one", ("id", "mail")) == [(i, _sha(SECRET)) for i in (1, 2, 3)]
    assert _rows(mirrored.lake, "three", ("id", "email")) == [(i, _sha(SECRET)) for i in (1, 2, 3)]
    assert not _files_with(mirrored.lake, SECRET)


def test_settings_of_a_table_that_is_not_there_hold_up_no_other_table(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """A dropped one is no other; one that was renamed stops alone, and nothing of it gets out."""
    database.execute(
        "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, email text); " for name in ("t", "one", "two"))
        + f"INSERT INTO one VALUES (1, '{SECRET}'); INSERT INTO two VALUES (1, '{SECRET}')"
    )
    masks = {"mask": {"email": "sha256"}}
    mirrored = Mirrored(database, tmp_path / "lake", spark, tables={"public.one": masks, "public.two": masks})
    with mirrored.running():
        mirrored.is_streaming("t", "one", "two")
        database.execute("DROP TABLE one; ALTER TABLE two RENAME TO three; CREATE TABLE new (id int PRIMARY KEY)")
        mirrored.fails("three", "masks and filters of public.two")
        database.execute(f"UPDATE three SET email = '{SECRET}'; INSERT INTO t VALUES (1); INSERT INTO new VALUES (1)")
        mirrored.is_streaming("new")
        mirrored.follows("t", "new")
    database.execute("INSERT INTO t VALUES (2)")
    assert [table.name for table in mirrored.once().missed] == ["public.three"]
    mirrored.equal("t", "new")
    assert not _files_with(mirrored.lake, SECRET)


def test_a_masked_column_that_is_renamed_holds_up_no_other_table(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """The settings do not fit that table any more: it stops alone, and the others follow DDL."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, email text); CREATE TABLE one (id int PRIMARY KEY, email text);"
        f"INSERT INTO one VALUES (1, '{SECRET}')"
    )
    mirrored = Mirrored(database, tmp_path / "lake", spark, tables={"public.one": {"mask": {"email": "sha256"}}})
    with mirrored.running():
        mirrored.is_streaming("t", "one")
        database.execute("ALTER TABLE one RENAME email TO mail; CREATE TABLE new (id int PRIMARY KEY)")
        mirrored.fails("one", "has no column email")
        database.execute(f"UPDATE one SET mail = '{SECRET}'; ALTER TABLE t DROP email; INSERT INTO t VALUES (1)")
        database.execute("INSERT INTO new VALUES (1)")
        mirrored.is_streaming("new")
        mirrored.follows("t", "new")
        assert _columns(mirrored.lake) == {"id"}
    assert not _files_with(mirrored.lake, SECRET)
    mirrored.configure(tables={"public.one": {"mask": {"mail": "sha256"}}})
    result = mirrored.once()
    assert not result.missed, result.missed
    assert _rows(mirrored.lake, "one", ("id", "mail")) == [(1, _sha(SECRET))]
    assert not _files_with(mirrored.lake, SECRET)


def test_a_named_publication_is_used_unchanged(narrowed: Database, tmp_path: Path, spark: SparkSession) -> None:
    narrowed.execute(
        "CREATE TABLE part (id int PRIMARY KEY, a text, b text); CREATE TABLE whole (id int PRIMARY KEY);"
        "CREATE TABLE other (id int PRIMARY KEY, v text); CREATE TABLE outside (id int PRIMARY KEY);"
        f"INSERT INTO part SELECT i, 'a', '{SECRET}' FROM generate_series(1, 9) i; INSERT INTO whole VALUES (1);"
        f"INSERT INTO other VALUES (1, '{SECRET}'); INSERT INTO outside VALUES (1);"
        "CREATE PUBLICATION theirs FOR TABLE part (id, a) WHERE (id > 3), whole, other"
    )
    groups = [{"name": "default", "flush_interval": 0.1, "publication": "theirs", "exclude": ["public.other"]}]
    mirrored = Mirrored(narrowed, tmp_path / "lake", spark, groups=groups)
    before = narrowed.rows("SELECT * FROM pg_publication_rel ORDER BY oid")
    with mirrored.running():
        _becomes(mirrored, "part", ("id", "a"), "SELECT id, a FROM part WHERE id > 3")
        narrowed.execute(
            f"INSERT INTO other VALUES (2, '{SECRET}'); INSERT INTO outside VALUES (2); INSERT INTO whole VALUES (2);"
            f"INSERT INTO part VALUES (20, 'x', '{SECRET}'), (-1, 'y', ''); UPDATE part SET id = -4 WHERE id = 4;"
            "UPDATE part SET a = 'z' WHERE id IN (1, 5)"
        )
        _becomes(mirrored, "part", ("id", "a"), "SELECT id, a FROM part WHERE id > 3")
        mirrored.follows("whole")
        assert {table.name for table in Mirror(mirrored.config).tables()} == {"public.part", "public.whole"}
        assert narrowed.rows("SELECT * FROM pg_publication_rel ORDER BY oid") == before
        narrowed.execute("ALTER PUBLICATION theirs SET TABLE part WHERE (id > 1), whole, other")
        wait_until(
            lambda: "b" in read_lake(mirrored.lake, TableId("public", "part"))[0], PATIENCE, "the column is copied"
        )
        assert _rows(mirrored.lake, "part", ("id", "a", "b")) == _wanted(narrowed, "SELECT * FROM part WHERE id > 1")
    Mirror(mirrored.config).teardown()
    assert narrowed.rows("SELECT pubname FROM pg_publication") == [("theirs",)]


@pytest.mark.slow
def test_publications_of_all_tables_and_of_schemas_are_narrowed_by_names(
    narrowed: Database, tmp_path: Path, spark: SparkSession
) -> None:
    narrowed.execute(
        "CREATE SCHEMA sales; CREATE TABLE sales.orders (id int PRIMARY KEY); CREATE TABLE here (id int PRIMARY KEY);"
        "INSERT INTO sales.orders VALUES (1); INSERT INTO here VALUES (1);"
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10); INSERT INTO parts VALUES (1);"
        "CREATE PUBLICATION everything FOR ALL TABLES; CREATE PUBLICATION of_sales FOR TABLES IN SCHEMA sales"
    )
    for publication_name, tables, expected in (
        ("everything", ["sales.*", "public.p*"], ["sales.orders", "public.parts"]),
        ("of_sales", None, ["sales.orders"]),
    ):
        group = {"name": "default", "publication": publication_name, **({"tables": tables} if tables else {})}
        mirrored = Mirrored(narrowed, tmp_path / publication_name, spark, groups=[group])
        mirrored.catches_up(*expected)
        narrowed.execute(
            "INSERT INTO sales.orders SELECT max(id) + 1 FROM sales.orders; INSERT INTO here SELECT max(id) + 1 FROM "
            "here; INSERT INTO parts SELECT max(id) + 1 FROM parts"
        )
        mirrored.catches_up(*expected)
        assert {table.name for table in Mirror(mirrored.config).tables()} == set(expected)
        Mirror(mirrored.config).teardown()
    assert len(narrowed.rows("SELECT pubname FROM pg_publication")) == 2
    assert publication.publication_name("default") not in dict(narrowed.rows("SELECT pubname, 1 FROM pg_publication"))


@pytest.mark.parametrize("masked", [False, True])
def test_a_transaction_that_runs_is_not_kept_as_it_comes_where_there_is_a_mask(
    database: Database, tmp_path: Path, masked: bool
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    # So that a few rows are enough to be sent before their commit.
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    group = CapturedGroup(database, tmp_path)
    if masked:
        tables = {"public.t": TableConfig(mask={"v": "sha256"})}
        group.config = group.config.model_copy(update={"tables": tables})
    group.begin("public.t").close()
    group.start()
    try:
        running = database.connect(autocommit=False)
        running.execute(f"INSERT INTO t SELECT i, repeat('{SECRET}', 30) FROM generate_series(1, 20000) i".encode())
        database.execute("INSERT INTO t VALUES (0, 'other')")
        group.catch_up()
        assert bool(_files_with(tmp_path, SECRET)) is not masked
        running.commit()
        group.catch_up()
        assert bool(_files_with(tmp_path, SECRET)) is not masked
        values = {row["v"] for row in group.changes("public.t") if row["id"]}
        assert values == ({_sha(SECRET * 30)} if masked else {SECRET * 30})
    finally:
        group.stop()


def test_a_partition_by_masked_values_is_emptied_without_naming_them(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE parts (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);"
        f"CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('{SECRET}a');"
        f"CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('{SECRET}b');"
        f"INSERT INTO parts SELECT i, '{SECRET}' || CASE i % 2 WHEN 0 THEN 'a' ELSE 'b' END FROM generate_series(1, 9) i"
    )
    masks = {"public.parts": {"mask": {"region": "sha256"}}}
    mirrored = Mirrored(database, tmp_path / "lake", spark, tables=masks)
    wanted = "SELECT id, encode(sha256(convert_to(region, 'UTF8')), 'hex') FROM parts"
    with mirrored.running():
        _becomes(mirrored, "parts", ("id", "region"), wanted)
        database.execute(
            f"INSERT INTO parts VALUES (100, '{SECRET}a'); UPDATE parts SET region = '{SECRET}a' WHERE id = 1; "
            "DELETE FROM parts WHERE id = 3"
        )
        _becomes(mirrored, "parts", ("id", "region"), wanted)
        database.execute(f"TRUNCATE parts_a; INSERT INTO parts VALUES (200, '{SECRET}a')")
        _becomes(mirrored, "parts", ("id", "region"), wanted)
