"""A value that its lake type can't hold: the error names column and key, and its remedy works."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import Mirrored, missed

from remedies import heals
from servers import Database
from wal2lake.mirror import Mirror
from wal2lake.observe.status import TableStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# table -> type of its column, a value that fits, one that does not
UNFIT = {
    "amounts": ("numeric(10,2)", "1.50", "NaN"),
    "moments": ("timestamptz", "2024-01-01 00:00:00+00", "infinity"),
    "lists": ("int[]", "{1,2}", "{{1,2},{3,4}}"),
}
KEY = 4711


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    for name, (type, fits, _) in UNFIT.items():
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, c {type}); INSERT INTO {name} VALUES (1, '{fits}')")
    database.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    return Mirrored(database, tmp_path / "lake", spark)


def _spoil(database: Database) -> None:
    for name, (_, fits, does_not) in UNFIT.items():
        database.execute(f"INSERT INTO {name} VALUES (2, '{fits}')")
        database.execute(f"INSERT INTO {name} VALUES (3, '{fits}'), ({KEY}, '{does_not}')")
        database.execute(f"INSERT INTO {name} VALUES (5, '{fits}')")
    database.execute("INSERT INTO other VALUES (2)")


def _assert_explained(table: TableStatus) -> None:
    assert "column c " in f"{table.error}" and f"id={KEY}" in f"{table.error}".replace(" ", ""), table.error


def _follow_remedies(mirrored: Mirrored, tables: dict[str, TableStatus]) -> None:
    """Do literally what the texts say: a section of the configuration, then a command."""
    sections: dict[str, Any] = {}
    commands: list[list[str]] = []
    for table in tables.values():
        found = re.fullmatch(
            r"set (?P<head>\[tables\..*\]) (?P<body>types = .*) in the configuration, then: wal2lake tables resync (?P<names>.*)",
            f"{table.remedy}",
        )
        assert found, table.remedy
        sections |= tomllib.loads(f"{found['head']}\n{found['body']}")["tables"]
        commands.append(shlex.split(found["names"]))
    mirrored.configure(tables=sections)
    for names in commands:
        Mirror(mirrored.config).resync(names)


@heals("ValueRefused")
def test_found_by_the_copy(mirrored: Mirrored) -> None:
    _spoil(mirrored.database)
    refused = missed(mirrored.once())
    assert set(refused) == set(UNFIT)
    for table in refused.values():
        _assert_explained(table)
    mirrored.equal("other")
    _follow_remedies(mirrored, refused)
    mirrored.catches_up(*UNFIT, "other")


@pytest.mark.slow
def test_found_in_the_stream(mirrored: Mirrored) -> None:
    with mirrored.running():
        mirrored.is_streaming(*UNFIT, "other")
        _spoil(mirrored.database)
        refused = {name: mirrored.fails(name) for name in UNFIT}
        for table in refused.values():
            _assert_explained(table)
        mirrored.follows("other")
        mirrored.slot_passes(mirrored.now())
    _follow_remedies(mirrored, refused)
    mirrored.catches_up(*UNFIT, "other")
    for name, (_, fits, does_not) in UNFIT.items():
        mirrored.database.execute(
            f"UPDATE {name} SET c = '{does_not}' WHERE id = 1; UPDATE {name} SET c = '{fits}' WHERE id = {KEY}"
        )
    mirrored.catches_up(*UNFIT, "other")
