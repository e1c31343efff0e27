"""The configuration: origins of values, and messages for bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.config import Config, TableConfig, load_config, settings_of, variables
from wal2lake.errors import ConfigError
from wal2lake.schema import TableId
from wal2lake.types import LakeType, Masking

SOURCE = '[source]\ndsn = "postgresql://user:hush@db:5432/shop"\n'


def write(directory: Path, text: str) -> Path:
    file = directory / "wal2lake.toml"
    file.write_text(text, "utf-8")
    return file


def refused(directory: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(write(directory, text))
    assert "hush" not in str(caught.value) + caught.value.remedy
    return caught.value


def test_a_source_is_enough(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SOURCE))
    assert config.source.dsn.get_secret_value() == "postgresql://user:hush@db:5432/shop"
    assert [group.name for group in config.groups] == ["default"]
    assert config.groups[0].tables == ("public.*",)


def test_a_relative_lake_path_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    config = load_config(write(tmp_path, SOURCE + '[lake]\npath = "a/lake"'))
    assert config.lake_path == tmp_path / "a" / "lake"
    assert config.changelog_path == tmp_path / "a" / "lake" / "_wal2lake"


def test_without_a_file_name_the_one_in_the_current_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, SOURCE + '[spark]\nmaster = "local[1]"')
    monkeypatch.chdir(tmp_path)
    assert load_config().spark.master == "local[1]"


def test_without_any_file_the_environment_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAL2LAKE_SOURCE__DSN", "postgresql://db/shop")
    assert load_config().lake_path == tmp_path / "lake"


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SOURCE + '[lake]\npath = "file:///data/my%20lake"'))
    assert config.lake_path == Path("/data/my lake")


def test_the_environment_overrides_the_file_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, SOURCE + 'connect_timeout = 5\nheartbeat_interval = 7\n[lake]\nproperties = { a = "1" }')
    monkeypatch.setenv("WAL2LAKE_SOURCE__CONNECT_TIMEOUT", "3")
    monkeypatch.setenv("WAL2LAKE_LAKE__PROPERTIES", '{"b": "2"}')
    config = load_config(file)
    assert (config.source.connect_timeout, config.source.heartbeat_interval) == (3, 7)
    assert config.lake.properties == {"a": "1", "b": "2"}


def test_groups_and_tables_come_from_the_environment_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL2LAKE_GROUPS", '[{"name": "sales", "tables": ["public.orders"]}]')
    monkeypatch.setenv("WAL2LAKE_TABLES", '{"orders": {"types": {"total": "decimal(20,4)"}}}')
    config = load_config(write(tmp_path, SOURCE))
    assert config.groups[0].tables == ("public.orders",)
    assert config.tables["public.orders"].types == {"total": LakeType.parse("decimal(20,4)")}


def test_every_variable_of_the_reference_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "DSN": "postgresql://db/x", "CONNECT_TIMEOUT": "3", "HEARTBEAT_INTERVAL": "3", "PATH": "/lake",
        "FORMAT": "iceberg", "PROPERTIES": "{}", "CATALOG": "{}", "MASTER": "local", "CONF": "{}",
        "GROUPS": '[{"name": "a"}]', "TABLES": "{}", "STREAMING": "false", "MAX_BYTES": "9000000", "KEEP_SECONDS": "60",
            "ENABLED": "true",
        "SMALL_FILES": "5", "SNAPSHOT_RETENTION": "60", "SNAPSHOTS_KEPT": "3",
        "FAILOVER": "true", "BINARY": "false", "APPLY_WORKERS": "3", "COPY_WORKERS": "1",
        "PLUGIN": "test_decoding", "POLL_INTERVAL": "0.2", "POLL_MAX_CHANGES": "1000", "POOLER": "false", "TRANSITION_TIMEOUT": "60",
    }  # fmt: skip
    for name in variables():
        monkeypatch.setenv(name, values[name.removeprefix("WAL2LAKE_").rpartition("__")[2]])
    assert load_config(write(tmp_path, "")).groups[0].name == "a"


def test_a_table_is_known_by_its_full_name(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SOURCE + '[tables."orders"]\n[tables.\'"My Schema"."a.b"\']'))
    assert list(config.tables) == ["public.orders", '"My Schema"."a.b"']


def test_secrets_do_not_print_themselves(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SOURCE + '[state]\ndsn = "host=db password=hush"'))
    assert "hush" not in repr(config) + str(config)


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("[lake]\nformat = 'parquet'", "lake.format: bad value 'parquet'", "one of: 'iceberg'"),
        ("[lake]\nformat = 'delta'", "lake.format: 'delta' is not in this version yet", "leave it out"),
        ("[lake]\npath = 's3://b/x'", "lake.path: s3:// is not supported, this version writes to directories only",
         "a directory, as in: path = './lake' (on a network file system only with a [lake.catalog])"),
        ("[lake]\npath = 'file://host/x'", "lake.path: file:// is not supported, this version writes to directories "
         "only", "a directory, as in: path = './lake' (on a network file system only with a [lake.catalog])"),
        ("[lake]\npath = ''", "lake.path: is empty", "a directory, as in: path = './lake'"),
        ("[lake]\npath = 3", "lake.path: bad value 3", "a string, in quotes"),
        ("[lake]\npaht = 'x'", "lake.paht: unknown key",
         "perhaps path is meant; the keys here are: catalog, format, path, properties"),
        ("[lakes]", "lakes: unknown key",
         "perhaps lake is meant; the keys here are: changelog, groups, lake, maintenance, source, spark, state, tables"),
        ("[spark]\nconf = { 'spark.x' = 3 }", 'spark.conf."spark.x": bad value', "a string, in quotes"),
        ("[[groups]]\nname = 'A b'", "groups[0].name: bad value 'A b'",
         "lower-case letters, digits and underscores, beginning with a letter, at most 40"),
        ("[[groups]]\nname = 'a'\n[[groups]]\nname = 'b'\ncapture = 'x'", "groups[1].capture: bad value 'x'",
         "one of: 'auto', 'wal', 'poll', 'trigger'"),
        ("[[groups]]\nname = 'a'\ncapture = 'trigger'\npartitions = 'leaf'", "groups[0]: capture = 'trigger' has no "
         "publication, and mirrors partitioned tables as one", "leave out publication, and set partitions = 'root'"),
        ("[[groups]]\nname = 'a'\nflush_interval = 0", "groups[0].flush_interval: bad value 0",
         "a number of at least 0.05"),
        ("[[groups]]\nname = 'a'\nflush_bytes = 'much'", "groups[0].flush_bytes: bad value 'much'", "a whole number"),
        ("[[groups]]\nname = 'a'\n[[groups]]\nname = 'a'", "groups: 2 groups are named 'a'",
         "a different name for each group"),
        ("[[groups]]\ntables = []", "groups[0].name: is missing",
         "set it in the configuration file (write one with: wal2lake init)"),
        ("[[groups]]\nname = 'a'\ntables = 'x'", "groups[0].tables: bad value 'x'",
         'a list, as in: ["public.orders", "public.c*"]'),
        ("[[groups]]\nname = 'a'\nexclude = ['a.b.c']", "groups[0].exclude[0]: 'a.b.c' is not a table name", None),
        ("[groups]\nname = 'a'", "groups: bad value", "[[groups]]"),
        ("[[groups]]\nname = 'a'\npartitions = 'leaves'", "groups[0].partitions: bad value 'leaves'",
         "one of: 'root', 'leaf'"),
        ("[[groups]]\nname = 'a'\npartitions = 'leaf'\npublication = 'p'", "groups[0]: partitions = 'leaf' needs a "
         "publication made by wal2lake, and publication names another one",
         "leave out publication, or set partitions = 'root'"),
        ("[tables.'a..b']", "tables.\"a..b\": 'a..b' is not a table name", None),
        ("[tables.'.a']", "tables.\".a\": '.a' is not a table name", None),
        ("[tables.a]\n[tables.'public.a']", "tables: a table is named twice", None),
        ("[tables.a]\ntypes = { x = 'varchar' }", "tables.a.types.x: 'varchar' is not a lake type", None),
        ("[tables.a]\ntype = {}", "tables.a.type: unknown key", "perhaps types is meant; the keys here are: append_only, auto_replica_identity, capture, columns, flush_bytes, flush_interval, mask, on_drop, on_incompatible, on_partition_drop, on_recreate, on_rename, target, types, where"),
        ("[tables.a]\nmask = { email = 'md5' }", "tables.a.mask.email: 'md5' is not a mask", "one of: 'sha256', 'null'"),
        ("[tables.a]\nmask = { n = 'null' }\ntypes = { n = 'string' }", "tables.a: column n has both a mask and a type", None),
        ("[tables.a]\ncolumns = []", "tables.a.columns: is empty", None),
        ("[tables.a]\ncolumns = ['id', 'id']", "tables.a.columns: names a column twice", None),
        ("[tables.a]\nwhere = ' '", "tables.a.where: is empty", None),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_what_is_allowed(tmp_path: Path, text: str, message: str, remedy: str | None) -> None:
    error = refused(tmp_path, SOURCE + text)
    assert str(error) == message
    assert remedy is None or error.remedy == remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('source = "postgresql://u:hush@db/x"', "source: bad value"),
        ('[source]\ndsn = "hush"', "source.dsn: not a PostgreSQL connection string"),
        ('[source]\ndsn = "postgresql://u:hush hush@db/x"', "source.dsn: not a PostgreSQL connection string"),
        ('[source]\ndsn = ["hush"]', "source.dsn: bad value"),
        (SOURCE + '[state]\ndsn = "hush"', "state.dsn: not a PostgreSQL connection string"),
        (SOURCE + '[lake.catalog]\ntoken = ["hush"]', "lake.catalog.token: bad value"),
    ],
)
def test_a_value_that_may_be_a_secret_is_never_shown(tmp_path: Path, text: str, message: str) -> None:
    assert str(refused(tmp_path, text)) == message


def test_a_missing_dsn_says_where_it_can_be_set(tmp_path: Path) -> None:
    error = refused(tmp_path, "")
    assert str(error) == "source.dsn: is missing"
    assert error.remedy.endswith("or as WAL2LAKE_SOURCE__DSN")


def test_a_misspelt_variable_is_an_error_with_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL2LAKE_SORCE__DSN", "postgresql://u:hush@db/x")
    error = refused(tmp_path, SOURCE)
    assert str(error) == "WAL2LAKE_SORCE__DSN: unknown environment variable"
    assert error.remedy == "unset it; perhaps WAL2LAKE_SOURCE__DSN is meant"


def test_a_variable_that_is_not_json_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL2LAKE_GROUPS", "[hush")
    error = refused(tmp_path, SOURCE)
    assert str(error).startswith("WAL2LAKE_GROUPS: ")
    assert error.remedy.endswith("""WAL2LAKE_GROUPS='[{"name": "default"}]'""")


@pytest.mark.parametrize("name", ["WAL2LAKE_CACHE", "WAL2LAKE_FAULT", "WAL2LAKE_TEST_SPEED"])
def test_variables_of_other_purposes_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    assert load_config(write(tmp_path, SOURCE)).groups


def test_a_file_that_is_not_toml_says_where(tmp_path: Path) -> None:
    error = refused(tmp_path, "[source\n")
    assert "not valid TOML" in str(error)
    assert "line 1" in str(error)


def test_a_file_that_is_not_there_leads_to_init(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none.toml")
    assert "No such file" in str(caught.value)
    assert "wal2lake init" in caught.value.remedy


def test_a_configuration_does_not_change() -> None:
    config = Config.model_validate({"source": {"dsn": "postgresql://db/shop"}})
    with pytest.raises(ValueError, match="frozen"):
        config.lake.path = "elsewhere"  # type: ignore[misc]


ROOT, MIDDLE, LEAF = (TableId("public", name) for name in ("root", "middle", "leaf"))
ABOVE = TableConfig.model_validate(
    {"mask": {"email": "sha256"}, "types": {"n": "string"}, "where": "n > 0", "on_drop": "keep", "target": "x.y"}
)


def test_a_partition_has_the_settings_of_the_tables_above_it_key_by_key() -> None:
    tables = {"public.root": ABOVE, "public.leaf": TableConfig(flush_interval=60)}
    found = settings_of(tables, LEAF, (MIDDLE, ROOT))
    assert (found.mask, found.types, found.where, found.on_drop) == (ABOVE.mask, ABOVE.types, ABOVE.where, "keep")
    assert (found.flush_interval, found.target, found.columns) == (60, None, ())
    assert found.withholds
    nearer = {**tables, "public.middle": TableConfig(mask={"phone": Masking.NULL})}
    assert set(settings_of(nearer, LEAF, (MIDDLE, ROOT)).mask) == {"phone"}
    assert settings_of({**tables, "public.leaf": TableConfig(mask={})}, LEAF, (MIDDLE, ROOT)).mask == {}


def test_a_table_of_its_own_has_its_own_settings_alone() -> None:
    assert settings_of({"public.root": ABOVE}, ROOT) == ABOVE
    assert settings_of({"public.root": ABOVE}, LEAF) == TableConfig()


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ('[tables."public.t"]\nwhere = "id > 0"', "where of table public.t"),
        ('[tables."public.t"]\ncolumns = ["id"]', "columns of table public.t"),
        ('[[groups]]\nname = "a"\npublication = "p"', "publication of group a"),
    ],
)
def test_what_another_output_plugin_can_not_do_is_refused(tmp_path: Path, section: str, word: str) -> None:
    error = refused(tmp_path, f'{SOURCE}plugin = "test_decoding"\n{section}')
    assert word in str(error) and "pgoutput" in error.remedy
    load_config(write(tmp_path, f"{SOURCE}{section}"))
