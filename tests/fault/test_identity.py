"""Rows are identified only by keys that were valid when the rows were written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored, missed
from pyiceberg.catalog.sql import SqlCatalog

from capture_modes import not_by_triggers
from servers import Database, fresh_database
from waiting import wait_until
from wal2lake.demo.server import EmbeddedServer
from wal2lake.preflight.collect import check
from wal2lake.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Case:
    """A table before its copy, and what happens to it while nothing runs. `{t}` is its name."""

    made: str
    then: str


FULL = "ALTER TABLE {t} REPLICA IDENTITY FULL;"
DUPLICATES = (
    "CREATE TABLE {t} (id int NOT NULL, v text);" + FULL + "INSERT INTO {t} VALUES (1, 'a'), (1, 'b'), (2, 'c')"
)
TENANTS = (
    "CREATE TABLE {t} (tenant int NOT NULL, id int NOT NULL, v text) PARTITION BY LIST (tenant);"
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES IN (1); CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES IN (2);"
)
TWO_ROWS = "INSERT INTO {t} VALUES (1, 7, 'one'), (2, 7, 'two'), (2, 8, 'three');"
CHANGED_TENANTS = (
    "UPDATE {t} SET v = 'changed' WHERE tenant = 1; DELETE FROM {t} WHERE id = 8; "
    "INSERT INTO {t} VALUES (1, 8, 'new'); UPDATE {t} SET tenant = 2, id = 9 WHERE id = 8"
)
FULL_LEAVES = "ALTER TABLE {t}_1 REPLICA IDENTITY FULL; ALTER TABLE {t}_2 REPLICA IDENTITY FULL;"
ROOT_KEY = "ALTER TABLE {t} ADD CONSTRAINT {t}_key PRIMARY KEY (tenant, id);"
DROP_KEY = "ALTER TABLE {t} DROP CONSTRAINT {t}_key;"
CASES = {
    "deferrable_shift": Case(
        "CREATE TABLE {t} (id int PRIMARY KEY DEFERRABLE, v text);" + FULL
        + "INSERT INTO {t} SELECT i, 'v' || i FROM generate_series(1, 5) i",
        "UPDATE {t} SET id = id + 1",
    ),
    "deferrable_swap": Case(
        "CREATE TABLE {t} (id int, pos int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text);" + FULL
        + "INSERT INTO {t} VALUES (1, 1, 'a'), (2, 2, 'b')",
        "UPDATE {t} SET pos = 3 - pos; UPDATE {t} SET v = 'c' WHERE pos = 1",
    ),
    "deferrable_unique": Case(
        "CREATE TABLE {t} (id int PRIMARY KEY, pos int NOT NULL UNIQUE DEFERRABLE);"
        "INSERT INTO {t} SELECT i, i FROM generate_series(1, 5) i",
        "UPDATE {t} SET pos = pos + 1; DELETE FROM {t} WHERE pos = 3",
    ),
    "key_after_duplicates": Case(
        DUPLICATES, "DELETE FROM {t} WHERE v = 'b'; ALTER TABLE {t} ADD PRIMARY KEY (id)"
    ),
    "key_after_duplicates_at_once": Case(
        DUPLICATES,
        "BEGIN; DELETE FROM {t} WHERE v = 'b'; ALTER TABLE {t} ADD PRIMARY KEY (id); "
        "UPDATE {t} SET v = 'd' WHERE id = 1; COMMIT",
    ),
    "key_and_default_identity": Case(
        DUPLICATES,
        "BEGIN; DELETE FROM {t} WHERE v = 'b'; ALTER TABLE {t} ADD PRIMARY KEY (id); "
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT; UPDATE {t} SET v = 'd' WHERE id = 1; COMMIT; "
        "UPDATE {t} SET v = 'e' WHERE id = 2",
    ),
    "key_gone_for_a_while": Case(
        "CREATE TABLE {t} (id int CONSTRAINT {t}_key PRIMARY KEY, v text);" + FULL + "INSERT INTO {t} VALUES (1, 'a')",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_key; INSERT INTO {t} VALUES (1, 'b'), (1, 'b'), (1, 'c'); "
        "UPDATE {t} SET v = 'd' WHERE v = 'c'; DELETE FROM {t} WHERE v <> 'd'; ALTER TABLE {t} ADD PRIMARY KEY (id)",
    ),
    "identity_switched": Case(
        "CREATE TABLE {t} (id int PRIMARY KEY, code int NOT NULL, v text);"
        "CREATE UNIQUE INDEX {t}_code ON {t} (code); INSERT INTO {t} SELECT i, i, 'v' FROM generate_series(1, 9) i",
        "UPDATE {t} SET v = 'a' WHERE id = 1;" + FULL + "UPDATE {t} SET id = 20, v = 'b' WHERE id = 2; "
        "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code; UPDATE {t} SET id = 21, v = 'c' WHERE code = 3; "
        "DELETE FROM {t} WHERE code = 4; ALTER TABLE {t} REPLICA IDENTITY NOTHING; INSERT INTO {t} VALUES (4, 4, 'd'); "
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT; UPDATE {t} SET code = 22 WHERE id = 21; DELETE FROM {t} WHERE id = 1",
    ),
    "full_rows_with_large_values": Case(
        "CREATE TABLE {t} (id int PRIMARY KEY, big text, f float8, n int);" + FULL
        + "INSERT INTO {t} SELECT i, (SELECT string_agg(md5(i::text || k), '') FROM generate_series(1, 200) k), "
        "(ARRAY['NaN', '-0', '0', '0.1'])[i]::float8, 1 FROM generate_series(1, 4) i",
        "UPDATE {t} SET n = 2; UPDATE {t} SET id = id + 10 WHERE id < 3; DELETE FROM {t} WHERE id = 3",
    ),
    "full_partitions_without_keys": Case(
        TENANTS + FULL_LEAVES + TWO_ROWS, CHANGED_TENANTS,
    ),
    "full_partitions_with_keys_of_their_own": Case(
        TENANTS + FULL_LEAVES + "ALTER TABLE {t}_1 ADD PRIMARY KEY (id); ALTER TABLE {t}_2 ADD PRIMARY KEY (id);"
        + TWO_ROWS, CHANGED_TENANTS,
    ),
    "partitions_with_whole_keys": Case(
        TENANTS + "ALTER TABLE {t}_1 ADD PRIMARY KEY (tenant, id); ALTER TABLE {t}_2 ADD PRIMARY KEY (id, tenant);"
        + TWO_ROWS, CHANGED_TENANTS,
    ),
    "root_key_with_mixed_identities": Case(
        TENANTS + ROOT_KEY + "ALTER TABLE {t}_1 REPLICA IDENTITY FULL;" + TWO_ROWS, CHANGED_TENANTS,
    ),
    "root_key_gone_for_a_while": Case(
        TENANTS + ROOT_KEY + FULL_LEAVES + TWO_ROWS,
        DROP_KEY + "INSERT INTO {t} VALUES (1, 7, 'again'), (1, 7, 'again'); DELETE FROM {t} WHERE v = 'again';"
        + ROOT_KEY + "UPDATE {t} SET v = 'x' WHERE tenant = 2",
    ),
    "root_key_from_now_on": Case(
        TENANTS + FULL_LEAVES + "INSERT INTO {t} VALUES (1, 7, 'a'), (1, 7, 'b'), (2, 7, 'c');",
        "DELETE FROM {t} WHERE v = 'b';" + ROOT_KEY + "ALTER TABLE {t}_2 REPLICA IDENTITY DEFAULT; UPDATE {t} SET v = 'd'",
    ),
    "two_levels_of_partitions": Case(
        "CREATE TABLE {t} (a int NOT NULL, b int NOT NULL, id int NOT NULL, v text) PARTITION BY LIST (a);"
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES IN (1) PARTITION BY LIST (b);"
        "CREATE TABLE {t}_11 PARTITION OF {t}_1 (PRIMARY KEY (a, b, id)) FOR VALUES IN (1);"
        "CREATE TABLE {t}_12 PARTITION OF {t}_1 (PRIMARY KEY (b, a, id)) FOR VALUES IN (2);"
        "INSERT INTO {t} VALUES (1, 1, 7, 'one'), (1, 2, 7, 'two')",
        "UPDATE {t} SET v = 'x' WHERE b = 1; DELETE FROM {t} WHERE b = 2",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def mirror(server: EmbeddedServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """All cases at once: copied, changed while nothing runs, and followed."""
    with fresh_database(server) as database:
        mirror = Mirrored(database, tmp_path_factory.mktemp("identity") / "lake", spark)
        for name, case in CASES.items():
            run(database, case.made, name)
        mirror.catches_up(*CASES)
        for name, case in CASES.items():
            run(database, case.then, name)
        mirror.once()
        yield mirror


def run(database: Database, statements: str, table: str) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            database.execute(statement.replace("{t}", table))


@pytest.mark.parametrize("table", CASES)
def test_rows_are_identified_by_the_key_at_the_time_of_the_write(mirror: Mirrored, table: str) -> None:
    state = mirror.table(table)
    assert state is not None and state.state == "STREAMING", state
    mirror.equal(table)


@not_by_triggers
def test_an_update_of_a_whole_row_counts_as_one_change(mirror: Mirrored) -> None:
    counts = {name: state.changes_applied for name in CASES if (state := mirror.table(name)) is not None}
    assert counts["deferrable_shift"] == counts["deferrable_unique"] - 1 == 5
    assert counts["deferrable_swap"] == 3


def test_partitions_whose_keys_mislead_are_refused_until_old_rows_are_sent_whole(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    mirror = Mirrored(database, tmp_path / "lake", spark)
    keys = "ALTER TABLE {t}_1 ADD PRIMARY KEY (id); ALTER TABLE {t}_2 ADD PRIMARY KEY (id);"
    run(database, TENANTS + keys + TWO_ROWS, "tenants")
    table = missed(mirror.once())["tenants"]
    assert table.error is not None and "tenants_1" in table.error
    blocking = [finding for finding in check(mirror.config) if finding.blocks]
    assert [(finding.object, finding.fix) for finding in blocking] == [("public.tenants", table.remedy)]
    database.execute(str(table.remedy))
    mirror.catches_up("tenants")
    run(database, CHANGED_TENANTS, "tenants")
    mirror.catches_up("tenants")


@not_by_triggers
def test_a_key_that_was_seen_in_the_catalog_is_not_applied_to_rows_without_it(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    mirror = Mirrored(database, tmp_path / "lake", spark)
    run(database, DUPLICATES, "t")
    with mirror.running():
        mirror.is_streaming("t")
        run(database, "DELETE FROM {t} WHERE v = 'b'", "t")
        mirror.follows("t")
        database.execute("ALTER TABLE t ADD CONSTRAINT t_key PRIMARY KEY (id), REPLICA IDENTITY DEFAULT")
        wait_until(lambda: lake_key(mirror) == ("id",), 60, "the lake table has followed the catalog")
        with database.connect() as connection:
            # In one transaction, so that no look comes between.
            connection.execute("ALTER TABLE t DROP CONSTRAINT t_key, REPLICA IDENTITY FULL")
            connection.execute("INSERT INTO t VALUES (1, 'x'), (1, 'y')")
            connection.execute("DELETE FROM t WHERE v = 'y'")
        mirror.follows("t")


def test_rows_of_many_columns_are_matched_whole(database: Database, spark: SparkSession, tmp_path: Path) -> None:
    types = ("int", "text", "date", "bytea", "boolean", "numeric(8,2)", "text[]")
    columns = ", ".join(f"c{i} {types[i % len(types)]}" for i in range(28))
    database.execute(f"CREATE TABLE t (id int, f real, {columns})")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("INSERT INTO t (id, c0, c1) SELECT i, i, i FROM generate_series(1, 50) i")
    mirror = Mirrored(database, tmp_path / "lake", spark)
    mirror.catches_up("t")
    database.execute("UPDATE t SET c1 = 'x' WHERE id < 5")
    database.execute("DELETE FROM t WHERE id = 9")
    database.execute("INSERT INTO t (id) VALUES (3), (3)")
    mirror.catches_up("t")
    database.execute("UPDATE t SET f = 1.5 WHERE id = 3")
    mirror.catches_up("t")


def lake_key(mirror: Mirrored) -> tuple[str, ...]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{mirror.lake / 'catalog.db'}", warehouse=str(mirror.lake))
    try:
        schema = catalog.load_table(("public", "t")).properties["wal2lake.schema"]
        return TableSchema.from_json(json.loads(schema)).key
    finally:
        catalog.engine.dispose()
