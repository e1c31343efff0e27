"""A table that is dropped and created again: the new one takes the place of the old one in the lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import PATIENCE, Mirrored, missed

from remedies import heals
from servers import Database
from waiting import wait_until
from wal2lake.demo.compare import open_catalog
from wal2lake.errors import CommandRefused
from wal2lake.mirror import Mirror
from wal2lake.state import GroupSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = {"name": "default", "flush_interval": 0.1}
RECREATE = "BEGIN; DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, w text); INSERT INTO t VALUES (1, 'new'); COMMIT"


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    for name in ("t", "other"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 9) i"
        )
    return Mirrored(database, tmp_path / "lake", spark, groups=[GROUP])


def _names(mirrored: Mirrored) -> list[str]:
    return [table.name for table in Mirror(mirrored.config).tables()]


def _lake_tables(lake: Path) -> set[str]:
    with open_catalog(lake) as catalog:
        return {".".join(name) for space in catalog.list_namespaces() for name in catalog.list_tables(space)}


def _stops(mirrored: Mirrored) -> None:
    """The table is re-created while `on_recreate = "stop"`, and says so."""
    mirrored.configure(groups=[GROUP | {"on_recreate": "stop"}])
    mirrored.catches_up("t", "other")
    mirrored.database.execute(RECREATE)
    stopped = missed(mirrored.once())["t"]
    assert "dropped and created again" in str(stopped.error)
    assert stopped.remedy is not None and "wal2lake tables resync 'public.t'" in stopped.remedy
    assert _names(mirrored) == ["public.other", "public.t"]


def test_a_table_recreated_while_a_run_is_on_takes_the_place_of_the_old_one(mirrored: Mirrored) -> None:
    with mirrored.running():
        mirrored.is_streaming("t", "other")
        mirrored.database.execute("INSERT INTO t VALUES (100, 'last')")
        mirrored.database.execute(RECREATE)
        mirrored.becomes_equal("t", "other")
        mirrored.database.execute("INSERT INTO t VALUES (2, 'more'); INSERT INTO other VALUES (2000, 'more')")
        mirrored.follows("t", "other")
        assert _names(mirrored) == ["public.other", "public.t"]
        wait_until(lambda: len(_records(mirrored)) == 2, PATIENCE, lambda: _records(mirrored))
    assert _lake_tables(mirrored.lake) == {"public.t", "public.other"}


def _records(mirrored: Mirrored) -> list[tuple[object, ...]]:
    return mirrored.database.rows("SELECT oid, table_name, state FROM wal2lake.tables")


def test_a_table_recreated_while_nothing_runs_takes_the_place_of_the_old_one(mirrored: Mirrored) -> None:
    mirrored.catches_up("t", "other")
    mirrored.database.execute("INSERT INTO t VALUES (100, 'last')")
    mirrored.database.execute(RECREATE)
    mirrored.catches_up("t", "other")
    assert _names(mirrored) == ["public.other", "public.t"]
    mirrored.database.execute(RECREATE)
    mirrored.database.execute(RECREATE)
    mirrored.catches_up("t", "other")
    assert _lake_tables(mirrored.lake) == {"public.t", "public.other"}


@heals("TableRecreated")
def test_a_recreated_table_that_is_to_stop_is_resynced_by_its_name(mirrored: Mirrored) -> None:
    _stops(mirrored)
    with open_catalog(mirrored.lake) as catalog:
        assert catalog.load_table(("public", "t")).scan().to_arrow().num_rows == 9
    stopped = mirrored.table("t")
    assert stopped is not None
    mirrored.apply_requests(stopped.remedy)
    mirrored.catches_up("t", "other")


@pytest.mark.slow
def test_a_recreated_table_that_stopped_is_removed_with_its_lake_table_and_added_again(mirrored: Mirrored) -> None:
    _stops(mirrored)
    mirror = Mirror(mirrored.config)
    mirror.remove(["public.t"], drop_lake=True)
    mirrored.catches_up("other")
    assert _lake_tables(mirrored.lake) == {"public.other"}
    assert _names(mirrored) == ["public.other"]
    mirrored.catches_up("other")
    assert _lake_tables(mirrored.lake) == {"public.other"}
    mirror.add(["public.t"])
    mirrored.catches_up("t", "other")


@pytest.mark.slow
def test_a_recreated_table_is_added_where_no_pattern_means_it(mirrored: Mirrored) -> None:
    mirrored.configure(groups=[GROUP | {"tables": ["public.other"]}])
    Mirror(mirrored.config).add(["public.t"])
    mirrored.catches_up("t", "other")
    mirrored.database.execute(RECREATE)
    mirrored.catches_up("t", "other")


def test_a_recreated_table_stays_removed_and_in_its_group(mirrored: Mirrored) -> None:
    """What a command said of a table holds for the one that takes its name."""
    mirror = Mirror(mirrored.config)
    mirrored.catches_up("t", "other")
    mirror.create_group(GroupSpec("second", True, flush_interval=0.1))
    mirror.move(["public.t"], "second")
    mirror.remove(["public.other"])
    mirrored.catches_up("t")
    mirrored.database.execute(RECREATE)
    mirrored.database.execute("BEGIN; DROP TABLE other; CREATE TABLE other (id int PRIMARY KEY); COMMIT")
    mirrored.catches_up("t")
    assert [(table.name, table.group) for table in mirror.tables()] == [("public.t", "second")]


@heals("it was dropped at the source")
def test_a_dropped_table_is_refused_by_commands_that_need_one_and_can_be_removed(mirrored: Mirrored) -> None:
    mirrored.catches_up("t", "other")
    mirrored.database.execute("DROP TABLE t")
    mirrored.catches_up("other")
    mirror = Mirror(mirrored.config)
    with pytest.raises(CommandRefused, match="dropped at the source") as refused:
        mirror.resync(["public.t"])
    mirrored.apply_requests(refused.value.remedy)
    mirrored.catches_up("other")
    assert _names(mirrored) == ["public.other"]
    assert _lake_tables(mirrored.lake) == {"public.other"}
