"""DDL at the source: the lake tables follow without a restart, at its place among the changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import PATIENCE, Mirrored, logged_errors, missed

from capture_modes import not_by_triggers
from lake_history import read_lake
from remedies import heals
from servers import Database, fresh_database
from wal2lake.demo.server import EmbeddedServer
from wal2lake.schema import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIG = "(SELECT string_agg(md5(i::text || k), '') FROM generate_series(1, 200) k)"
"""a value that PostgreSQL keeps out of line, and leaves out of updates that don't touch it"""
OUT_OF_LINE = ("add_default", "drop_out_of_line", "swap", "key_to_bigint", "other_key", "several")
"""kinds whose tables have such values"""

DDL = {
    "add": "ALTER TABLE {t} ADD COLUMN extra text",
    "add_default": "ALTER TABLE {t} ADD COLUMN extra numeric(8,2) DEFAULT 1.50 NOT NULL",
    "add_list_default": "ALTER TABLE {t} ADD COLUMN extra text[] DEFAULT '{{}}'",
    "add_volatile": "ALTER TABLE {t} ADD COLUMN extra double precision DEFAULT random()",
    "add_generated": "ALTER TABLE {t} ADD COLUMN extra int GENERATED ALWAYS AS (id * 2) STORED",
    "drop": "ALTER TABLE {t} DROP COLUMN n",
    "drop_out_of_line": "ALTER TABLE {t} DROP COLUMN big",
    "rename": "ALTER TABLE {t} RENAME COLUMN n TO number",
    "swap": "ALTER TABLE {t} RENAME n TO tmp; ALTER TABLE {t} RENAME v TO n; ALTER TABLE {t} RENAME tmp TO v",
    "drop_and_add": "ALTER TABLE {t} DROP COLUMN n, ADD COLUMN n int DEFAULT 7",
    "int_to_bigint": "ALTER TABLE {t} ALTER n TYPE bigint",
    "key_to_bigint": "ALTER TABLE {t} ALTER id TYPE bigint",
    "float_to_double": "ALTER TABLE {t} ALTER f TYPE double precision",
    "longer_decimal": "ALTER TABLE {t} ALTER d TYPE numeric(14,2)",
    "varchar_to_text": "ALTER TABLE {t} ALTER v TYPE text",
    "longer_varchar": "ALTER TABLE {t} ALTER v TYPE varchar(80)",
    "enum_value": "ALTER TYPE mood ADD VALUE IF NOT EXISTS 'fine'",
    "int_to_text": "ALTER TABLE {t} ALTER n TYPE text",
    "other_scale": "ALTER TABLE {t} ALTER d TYPE numeric(10,4)",
    "not_null": "ALTER TABLE {t} ALTER f SET NOT NULL; ALTER TABLE {t} ALTER f DROP NOT NULL",
    "other_key": "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey; ALTER TABLE {t} ADD PRIMARY KEY (code)",
    "key_renamed": "ALTER TABLE {t} RENAME COLUMN id TO ident",
    "identity_full": "ALTER TABLE {t} REPLICA IDENTITY FULL",
    "identity_index": "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code_key",
    "several": "ALTER TABLE {t} ADD COLUMN a int DEFAULT 3, DROP COLUMN f; ALTER TABLE {t} RENAME COLUMN n TO m; "
    "ALTER TABLE {t} ALTER m TYPE bigint",
}  # fmt: skip
IDLE = ("add_default", "drop", "rename", "int_to_bigint", "int_to_text", "other_key", "add_volatile")
"""kinds that are tried under a running mirror with no row after them, too"""
CASES = [(kind, way) for kind in DDL for way in ("inside", "down", *(["idle"] if kind in IDLE else []))]
"""inside: rows before and after it in its transaction; down: nothing runs, rows come later; idle: no rows"""
QUICK = {
    *(
        (kind, "inside")
        for kind in ("add_default", "drop_out_of_line", "swap", "drop_and_add", "int_to_text", "several")
    ),
    *((kind, "down") for kind in ("add", "rename", "int_to_bigint", "other_key", "enum_value", "identity_full")),
    *((kind, "idle") for kind in ("drop", "add_volatile")),
}
"""what is tried each time; all others are for `make ddl-test`"""


def _create(database: Database, kind: str, way: str) -> None:
    name, big = f"{kind}_{way}", BIG if kind in OUT_OF_LINE else "'small'"
    database.execute(
        f"CREATE TABLE {name} (id int PRIMARY KEY, code int NOT NULL UNIQUE, n int, v varchar(20), f real, "
        f"d numeric(10,2), m1 mood, big text);"
        f"INSERT INTO {name} SELECT i, -i, i, 'v' || i, i / 3.0, i / 4.0, 'sad', {big} FROM generate_series(1, 6) i"
    )


def _rows(name: str, kind: str) -> str:
    """Changes that name no column whose name or type changes."""
    key = "ident" if kind == "key_renamed" else "id"
    return (
        f"UPDATE {name} SET code = code * 10 WHERE code = -1; UPDATE {name} SET m1 = 'ok' WHERE code = -2;"
        f"INSERT INTO {name} ({key}, code, m1) VALUES (100, 100, 'sad'); DELETE FROM {name} WHERE code = -3;"
    )


def _alter(database: Database, kind: str, way: str) -> None:
    name = f"{kind}_{way}"
    ddl = DDL[kind].format(t=name)
    if kind == "enum_value":
        # A value that is new can be used after its transaction only.
        database.execute(ddl)
        database.execute(f"UPDATE {name} SET m1 = 'fine' WHERE code = -4")
    elif way == "inside":
        before = f"UPDATE {name} SET v = 'w', n = 9 WHERE code = -5; DELETE FROM {name} WHERE code = -6;"
        database.execute(f"{before} {ddl}; {_rows(name, kind)}")
    else:
        database.execute(ddl)


def _asked(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """The cases of this run."""
    names = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_ddl_is_followed"
    }
    return [(kind, way) for kind, way in CASES if f"{kind}_{way}" in names]


@pytest.fixture(scope="module")
def altered(
    request: pytest.FixtureRequest, server: EmbeddedServer, spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mirrored]:  # fmt: skip
    """The tables of all cases, each altered in its way, most of them under a running mirror."""
    cases = _asked(request)
    names = [f"{kind}_{way}" for kind, way in cases]
    with fresh_database(server) as database:
        database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        for kind, way in cases:
            _create(database, kind, way)
        mirrored = Mirrored(database, tmp_path_factory.mktemp("ddl") / "lake", spark)
        mirrored.catches_up(*names)
        for kind, way in cases:
            if way == "down":
                _alter(database, kind, way)
        with mirrored.running():
            mirrored.is_streaming()
            for kind, way in cases:
                if way == "down":
                    database.execute(_rows(f"{kind}_down", kind))
                else:
                    _alter(database, kind, way)
            # Which table is not is for its own test to say.
            with suppress(AssertionError):
                mirrored.becomes_equal(*names, patience=4 * PATIENCE)
            yield mirrored


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            f"{kind}_{way}", marks=() if (kind, way) in QUICK else (pytest.mark.slow, pytest.mark.timeout(900))
        )
        for kind, way in CASES
    ],
)
def test_ddl_is_followed(altered: Mirrored, name: str) -> None:
    altered.equal(name)
    table = altered.table(name)
    assert table is not None
    assert (table.state, table.error) == ("STREAMING", None)


# ---- what is configured, what can't be followed, what is renamed


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    for name in ("t", "other"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int, v text);"
            f"INSERT INTO {name} SELECT i, i, 'v' || i FROM generate_series(1, 6) i"
        )
    return Mirrored(database, tmp_path / "lake", spark)


@not_by_triggers
def test_a_dropped_column_is_kept_if_configured(mirrored: Mirrored) -> None:
    mirrored.configure(tables={"public.t": {"on_drop": "keep"}})
    mirrored.catches_up("t", "other")
    mirrored.database.execute("ALTER TABLE t DROP COLUMN n; INSERT INTO t VALUES (7, 'x'); DELETE FROM t WHERE id = 1")
    mirrored.database.execute("ALTER TABLE other DROP COLUMN n")
    assert not mirrored.once().missed
    mirrored.equal("other")
    rows = {row["id"]: (row["n"], row["v"]) for row in read_lake(mirrored.lake, TableId("public", "t"))}
    assert rows == {**{i: (i, f"v{i}") for i in range(2, 7)}, 7: (None, "x")}


@not_by_triggers
@heals("SchemaChanged")
def test_a_change_that_cannot_be_followed_stops_the_table_if_configured(mirrored: Mirrored) -> None:
    mirrored.configure(groups=[{"name": "default", "flush_interval": 0.1, "on_incompatible": "stop"}])
    mirrored.catches_up("t", "other")
    mirrored.database.execute("DELETE FROM t WHERE id = 1")
    mirrored.database.execute("ALTER TABLE t ALTER n TYPE text; DELETE FROM t WHERE id = 2")
    mirrored.database.execute("DELETE FROM other WHERE id = 2")
    stopped = missed(mirrored.once())
    assert set(stopped) == {"t"}
    assert "column n became text, was int" in str(stopped["t"].error)
    mirrored.equal("other")
    mirrored.apply_requests(stopped["t"].remedy)
    mirrored.catches_up("t", "other")


@not_by_triggers
@heals("SchemaUnclear")
@pytest.mark.parametrize("on_incompatible", ["resync", "stop"])
def test_a_change_that_can_be_read_in_two_ways_is_re_copied_or_a_question(
    mirrored: Mirrored, on_incompatible: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two columns in the place of two others, and the catalog has moved on before the first row of them was read."""
    mirrored.configure(groups=[{"name": "default", "flush_interval": 0.1, "on_incompatible": on_incompatible}])
    mirrored.catches_up("t", "other")
    mirrored.database.execute(
        "ALTER TABLE t DROP COLUMN n, ADD COLUMN x int; INSERT INTO t (id, x) VALUES (7, 7);"
        "ALTER TABLE t DROP COLUMN v; ALTER TABLE t RENAME COLUMN x TO y; ALTER TABLE t ADD COLUMN z text"
    )
    if on_incompatible == "stop":
        stopped = missed(mirrored.once())
        assert list(stopped) == ["t"] and "?" in str(stopped["t"].error)
        mirrored.apply_requests(stopped["t"].remedy)
    mirrored.catches_up("t", "other")
    assert "public.t: " in caplog.text
    assert bool(logged_errors(caplog)) == (on_incompatible == "stop"), "a table that is re-copied needs nobody"


def test_a_renamed_table_that_is_to_keep_its_name_goes_on_into_its_lake_table(mirrored: Mirrored) -> None:
    group = {"name": "default", "flush_interval": 0.1, "tables": ["*.*"], "on_rename": "keep"}
    mirrored.configure(groups=[group])
    mirrored.catches_up("t", "other")
    database = mirrored.database
    database.execute("ALTER TABLE t RENAME TO renamed; DELETE FROM renamed WHERE id = 1")
    database.execute(
        "CREATE SCHEMA s; ALTER TABLE renamed SET SCHEMA s; ALTER TABLE s.renamed ADD COLUMN x int DEFAULT 4"
    )
    assert not mirrored.once().missed
    database.execute("UPDATE s.renamed SET v = 'w' WHERE id = 2")
    assert not mirrored.once().missed
    rows = {(row["id"], row["n"], row["v"], row["x"]) for row in read_lake(mirrored.lake, TableId("public", "t"))}
    assert rows == set(database.rows("SELECT id, n, v, x FROM s.renamed"))


def test_partitions_that_come_and_go(mirrored: Mirrored) -> None:
    database = mirrored.database
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);"
        "INSERT INTO p SELECT i, 'v' FROM generate_series(0, 19) i"
    )
    mirrored.catches_up("p")
    with mirrored.running():
        mirrored.is_streaming("p")
        database.execute(
            "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30); INSERT INTO p VALUES (20, 'new')"
        )
        database.execute("ALTER TABLE p ADD COLUMN x int DEFAULT 3; INSERT INTO p VALUES (21, 'new', 4)")
        mirrored.becomes_equal("p")
        database.execute("CREATE TABLE p4 (id int PRIMARY KEY, v text, x int); INSERT INTO p4 VALUES (30, 'there', 1)")
        database.execute("ALTER TABLE p ATTACH PARTITION p4 FOR VALUES FROM (30) TO (40)")
        database.execute("ALTER TABLE p DETACH PARTITION p1; ALTER TABLE p1 ADD COLUMN own int; DROP TABLE p2")
        mirrored.becomes_equal("p")


def test_rows_wait_for_no_ddl_of_another_table(mirrored: Mirrored) -> None:
    """A DDL that is not committed holds a lock on its own table alone."""
    with mirrored.running():
        mirrored.is_streaming("t", "other")
        altering = mirrored.database.connect(autocommit=False)
        altering.execute("ALTER TABLE t ADD COLUMN x int")
        mirrored.database.execute("UPDATE other SET n = n + 1")
        mirrored.follows("other")
        altering.commit()
        mirrored.becomes_equal("t")
