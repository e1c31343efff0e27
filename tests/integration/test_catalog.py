"""Tables as the catalog describes them: keys by name, lake types, partitions, sizes, values that don't fit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers import Database
from wal2lake.config import SourceConfig, TableConfig
from wal2lake.errors import ConfigError
from wal2lake.schema import ReplicaIdentity, TableId, TableSchema
from wal2lake.source import Connection, connect
from wal2lake.source.copies import copy_plan
from wal2lake.source.publishing import slot
from wal2lake.source.tables import catalog, matching
from wal2lake.source.tables.catalog_table import GENERATED_PUBLISHED_SINCE


@pytest.fixture
def conn(database: Database) -> Iterator[Connection]:
    with connect(SourceConfig(dsn=database.dsn)) as conn:
        yield conn


def oid(database: Database, name: str) -> int:
    return int(database.value("SELECT %s::regclass::oid::int8", [name]))


def described(conn: Connection, database: Database, name: str, **types: str) -> TableSchema:
    overrides = {f"public.{name}": TableConfig.model_validate({"types": types})} if types else {}
    number = oid(database, name)
    return catalog.describe(conn, [number], overrides)[number]


def test_a_key_is_found_by_name_behind_dropped_columns_and_in_its_own_order(
    conn: Connection, database: Database
) -> None:
    database.execute("CREATE TABLE t (gone int, b int, a text, also_gone int, v text, PRIMARY KEY (a, b))")
    database.execute("ALTER TABLE t DROP COLUMN gone, DROP COLUMN also_gone")
    schema = described(conn, database, "t")
    assert (schema.names, schema.key) == (("b", "a", "v"), ("a", "b"))
    assert [column.nullable for column in schema.columns] == [False, False, True]


@pytest.mark.parametrize(
    ("identity", "key", "expected"),
    [
        ("DEFAULT", ("id",), ReplicaIdentity.DEFAULT),
        ("FULL", (), ReplicaIdentity.FULL),
        ("NOTHING", (), ReplicaIdentity.NOTHING),
        ("USING INDEX other", ("u", "w"), ReplicaIdentity.INDEX),
    ],
)
def test_the_replica_identity_decides_the_key(
    conn: Connection, database: Database, identity: str, key: tuple[str, ...], expected: ReplicaIdentity
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, u int NOT NULL, w int NOT NULL, x int)")
    database.execute("CREATE UNIQUE INDEX other ON t (u, w) INCLUDE (x)")
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    schema = described(conn, database, "t")
    assert (schema.key, schema.identity) == (key, expected)


def test_a_deferrable_key_is_none(conn: Connection, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)")
    schema = described(conn, database, "t")
    assert (schema.key, schema.catalog_key, schema.insert_only) == ((), (), True)


def test_a_partitioned_table_without_a_key_has_that_of_its_leaves_if_it_has_the_partition_columns(
    conn: Connection, database: Database
) -> None:
    database.execute("CREATE TABLE t (a int NOT NULL, b int NOT NULL, id int NOT NULL) PARTITION BY LIST (a)")
    database.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1) PARTITION BY RANGE (b)")
    database.execute("CREATE TABLE t1a PARTITION OF t1 (PRIMARY KEY (id, b)) FOR VALUES FROM (0) TO (10)")
    assert described(conn, database, "t").key == ()
    assert catalog.misleading_leaves(conn, [oid(database, "t")]) == {oid(database, "t"): [TableId("public", "t1a")]}
    database.execute("ALTER TABLE t1a DROP CONSTRAINT t1a_pkey, ADD PRIMARY KEY (id, b, a)")
    assert described(conn, database, "t").key == ("id", "b", "a")
    assert catalog.misleading_leaves(conn, [oid(database, "t")]) == {}
    database.execute("CREATE TABLE e (a int PRIMARY KEY) PARTITION BY HASH (a)")
    database.execute("CREATE TABLE f (a int NOT NULL) PARTITION BY LIST ((a % 2))")
    database.execute("CREATE TABLE f1 PARTITION OF f (PRIMARY KEY (a)) FOR VALUES IN (1)")
    assert (described(conn, database, "e").key, described(conn, database, "f").key) == (("a",), ())


def test_a_table_without_a_key_has_none(conn: Connection, database: Database) -> None:
    database.execute("CREATE TABLE t (id int, u int UNIQUE)")
    schema = described(conn, database, "t")
    assert schema.key == () and schema.insert_only


def test_types_of_domains_and_arrays_are_resolved(conn: Connection, database: Database) -> None:
    database.execute(
        "CREATE DOMAIN price AS numeric(10,2); CREATE DOMAIN prices AS price[]; CREATE TYPE mood AS ENUM ('a')"
    )
    database.execute(
        "CREATE TABLE t (a price, b prices, c price[], d int[], e int[][], f mood, g mood[], h int2vector, i numeric)"
    )
    schema = described(conn, database, "t")
    assert {column.name: str(column.lake) for column in schema.columns} == {
        "a": "decimal(10,2)", "b": "list<decimal(10,2)>", "c": "list<decimal(10,2)>", "d": "list<int>", "e": "string",
        "f": "string", "g": "list<string>", "h": "string", "i": "string",
    }  # fmt: skip


def test_overrides_are_used_and_judged(conn: Connection, database: Database) -> None:
    database.execute("CREATE TABLE t (n numeric, i int)")
    schema = described(conn, database, "t", n="decimal(20,4)", i="string")
    assert [str(column.lake) for column in schema.columns] == ["decimal(20,4)", "string"]
    with pytest.raises(ConfigError, match="can't carry"):
        described(conn, database, "t", i="decimal(20,4)")
    with pytest.raises(ConfigError, match="no such column"):
        described(conn, database, "t", x="string")


def test_generated_columns_are_in_the_schema_where_the_server_publishes_them(
    conn: Connection, database: Database
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id * 2) STORED)")
    published = conn.info.server_version >= GENERATED_PUBLISHED_SINCE
    if published:
        database.execute("ALTER TABLE t ADD v int GENERATED ALWAYS AS (id * 3) VIRTUAL")
    assert described(conn, database, "t").names == (("id", "s") if published else ("id",))


def test_a_partitioned_table_takes_its_leaves_identity(conn: Connection, database: Database) -> None:
    database.execute("CREATE TABLE t (id int, u int NOT NULL, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10) PARTITION BY LIST (id)")
    database.execute("CREATE TABLE t1a PARTITION OF t1 FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t DEFAULT")
    schema = described(conn, database, "t")
    assert (schema.partitioned, schema.key, schema.identity) == (True, ("id",), ReplicaIdentity.DEFAULT)
    root = oid(database, "t")
    assert [leaf.id.name for leaf in catalog.leaves(conn, [root])[root]] == ["t1a", "t2"]
    assert catalog.tables(conn, [oid(database, "t1a")])[oid(database, "t1a")].root == root
    bounds, levels = catalog.partition_bounds(conn, oid(database, "t1a"))
    assert levels == catalog.leaves(conn, [root])[root][0].levels
    assert bounds is not None and "id = 1" in bounds.text and bounds.columns == (("id", 1),)
    database.execute("ALTER TABLE t1a REPLICA IDENTITY FULL")
    assert described(conn, database, "t").identity is ReplicaIdentity.DEFAULT
    database.execute("ALTER TABLE t2 REPLICA IDENTITY FULL")
    schema = described(conn, database, "t")
    assert (schema.key, schema.identity) == (("id",), ReplicaIdentity.FULL)


def test_a_table_that_is_gone_is_left_out(conn: Connection) -> None:
    assert catalog.describe(conn, [4_000_000_000]) == {}


def test_matching_reads_the_real_catalog(conn: Connection, database: Database) -> None:
    database.execute(
        'CREATE TABLE "A table" (id int); CREATE UNLOGGED TABLE u (id int); CREATE VIEW v AS SELECT 1 AS x'
    )
    database.execute("CREATE SCHEMA wal2lake; CREATE TABLE wal2lake.ours (id int)")
    database.execute("CREATE TABLE p (id int) PARTITION BY LIST (id); CREATE TABLE p1 PARTITION OF p DEFAULT")
    matched = matching.match(conn, "g", ["*.*"])
    assert [(str(t.id), t.partitioned) for t in matched.tables] == [('public."A table"', False), ("public.p", True)]
    assert {skipped.id.name for skipped in matched.skipped} == {"u", "v", "p1"}


def test_copy_source_has_sizes_without_statistics_and_keeps_children_out(conn: Connection, database: Database) -> None:
    database.execute('CREATE TABLE t (id int PRIMARY KEY, "q""`" text); CREATE TABLE child () INHERITS (t)')
    database.execute(
        "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 100) i; INSERT INTO child VALUES (1)"
    )
    source = SourceConfig(dsn=database.dsn)
    empty = copy_plan.copy_source(conn, source, described(conn, database, "child"))
    copied = copy_plan.copy_source(conn, source, described(conn, database, "t"))
    assert copied.heaps[0].sql_name == 'ONLY "public"."t"' and copied.heaps[0].pages > 10
    assert copied.heaps[0].average_row_bytes >= 1 and empty.heaps[0].pages == 1
    assert copied.copy_columns[1].sql == '"q""`"' and copied.copy_columns[1].spark == '`q"```'
    database.execute("ANALYZE t")
    assert 500 < copy_plan.copy_source(conn, source, described(conn, database, "t")).heaps[0].average_row_bytes < 5000
    assert "password" not in repr(copied)


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("numeric(5,2)", "'NaN'", "NaN"),
        ("date", "'infinity'", "infinity"),
        ("timestamp", "'0044-03-15 BC'", "outside the years"),
        ("timestamptz", "'10000-01-01 00:00+00'", "outside the years"),
        ("int[]", "'{{1},{2}}'", "more than one dimension"),
        ("date[]", "'{2024-01-01,-infinity}'", "infinity"),
    ],
)
def test_a_value_that_does_not_fit_is_found_with_its_key(
    conn: Connection, database: Database, column: str, value: str, what: str
) -> None:
    database.execute(f'CREATE TABLE t (a int, "B" text, v {column}, PRIMARY KEY (a, "B"))')
    database.execute("INSERT INTO t SELECT i, 'x', NULL FROM generate_series(1, 50) i")
    schema = described(conn, database, "t")
    assert copy_plan.find_unfit(conn, schema) is None
    with slot.create(SourceConfig(dsn=database.dsn), "wal2lake_unfit", "g", temporary=True) as held:
        database.execute(f"INSERT INTO t VALUES (77, 'k', {value})")
        assert copy_plan.find_unfit(conn, schema, held.snapshot.name) is None
    error = copy_plan.find_unfit(conn, schema)
    assert error is not None and (error.fields["column"], error.fields["key"]) == ("v", "a=77, B=k")
    assert what in str(error) and "string" in error.remedy
