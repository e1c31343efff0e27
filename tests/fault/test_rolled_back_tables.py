"""A lake table that others roll back or replace is detected, and stays refused until it is re-copied."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from mirroring import Mirrored, missed

from remedies import heals
from servers import Database
from wal2lake.demo.compare import open_catalog
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT i, 0 FROM generate_series(1, 9) i"
    )
    return Mirrored(database, tmp_path / "lake", spark)


def _snapshots(mirrored: Mirrored) -> list[int]:
    with open_catalog(mirrored.lake) as catalog:
        return [entry.snapshot_id for entry in catalog.load_table(("public", "t")).history()]


def _roll_back(mirrored: Mirrored, snapshot: int) -> None:
    """As a user would, with another Spark session on the same catalog."""
    _call(mirrored.users_session(), f"CALL lake.system.set_current_snapshot('public.t', {snapshot})")


def _call(session: Any, statement: str) -> None:
    session.sql(statement).collect()


def _refused(mirrored: Mirrored) -> str:
    table = missed(mirrored.once()).get("t")
    assert table is not None and table.error is not None, "it continues over the hole"
    assert "went back from" in table.error, table.error
    assert table.remedy is not None and "wal2lake tables resync 'public.t'" in table.remedy
    return table.remedy


def _stays_refused_until_a_resync(mirrored: Mirrored) -> None:
    for _ in range(2):
        _refused(mirrored)
    Mirror(mirrored.config).resume(["public.t"])
    mirrored.database.execute("INSERT INTO t VALUES (1000, 1)")
    mirrored.apply_requests(_refused(mirrored))
    mirrored.catches_up("t")
    mirrored.database.execute("UPDATE t SET n = n + 1")
    mirrored.catches_up("t")


def _applied_and_retired(mirrored: Mirrored) -> None:
    """Changes in several commits, whose manifests are deleted by the time the next run ends."""
    for number in range(100, 103):
        mirrored.database.execute(f"INSERT INTO t VALUES ({number}, 1)")
        mirrored.catches_up("t")


@heals("LakeRolledBack")
def test_a_rolled_back_table_is_refused_until_it_is_resynced(mirrored: Mirrored) -> None:
    mirrored.catches_up("t")
    first = _snapshots(mirrored)[-1]
    _applied_and_retired(mirrored)
    _roll_back(mirrored, first)
    _stays_refused_until_a_resync(mirrored)


@pytest.mark.slow
def test_a_restored_catalog_is_refused_until_its_table_is_resynced(mirrored: Mirrored, tmp_path: Path) -> None:
    mirrored.catches_up("t")
    backup = tmp_path / "backup"
    shutil.copytree(mirrored.lake, backup)
    _applied_and_retired(mirrored)
    for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
        (mirrored.lake / name).unlink(missing_ok=True)
        if (backup / name).exists():
            shutil.copy(backup / name, mirrored.lake / name)
    _stays_refused_until_a_resync(mirrored)


@pytest.mark.slow
def test_a_table_rolled_back_over_a_rewrite_at_the_same_position_is_refused(mirrored: Mirrored) -> None:
    mirrored.catches_up("t")
    before = _snapshots(mirrored)[-1]
    mirrored.database.execute("ALTER TABLE t ADD COLUMN x int DEFAULT 5")
    with mirrored.running():
        mirrored.becomes_equal("t")
    assert _snapshots(mirrored)[-1] != before
    _roll_back(mirrored, before)
    _stays_refused_until_a_resync(mirrored)


def test_a_table_renamed_away_while_another_has_its_name_goes_on_without_a_hole(mirrored: Mirrored) -> None:
    mirrored.catches_up("t")
    with open_catalog(mirrored.lake) as catalog:
        catalog.rename_table(("public", "t"), ("public", "aside"))
        rows = pa.table({"id": pa.array([7], pa.int32())})
        catalog.create_table(("public", "t"), schema=rows.schema, location=str(mirrored.lake / "other")).append(rows)
    for number in range(100, 104):
        mirrored.database.execute(f"INSERT INTO t VALUES ({number}, 1)")
        refused = missed(mirrored.once())["t"]
        assert "did not make" in str(refused.error)
    with open_catalog(mirrored.lake) as catalog:
        catalog.drop_table(("public", "t"))
        catalog.rename_table(("public", "aside"), ("public", "t"))
    mirrored.catches_up("t")


@pytest.mark.slow
def test_a_table_that_comes_back_after_its_changes_were_deleted_is_refused(mirrored: Mirrored) -> None:
    """While the lake has no such table it needs a copy, so its changes are deleted; its old version is not continued."""
    mirrored.catches_up("t")
    with open_catalog(mirrored.lake) as catalog:
        catalog.rename_table(("public", "t"), ("public", "aside"))
    for number in (100, 101):
        mirrored.database.execute(f"INSERT INTO t VALUES ({number}, 1)")
        mirrored.once()
    with open_catalog(mirrored.lake) as catalog:
        if catalog.table_exists(("public", "t")):
            catalog.drop_table(("public", "t"))
        catalog.rename_table(("public", "aside"), ("public", "t"))
    _stays_refused_until_a_resync(mirrored)
