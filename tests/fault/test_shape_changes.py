"""A table whose shape changes stops with what changed and the remedy; the others go on; the remedy works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored, missed

from servers import Database
from wal2lake.observe.status import TableStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = {
    "added": ("ADD COLUMN extra text DEFAULT 'e'", "extra"),
    "dropped": ("DROP COLUMN v", "v"),
    "retyped": ("ALTER COLUMN n TYPE text", "n"),
}


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    for name in (*CHANGES, "other"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int, v text);"
            f"INSERT INTO {name} SELECT i, i, 'v' FROM generate_series(1, 20) i"
        )
    return Mirrored(database, tmp_path / "lake", spark)


def _alter(database: Database) -> None:
    """DDL between changes of every table, those that come after it in another transaction too."""
    for name, (ddl, _) in CHANGES.items():
        database.execute(f"UPDATE {name} SET n = n + 1 WHERE id = 1")
        database.execute(f"ALTER TABLE {name} {ddl}; DELETE FROM {name} WHERE id = 2")
        database.execute(f"DELETE FROM {name} WHERE id = 3")
    database.execute("DELETE FROM other WHERE id = 3")


def _assert_explained(name: str, table: TableStatus) -> None:
    column = CHANGES[name][1]
    assert f"column {column} " in f"{table.error}", table.error
    assert f"wal2lake tables resync 'public.{name}'" in f"{table.remedy}", table.remedy


def test_ddl_while_nothing_runs(mirrored: Mirrored) -> None:
    mirrored.catches_up(*CHANGES, "other")
    _alter(mirrored.database)
    stopped = missed(mirrored.once())
    assert set(stopped) == set(CHANGES)
    for name, table in stopped.items():
        _assert_explained(name, table)
    mirrored.equal("other")
    mirrored.resync(*CHANGES)
    mirrored.catches_up(*CHANGES, "other")
    mirrored.database.execute("UPDATE added SET extra = 'x' WHERE id = 5; UPDATE retyped SET n = 'x' WHERE id = 5")
    mirrored.catches_up(*CHANGES, "other")


def test_ddl_while_a_run_is_active(mirrored: Mirrored) -> None:
    with mirrored.running():
        mirrored.is_streaming(*CHANGES, "other")
        _alter(mirrored.database)
        for name in CHANGES:
            _assert_explained(name, mirrored.fails(name))
        position = mirrored.now()
        mirrored.database.execute("UPDATE other SET n = n + 1")
        mirrored.follows("other")
        mirrored.slot_passes(position)
        mirrored.resync(*CHANGES)
        mirrored.follows(*CHANGES)
        mirrored.database.execute("DELETE FROM added WHERE id = 7; INSERT INTO dropped VALUES (100, 1)")
        mirrored.follows(*CHANGES, "other")
