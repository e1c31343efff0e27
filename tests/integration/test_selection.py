"""Row filters, column lists and named publications on a real server: descriptions, publications and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conftest import ConfigFactory
from servers import Database
from wal2lake.config import Config
from wal2lake.errors import ConfigError
from wal2lake.mirror import Mirror
from wal2lake.preflight.collect import check
from wal2lake.schema import TableSchema
from wal2lake.source.database import Source
from wal2lake.source.publishing import contents
from wal2lake.source.sessions.connect import connect
from wal2lake.source.tables import selection
from wal2lake.types import STRING, Masking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, status text NOT NULL, email text, twice int GENERATED ALWAYS AS (id * 2) STORED);"
    "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)"
)


@pytest.fixture
def made(database: Database) -> Database:
    database.execute(TABLES)
    return database


@pytest.fixture
def narrowed(made: Database) -> Database:
    if _version(made) < 150000:
        pytest.skip("PostgreSQL 14 publishes whole tables")
    return made


def _version(database: Database) -> int:
    return database.connect().info.server_version


def _discovered(config: Config, publish: bool = True) -> dict[str, TableSchema]:
    source = Source(config, config.groups[0])
    try:
        schemas = source.discover()
        if publish:
            source.publish(schemas)
    finally:
        source.close()
    return {schema.id.name: schema for schema in schemas}


def _refused(config: Config) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        _discovered(config)
    return raised.value


def _published(database: Database) -> dict[str, tuple[Any, ...]]:
    rows = database.rows("SELECT tablename, attnames::text[], rowfilter FROM pg_publication_tables")
    return {name: (set(columns), where) for name, columns, where in rows}


def test_masks_are_part_of_the_columns(made: Database, config: ConfigFactory) -> None:
    made.execute("ALTER TABLE t ADD COLUMN extra text DEFAULT 'clear'; INSERT INTO t (id, status) VALUES (1, '')")
    schema = _discovered(config(tables={"t": {"mask": {"id": "sha256", "email": "null", "extra": "sha256"}}}))["t"]
    assert (schema.column("id").mask, schema.column("id").lake) == (Masking.SHA256, STRING)
    assert schema.column("email").mask is Masking.NULL
    assert schema.masked
    assert "clear" not in str(schema.to_json())
    assert TableSchema.from_json(schema.to_json()) == schema


def test_the_publication_gets_the_filter_and_the_list_and_is_left_alone_when_it_has_them(
    narrowed: Database, config: ConfigFactory
) -> None:
    settings = {"where": "status  <>   'draft'", "columns": ["status", "id"]}
    entry = "SELECT oid FROM pg_publication_rel WHERE prrelid = 't'::regclass"
    narrowed.execute("CREATE UNIQUE INDEX t_both ON t (id, status); ALTER TABLE t REPLICA IDENTITY USING INDEX t_both")
    schema = _discovered(config(tables={"t": settings}))["t"]
    assert schema.names == ("id", "status")
    assert _published(narrowed)["t"] == ({"id", "status"}, "(status <> 'draft'::text)")
    before = narrowed.value(entry)
    _discovered(config(tables={"t": {**settings, "where": "status <> 'draft'"}}))
    assert narrowed.value(entry) == before
    _discovered(config(tables={"t": {**settings, "where": "status = 'done'"}}))
    assert _published(narrowed)["t"] == ({"id", "status"}, "(status = 'done'::text)")
    _discovered(config())
    assert _published(narrowed)["t"][1] is None
    assert narrowed.rows("SELECT count(*) FROM pg_publication_rel") == [(2,)]


@pytest.mark.parametrize(
    ("settings", "field", "cause"),
    [
        ({"where": "status <>"}, "tables.public.t.where", "syntax error"),
        ({"where": "nothing = 1"}, "tables.public.t.where", 'column "nothing" does not exist'),
        ({"where": "other.id = 1"}, "tables.public.t.where", 'missing FROM-clause entry for table "other"'),
        ({"where": "random() < 0.5"}, "tables.public.t.where", "invalid publication WHERE expression"),
        ({"where": "id"}, "tables.public.t.where", "must be type boolean"),
        ({"columns": ["id", "gone"]}, "tables.public.t.columns", "no column gone"),
        ({"columns": ["status"]}, "tables.public.t.columns", "key column id"),
        ({"mask": {"gone": "null"}}, "tables.public.t.mask.gone", "no column gone"),
        ({"mask": {"id": "null"}}, "tables.public.t.mask.id", "key"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_its_name(
    narrowed: Database, config: ConfigFactory, settings: dict[str, Any], field: str, cause: str
) -> None:
    refused = _refused(config(tables={"t": settings}))
    assert str(refused).startswith(f"{field}: ")
    assert cause in str(refused)
    assert refused.remedy
    assert not narrowed.rows("SELECT FROM pg_publication")
    found = [finding for finding in check(config(tables={"t": settings})) if finding.blocks]
    assert [finding.consequence for finding in found] == [str(refused)]


def test_a_generated_column_in_the_list_is_for_servers_that_publish_it(
    narrowed: Database, config: ConfigFactory
) -> None:
    settings = {"t": {"columns": ["id", "twice"]}}
    if _version(narrowed) < 180000:
        assert "generated column twice" in str(_refused(config(tables=settings)))
    else:
        assert _discovered(config(tables=settings))["t"].names == ("id", "twice")
        assert _published(narrowed)["t"][0] == {"id", "twice"}


def test_a_partitioned_table_is_published_whole(narrowed: Database, config: ConfigFactory) -> None:
    assert "partitioned" in str(_refused(config(tables={"parts": {"where": "id > 1"}})))
    assert "partitioned" in str(_refused(config(tables={"parts": {"columns": ["id"]}})))
    assert _discovered(config(tables={"parts": {"mask": {"v": "sha256"}}}))["parts"].masked


def test_leaves_have_the_filter_and_the_list_of_their_root(narrowed: Database, config: ConfigFactory) -> None:
    settings = {"parts": {"where": "id > 1", "columns": ["id"], "mask": {"id": "sha256"}}}
    leafwise = config(tables=settings, groups=[{"name": "default", "partitions": "leaf", "tables": ["public.parts"]}])
    found = _discovered(leafwise)
    assert set(found) == {"parts_1"} == set(_published(narrowed))
    assert found["parts_1"].column("id").mask is Masking.SHA256
    assert _published(narrowed)["parts_1"] == ({"id"}, "(id > 1)")
    own = {**settings, "parts_1": {"where": "id > 2"}}
    _discovered(leafwise.model_copy(update={"tables": config(tables=own).tables}))
    assert _published(narrowed)["parts_1"] == ({"id"}, "(id > 2)")


def test_a_server_before_15_refuses_parts_of_tables_with_the_remedy(made: Database, config: ConfigFactory) -> None:
    if _version(made) >= 150000:
        pytest.skip("this server has row filters")
    refused = _refused(config(tables={"t": {"where": "id > 1"}}))
    assert "PostgreSQL 14 can't publish a part of a table" in str(refused)
    assert "15 or newer" in refused.remedy


def test_a_section_that_hides_something_of_a_table_that_is_not_there_is_refused(
    made: Database, config: ConfigFactory, spark: SparkSession
) -> None:
    settings = config(tables={"customer": {"mask": {"email": "sha256"}}})
    with pytest.raises(ConfigError, match=r"tables\.public\.customer: there is no such table"):
        Mirror(settings, spark).run_once()
    assert [finding.object for finding in check(settings) if finding.blocks] == ["[tables.'public.customer']"]


def test_check_says_what_postgres_will_refuse_and_the_fix_helps(narrowed: Database, config: ConfigFactory) -> None:
    narrowed.execute("INSERT INTO t (id, status) VALUES (1, 'done')")
    for settings in ({"where": "status <> 'draft'", "columns": ["id", "status"]}, {"where": "status <> 'draft'"}):
        wanted = config(tables={"t": settings})
        (finding,) = [finding for finding in check(wanted) if finding.blocks]
        assert finding.object == "public.t"
        assert not narrowed.rows("SELECT FROM pg_publication WHERE pubname LIKE '%check%'")
        _discovered(wanted)
        narrowed.execute("UPDATE t SET status = 'x'")
        narrowed.execute(finding.fix)
        assert not [finding for finding in check(wanted) if finding.blocks]
        _discovered(wanted)
        assert "t" in _published(narrowed)
        narrowed.execute("UPDATE t SET status = 'y'")
        narrowed.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT; DROP INDEX IF EXISTS t_filter")


def test_check_says_that_a_list_does_not_go_with_the_identity_full(narrowed: Database, config: ConfigFactory) -> None:
    narrowed.execute("ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t (id, status) VALUES (1, 'done')")
    wanted = config(tables={"t": {"columns": ["id", "status"]}})
    (finding,) = [finding for finding in check(wanted) if finding.blocks]
    _discovered(wanted)
    narrowed.execute("UPDATE t SET status = 'x'")
    narrowed.execute(finding.fix)
    narrowed.execute("UPDATE t SET status = 'x'")
    assert not [finding for finding in check(wanted) if finding.blocks]


def _named(name: str, **settings: Any) -> list[dict[str, Any]]:
    return [{"name": "default", "publication": name, **settings}]


def test_a_named_publication_says_tables_rows_and_columns(narrowed: Database, config: ConfigFactory) -> None:
    narrowed.execute("CREATE PUBLICATION theirs FOR TABLE t (id, email) WHERE (id > 3)")
    settings = config(groups=_named("theirs"), tables={"t": {"mask": {"email": "sha256"}}})
    found = _discovered(settings)
    assert set(found) == {"t"}
    assert (found["t"].names, found["t"].where) == (("id", "email"), "(id > 3)")
    assert found["t"].column("email").mask is Masking.SHA256
    assert narrowed.rows("SELECT pubname FROM pg_publication") == [("theirs",)]
    assert not [finding for finding in check(settings) if finding.blocks]
    first = found["t"].entry
    narrowed.execute(
        "ALTER PUBLICATION theirs DROP TABLE t; ALTER PUBLICATION theirs ADD TABLE t (id, email) WHERE (id > 3)"
    )
    assert _discovered(settings)["t"].entry != first


@pytest.mark.parametrize(
    ("made_by", "group", "tables", "cause", "remedy"),
    [
        ("", {}, {}, "there is no publication theirs", "leave it out"),
        ("CREATE PUBLICATION theirs FOR TABLE t WITH (publish = 'insert')", {}, {}, "leaves out", "ALTER PUBLICATION"),
        ("CREATE PUBLICATION theirs FOR TABLE t", {"tables": ["public.t", "public.parts"]}, {},
         "public.parts is not in publication theirs", 'ALTER PUBLICATION "theirs" ADD TABLE "public"."parts"'),
        ("CREATE PUBLICATION theirs FOR TABLE t, parts WITH (publish_via_partition_root = true)", {}, {},
         "without their partitions", "publish_via_partition_root = false"),
        ("CREATE PUBLICATION theirs FOR TABLE t", {}, {"t": {"columns": ["id"]}}, "selects columns and rows",
         "ALTER PUBLICATION"),
    ],
)  # fmt: skip
def test_a_named_publication_that_will_not_do_is_refused(
    made: Database, config: ConfigFactory, made_by: str, group: dict[str, Any], tables: dict[str, Any], cause: str,
    remedy: str,
) -> None:  # fmt: skip
    if made_by:
        made.execute(made_by)
    settings = config(groups=_named("theirs", **group), tables=tables)
    refused = _refused(settings)
    assert cause in str(refused)
    assert remedy in refused.remedy
    assert str(refused) in [finding.consequence for finding in check(settings) if finding.blocks]


def test_a_partitioned_table_in_a_named_publication_by_its_leaves_alone_is_not_whole(
    made: Database, config: ConfigFactory
) -> None:
    made.execute("CREATE PUBLICATION theirs FOR TABLE t, parts_1")
    assert set(_discovered(config(groups=_named("theirs")))) == {"t"}


def test_a_group_means_tables_by_names_patterns_and_exclusions(made: Database, config: ConfigFactory) -> None:
    made.execute("CREATE PUBLICATION theirs FOR ALL TABLES")
    assert set(_discovered(config(groups=_named("theirs")))) == {"t", "parts"}
    assert set(_discovered(config(groups=_named("theirs", exclude=["public.p*"])))) == {"t"}
    assert set(_discovered(config(groups=_named("theirs", tables=["public.p*"])))) == {"parts"}


def test_our_publication_is_dropped_and_theirs_stays(made: Database, config: ConfigFactory) -> None:
    made.execute("CREATE PUBLICATION theirs FOR TABLE t")
    _discovered(config())
    own = config(groups=_named("theirs"))
    source = Source(own, own.groups[0])
    source.drop_publication()
    source.close()
    assert made.rows("SELECT pubname FROM pg_publication") == [("theirs",)]
    with connect(own.source) as conn:
        assert contents.exists(conn, "theirs")
        assert selection.read(conn, own.groups[0]).tables
