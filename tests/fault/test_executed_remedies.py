"""The remedy of each error is executed as it is printed, and afterwards the tables are equal."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from mirroring import Mirrored, lines_of_error, missed

from remedies import heals, steps
from servers import Database
from waiting import wait_until
from wal2lake.demo.compare import open_catalog
from wal2lake.errors import CommandRefused, ConfigError, SlotLost, SourceRefused, Wal2LakeError
from wal2lake.mirror import Mirror
from wal2lake.quoting import identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = {"name": "default", "flush_interval": 0.1}


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i"
    )
    return Mirrored(database, tmp_path / "lake", spark, groups=[GROUP])


@heals("its lake table does not exist")
def test_a_lake_table_that_was_dropped_by_others(mirrored: Mirrored) -> None:
    with mirrored.running():
        mirrored.is_streaming("t")
        with open_catalog(mirrored.lake) as catalog:
            catalog.drop_table(("public", "t"))
        mirrored.database.execute("INSERT INTO t VALUES (10, 'more')")
        mirrored.apply_requests(mirrored.fails("t", "does not exist").remedy)
        mirrored.becomes_equal("t")


@heals("ForeignTable")
def test_a_lake_table_that_wal2lake_did_not_make(mirrored: Mirrored) -> None:
    mirrored.lake.mkdir()
    rows = pa.table({"id": pa.array([7], pa.int32())})
    with open_catalog(mirrored.lake) as catalog:
        catalog.create_namespace("public")
        catalog.create_table(("public", "t"), schema=rows.schema)
    with mirrored.running():
        failed = mirrored.fails("t", "did not make")
        assert failed.remedy is not None and failed.remedy.startswith("rename or drop that lake table, then: ")
        with open_catalog(mirrored.lake) as catalog:
            catalog.drop_table(("public", "t"))
        mirrored.apply_requests(failed.remedy)
        mirrored.becomes_equal("t")


@heals("its lake table has no position recorded")
def test_a_lake_table_that_others_replaced_by_its_own_rows(mirrored: Mirrored) -> None:
    mirrored.catches_up("t")
    session = mirrored.users_session()
    for _ in range(2):
        session.sql("CREATE OR REPLACE TABLE lake.public.t USING iceberg AS SELECT * FROM lake.public.t LIMIT 3")
    session.sql("CALL lake.system.expire_snapshots('public.t', TIMESTAMP '2100-01-01 00:00:00', 1)").collect()
    mirrored.database.execute("INSERT INTO t VALUES (10, 'more')")
    failed = missed(mirrored.once())["t"]
    assert "has no position recorded" in str(failed.error)
    mirrored.apply_requests(failed.remedy)
    mirrored.catches_up("t")


@heals("lacks rows that the changes refer to")
def test_rows_that_others_deleted_in_the_lake(mirrored: Mirrored) -> None:
    """The lake table has a name of its own; what is to be done is said of the source's."""
    mirrored.configure(tables={"public.t": {"target": "elsewhere.its_own"}})
    mirrored.database.execute(
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL, ADD n int; UPDATE t SET v = repeat('v', 9000)"
    )
    assert not mirrored.once().missed
    mirrored.users_session().sql("DELETE FROM lake.elsewhere.its_own WHERE id < 4")
    mirrored.database.execute("UPDATE t SET n = 1")
    failed = missed(mirrored.once())["t"]
    assert "lacks rows that the changes refer to" in str(failed.error)
    mirrored.apply_requests(failed.remedy)
    assert not mirrored.once().missed
    with open_catalog(mirrored.lake) as catalog:
        rows = catalog.load_table(("elsewhere", "its_own")).scan().to_arrow().to_pylist()
    names = mirrored.database.rows("SELECT id, v, n FROM t")
    assert sorted((row["id"], row["v"], row["n"]) for row in rows) == sorted(names)


@heals("PartitionForeign")
def test_a_partition_that_is_on_another_server(mirrored: Mirrored) -> None:
    mirrored.database.execute(
        """
        CREATE TABLE p (id int NOT NULL, v text) PARTITION BY RANGE (id);
        CREATE TABLE "its part" PARTITION OF p FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
        CREATE TABLE p_1 PARTITION OF "its part" (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10);
        INSERT INTO p VALUES (1, 'v');
        CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER other FOREIGN DATA WRAPPER nowhere;
        """
    )
    with mirrored.running():
        mirrored.is_streaming("p", "t")
        mirrored.database.execute(
            'CREATE FOREIGN TABLE far PARTITION OF "its part" FOR VALUES FROM (10) TO (20) SERVER other'
        )
        failed = mirrored.fails("p", "is a foreign table")
        mirrored.database.execute("INSERT INTO t VALUES (10, 'goes on')")
        mirrored.follows("t")
        mirrored.apply_requests(failed.remedy)
        mirrored.database.execute("INSERT INTO p VALUES (2, 'more')")
        mirrored.becomes_equal("p")


AWKWARD = 'it\'s "my" $HOME.table\\ `x`; {table}'


def test_a_table_and_a_column_of_awkward_names(mirrored: Mirrored) -> None:
    """What is printed is for the shell, for psql and for the configuration file, whatever a name holds."""
    name = identifier(AWKWARD)
    mirrored.database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, {name} date); INSERT INTO {name} VALUES (1)")
    mirrored.catches_up("t")
    mirrored.database.execute(f"UPDATE {name} SET {name} = 'infinity'")
    (failed,) = mirrored.once().missed
    assert failed.remedy is not None
    setting, then = failed.remedy.removeprefix("set ").split(" in the configuration, then: ")
    section, types = setting.split("] types", 1)
    mirrored.configure(**tomllib.loads(f"{section}]\ntypes{types}"))
    mirrored.apply_requests(then)
    assert not mirrored.once().missed
    with open_catalog(mirrored.lake) as catalog:
        rows = catalog.load_table(("public", AWKWARD)).scan().to_arrow().to_pylist()
    assert rows == [{"id": 1, AWKWARD: "infinity"}]


@heals("leaves out some of insert")
def test_a_publication_that_leaves_changes_out(mirrored: Mirrored) -> None:
    mirrored.database.execute("CREATE PUBLICATION theirs FOR TABLE t WITH (publish = 'insert')")
    _configured_after(mirrored, {"publication": "theirs"})


@heals("is not in publication")
def test_a_table_that_is_not_in_the_publication(mirrored: Mirrored) -> None:
    mirrored.database.execute("CREATE PUBLICATION theirs")
    _configured_after(mirrored, {"publication": "theirs", "tables": ["public.t"]})


@heals("without their partitions")
def test_a_publication_that_sends_partitions_as_their_root(mirrored: Mirrored) -> None:
    mirrored.database.execute(
        "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100); INSERT INTO t VALUES (1, 'v');"
        "CREATE PUBLICATION theirs FOR TABLE t WITH (publish_via_partition_root)"
    )
    _configured_after(mirrored, {"publication": "theirs", "tables": ["public.t"]})


def _configured_after(mirrored: Mirrored, settings: dict[str, object]) -> None:
    mirrored.configure(groups=[GROUP | settings])
    with pytest.raises(ConfigError) as refused:
        mirrored.once()
    mirrored.apply_requests(refused.value.remedy)
    mirrored.catches_up("t")


@heals("it is FOR ALL TABLES")
def test_a_publication_of_all_tables_under_our_name(mirrored: Mirrored) -> None:
    mirrored.database.execute("CREATE PUBLICATION wal2lake_default FOR ALL TABLES")
    _allowed_after(mirrored, SourceRefused)


@heals("SET LOGGED")
def test_a_table_that_is_not_in_the_wal(mirrored: Mirrored) -> None:
    mirrored.database.execute("ALTER TABLE t SET UNLOGGED")
    mirrored.configure(groups=[GROUP | {"tables": ["public.t"]}])
    _allowed_after(mirrored, SourceRefused)


@heals("exists already, and is not the slot of this lake's change log")
def test_a_slot_of_our_name(mirrored: Mirrored) -> None:
    mirrored.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [mirrored.slot])
    _allowed_after(mirrored, SlotLost)


def _allowed_after(mirrored: Mirrored, error: type[Wal2LakeError]) -> None:
    with pytest.raises(error) as refused:
        mirrored.once()
    mirrored.apply_requests(refused.value.remedy)
    mirrored.catches_up("t")


@pytest.mark.slow
@heals("is locked by server process")
def test_a_session_that_keeps_a_table_locked(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal2lake.source.published_tables.LOCKED_SECONDS", 0.5)
    migration = mirrored.database.connect(autocommit=False)
    migration.execute("ALTER TABLE t ADD COLUMN w text")
    with mirrored.running():
        wait_until(lambda: mirrored.group().error, 30, "the wait is reported")
        mirrored.apply_requests(mirrored.group().remedy)
        mirrored.is_streaming("t")
        mirrored.follows("t")


@pytest.mark.slow
@heals("there are several groups", "mirrors it already", "it is in the configuration", "there is no such group")
def test_commands_that_are_refused_name_those_that_are_not(mirrored: Mirrored) -> None:
    mirrored.configure(groups=[GROUP | {"tables": ["public.other"]}, {"name": "second", "tables": ["public.another"]}])
    mirrored.database.execute("CREATE TABLE other (id int PRIMARY KEY); CREATE TABLE another (id int PRIMARY KEY)")
    mirror = Mirror(mirrored.config)
    _refused(mirrored, lambda: mirror.add(["public.t"]), "several groups")
    mirrored.catches_up("t", "other", "another")
    _refused(mirrored, lambda: mirror.add(["public.t"], group="second"), "mirrors it already")
    wait_until(lambda: _moved(mirrored), 60, mirror.tables)
    _refused(mirrored, lambda: mirror.drop_group("second"), "it is in the configuration")
    assert [group.enabled for group in mirror.groups()] == [True, False]
    mirror.enable_group("second")
    _refused(mirrored, lambda: mirror.move(["public.t"], "third"), "no such group")
    mirror.move(["public.t"], "third")
    wait_until(lambda: _moved(mirrored, "third"), 60, mirror.tables)
    mirrored.catches_up("t", "other", "another")


def _refused(mirrored: Mirrored, ask: Callable[[], object], cause: str) -> None:
    with pytest.raises(CommandRefused, match=cause) as refused:
        ask()
    mirrored.apply_requests(refused.value.remedy)


def _moved(mirrored: Mirrored, group: str = "second") -> bool:
    """Both groups have to run for a move."""
    assert not missed(mirrored.once())
    table = mirrored.table("t")
    return table is not None and table.group == group


@pytest.mark.slow
@heals("group … has …")
def test_a_group_that_names_the_table_of_another(mirrored: Mirrored) -> None:
    mirrored.catches_up("t")
    mirrored.configure()
    with pytest.raises(AssertionError, match=r"group default has public\.t"):
        mirrored.command("groups", "create", "second", "--tables", "public.t")
    mirrored.command("groups", "create", "second")
    mirrored.command("tables", "move", "public.t", "--group", "second")
    wait_until(lambda: _moved(mirrored), 60, Mirror(mirrored.config).tables)
    mirrored.catches_up("t")


@heals("cannot read the configuration file", "ConfigError: already exists")
def test_a_configuration_file_that_is_missing_or_there_already(tmp_path: Path) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "wal2lake", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    for refused in (["-c", "wal2lake.toml", "config", "show"], ["init"]):
        code, told = command(*refused)
        assert code == 1
        ((_, remedy),) = lines_of_error(told)
        first = steps(remedy)[0]
        assert isinstance(first, list) and command(*first) == (0, "")
    assert (tmp_path / "wal2lake.toml").exists()
