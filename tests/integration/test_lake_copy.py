"""The initial copy: every range sees the exported instant, tables appear whole, nothing of anybody else is touched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import ConfigFactory
from lake_history import Snapshot, copied, copy_source, describe, read_lake, source_id
from oracle import assert_equal_tables, table_directory
from servers import Database
from wal2lake.errors import CopyFailed, ForeignTable, TableError
from wal2lake.lake import Lake
from wal2lake.lake.copying import initial_copy as copying
from wal2lake.schema import TableId
from wal2lake.types import LakeType, copy_column

ODD_NAMES = [
    TableId("public", "Capital Table"),
    TableId("My Schema", 'quo"te`tick'),
    TableId("dotted.schema", "a.b.c"),
    TableId("public", "slash/back\\percent%25#hash?query"),
    TableId("größe", "日本語"),
    TableId("select", "table"),
    TableId("_wal2lake", "copies"),
    TableId("catalog.db", "x"),
    TableId("public", "..."),
]


@pytest.fixture
def path(config: ConfigFactory) -> Path:
    return Path(config().lake.path)


def quote(table: TableId) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in (table.schema, table.name))


def test_copy_holds_the_rows_and_the_position(lake: Lake, database: Database, path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 1000) i"
    )
    seen: list[int] = []
    applied = copied(lake, database, "t", manifest=7, progress=seen.append)
    assert (applied.rows, applied.manifest, applied.changes) == (1000, 7, 0)
    assert seen[-1] == 1000
    assert applied.schema == describe(database, TableId("public", "t"))
    assert lake.applied(TableId("public", "t"), source_id(applied.schema)) == applied
    assert_equal_tables(database, path, ["t"])


@pytest.mark.parametrize(("type_name", "oid"), [("timestamp", 1114), ("timestamptz", 1184)])
def test_each_microsecond_travels_as_itself(database: Database, type_name: str, oid: int) -> None:
    lake_type = LakeType.parse(type_name)
    sql = copy_column("v", "`v`", oid, -1, 0, {}, lake_type).sql
    # Both sides of where the quick way begins and ends, and where a double is coarsest, with every kind of fraction.
    database.execute(f"""
        CREATE TABLE t AS
        SELECT at::{type_name} + n * interval '1 microsecond' AS v FROM unnest(ARRAY[
            '0001-01-01 00:00:00.1', '1582-10-10', '1899-12-31 23:59:59.995', '1900-01-01', '1969-12-31 23:59:59.995',
            '2024-02-29 12:34:56', '2040-12-31 23:59:59.995', '2041-01-01', '2262-04-11 23:47:16.85', '9999-12-31'
        ]) AS at, generate_series(0, 10000) AS n
        UNION ALL
        SELECT at::{type_name} + n * interval '15001.000007 seconds' FROM unnest(ARRAY['1900-01-01', '2030-01-01']) AS at,
            generate_series(0, 20000) AS n
    """)
    exact = "(extract(epoch FROM v) * 1000000)::int8"
    assert database.value(f"SELECT count(*) FROM t WHERE ({sql}) IS DISTINCT FROM {exact}") == 0


def test_text_of_json_and_uuid_is_postgresqls_own_also_in_a_domain(lake: Lake, database: Database, path: Path) -> None:
    database.execute("""
        CREATE DOMAIN tag AS uuid;
        CREATE DOMAIN settings AS jsonb;
        CREATE TABLE t (id int PRIMARY KEY, a json, b jsonb, c uuid, d tag, e settings);
        INSERT INTO t VALUES
            (1, '{"b" : 1,  "a": [1.10, "\\u00e4"]}', '{"b" : 1,  "a": [1.10, "\\u00e4"]}',
             'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'a0eebc999c0b4ef8bb6d6bb9bd380a12', '{}'),
            (2, 'null', 'null', NULL, NULL, 'null'), (3, NULL, NULL, NULL, NULL, NULL)
    """)
    copied(lake, database, "t")
    assert_equal_tables(database, path, ["t"])


def test_rows_committed_after_the_snapshot_are_in_no_range(
    lake: Lake, database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MOST_PAGES_PER_RANGE", 1)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 500) i"
    )
    schema = describe(database, TableId("public", "t"))
    with Snapshot(database) as snapshot:
        database.execute(
            "INSERT INTO t SELECT i, 'late' FROM generate_series(501, 900) i; DELETE FROM t WHERE id < 100"
        )
        source = copy_source(database, schema)
        assert sum(len(copying.ranges(heap.pages, 1)) for heap in source.heaps) > 5
        lake.copy(source, snapshot, source_id(schema), 0, lambda rows: None)
    assert sorted(row["id"] for row in read_lake(path, schema.id)) == list(range(1, 501))


def test_empty_table_that_is_filled_after_the_snapshot_is_empty_in_the_lake(
    lake: Lake, database: Database, path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    schema = describe(database, TableId("public", "t"))
    with Snapshot(database) as snapshot:
        database.execute("INSERT INTO t VALUES (1, 'late')")
        applied = lake.copy(copy_source(database, schema), snapshot, source_id(schema), 3, lambda rows: None)
    assert (applied.lsn, applied.manifest, applied.rows) == (snapshot.lsn, 3, 0)
    assert lake.applied(schema.id, source_id(schema)) == applied
    assert read_lake(path, schema.id) == []


def test_partitioned_table_is_copied_from_its_leaves(lake: Lake, database: Database, path: Path) -> None:
    database.execute("""
        CREATE TABLE p (id int, d date, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
        CREATE TABLE p2 PARTITION OF p DEFAULT;
        INSERT INTO p SELECT i, '2023-06-01'::date + i FROM generate_series(1, 900) i;
        CREATE TABLE nothing (id int PRIMARY KEY) PARTITION BY LIST (id)""")
    assert copied(lake, database, "p").rows == 900
    assert copied(lake, database, "nothing").rows == 0
    assert_equal_tables(database, path, ["p", "nothing"])


def test_values_of_each_type_arrive_exactly(lake: Lake, database: Database, path: Path) -> None:
    database.execute(r"""
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        CREATE TABLE v (id int PRIMARY KEY, b boolean, s smallint, l bigint, f real, d float8, n numeric(38,10), u numeric,
            t text, vc varchar(3), c char(4), e mood, uu uuid, i inet, j jsonb, by bytea, da date, ti time, ts timestamp,
            tz timestamptz, iv interval, ia int[], ta text[], fa float8[], ba bytea[], na numeric(10,2)[], tza timestamptz[]);
        INSERT INTO v VALUES
        (1, true, -32768, 9223372036854775807, 'NaN', '-0', 1234567890123456789012345678.0123456789, 1e50, E'a\n\t\\N', '😀é', 'ab',
         'ok', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.0.0.1/8', '{"a": "\u20ac"}', '\x00ff27', '0001-01-01', '12:34:56.789',
         '9999-12-31 23:59:59.999999', '0001-01-01 00:00:00+00', '1 mon -3 days', '{1,NULL,3}', '{"a,b","c\"d",NULL,"","NULL"}',
         '{NaN,-0,Infinity,1e308}', '{"\\x00ff",NULL}', '{1.50,NULL}', '{2024-01-01 00:00:00.000001+02}'),
        (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '', '', '', NULL, NULL, NULL, NULL, '', NULL, NULL, NULL, NULL, NULL,
         '{}', '{}', NULL, '{}', NULL, NULL),
        (3, false, 0, 0, '-Infinity', 1e-300, -0.0000000001, -0.00, repeat('x', 10000000), NULL, NULL, 'sad', NULL, NULL, 'null',
         decode(repeat('00ff', 5000000), 'hex'), '9999-12-31', '24:00', '0001-01-01', '9999-12-31 23:59:59.999999+00', '0', NULL, NULL,
         '{}', NULL, '{}', '{}')""")
    database.execute(f"ALTER DATABASE {database.name} SET TimeZone = 'Europe/Berlin'")
    database.execute(f"ALTER DATABASE {database.name} SET DateStyle = 'German'")
    assert copied(lake, database, "v").rows == 3
    assert_equal_tables(database, path, ["v"])


@pytest.mark.parametrize("table", ODD_NAMES, ids=str)
def test_odd_names_are_read_without_spark(lake: Lake, database: Database, path: Path, table: TableId) -> None:
    schema = '"' + table.schema + '"'
    database.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    database.execute(
        f"""CREATE TABLE {quote(table)} ("Id" int PRIMARY KEY, "id" int, "a b.c`d""e" text, "_op" text, "größe" int, "select" int)"""
    )
    database.execute(f"INSERT INTO {quote(table)} VALUES (1, 2, 'x', 'y', 3, 4)")
    copied(lake, database, table)
    assert_equal_tables(database, path, [(table.schema, table.name)])


def test_resync_replaces_rows_columns_and_position_in_one_commit(lake: Lake, database: Database, path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    first = copied(lake, database, "t", manifest=4)
    database.execute("INSERT INTO t VALUES (2, 'b'); ALTER TABLE t ADD w int; ALTER TABLE t DROP v")
    second = copied(lake, database, "t", manifest=9)
    assert second.manifest == 9
    assert second.lsn > first.lsn
    assert second.schema.names == ("id", "w")
    assert lake.applied(second.schema.id, source_id(second.schema)) == second
    assert_equal_tables(database, path, ["t"])


def test_table_of_another_source_is_never_overwritten(lake: Lake, database: Database, path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    schema = copied(lake, database, "t").schema
    with pytest.raises(ForeignTable):
        lake.applied(schema.id, "another/1/2")
    with Snapshot(database) as snapshot, pytest.raises(ForeignTable):
        lake.copy(copy_source(database, schema), snapshot, "another/1/2", 0, lambda rows: None)
    assert len(read_lake(path, schema.id)) == 1


def test_a_directory_of_the_tables_name_is_never_written_to(lake: Lake, database: Database, path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    theirs = path / "public" / "t" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    copied(lake, database, "t")
    assert_equal_tables(database, path, ["t"])
    lake.drop(TableId("public", "t"))
    assert [file for file in (path / "public").rglob("*") if file.is_file()] == [theirs]


def test_a_drop_that_was_cut_off_is_finished_by_the_next(
    lake: Lake, database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    schema = copied(lake, database, "t").schema
    place = table_directory(path, "t")

    def cut_off(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", cut_off)
        lake.drop(schema.id, source_id(schema))
    (place / "data" / "left.parquet").write_bytes(b"not reached before the end")
    lake.drop(schema.id, source_id(schema))
    assert not place.exists()
    assert not list((path / "_wal2lake" / "copies").iterdir())


def test_missing_table_has_no_position(lake: Lake) -> None:
    assert lake.applied(TableId("public", "never"), "x/1/1") is None


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("timestamp", "infinity"), ("date", "0044-03-15 BC"), ("numeric(10,2)", "NaN"), ("int[]", "{{1},{2}}"),
        ("timestamptz[]", "{infinity}"), ("timestamptz", "-infinity"), ("numeric(5,1)[]", "{NaN}"),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_fails_the_copy_and_leaves_nothing(
    lake: Lake, database: Database, path: Path, type: str, value: str
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {type}); INSERT INTO t VALUES (1, NULL)")
    database.execute(f"INSERT INTO t VALUES (2, '{value}')")
    with pytest.raises(CopyFailed) as failed:
        copied(lake, database, "t")
    assert failed.value.fields["unfit"] is True
    assert value not in str(failed.value)
    assert not [file for file in (path / "public").rglob("*") if file.is_file()]
    assert lake.applied(TableId("public", "t"), "x/1/1") is None
    database.execute("DELETE FROM t WHERE id = 2")
    assert copied(lake, database, "t").rows == 1


def test_copy_on_a_snapshot_that_is_gone_fails_and_can_be_repeated(lake: Lake, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    schema = describe(database, TableId("public", "t"))
    with Snapshot(database) as snapshot:
        pass
    with pytest.raises(CopyFailed) as failed:
        lake.copy(copy_source(database, schema), snapshot, source_id(schema), 0, lambda rows: None)
    assert failed.value.fields["unfit"] is False
    assert "snapshot" in str(failed.value)
    assert copied(lake, database, "t").rows == 1


def test_column_name_that_iceberg_keeps_for_itself_is_refused(lake: Lake, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, _pos int)")
    with pytest.raises(TableError, match="_pos"):
        copied(lake, database, "t")


def test_dropped_table_leaves_no_file_and_can_be_copied_again(lake: Lake, database: Database, path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    copied(lake, database, "t")
    place = table_directory(path, "t")
    lake.drop(TableId("public", "t"))
    lake.drop(TableId("public", "t"))
    assert not place.exists()
    assert lake.applied(TableId("public", "t"), "x/1/1") is None
    assert copied(lake, database, "t").rows == 1


def test_user_properties_stand_above_ours(config: ConfigFactory, spark: Any, database: Database) -> None:
    settings = config(lake={"properties": {"format-version": "2"}})
    lake = Lake(settings, spark)
    lake.start()
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    copied(lake, database, "t")
    metadata = max((table_directory(Path(settings.lake.path), "t") / "metadata").glob("*.metadata.json"))
    assert '"format-version":2' in metadata.read_text()
