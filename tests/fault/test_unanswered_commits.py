"""The lake did the work, then its answer was lost: whatever is done next, nothing is missing and nothing is there twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import PATIENCE, Mirrored

from servers import Database
from waiting import wait_until
from wal2lake.demo.compare import open_catalog
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.mirror import Mirror
from wal2lake.state import GroupSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("counters", "journal")


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    """A counter shows a change that is applied twice by its value, a table without a key by a second row."""
    database.execute(
        "CREATE TABLE counters (id int PRIMARY KEY, n numeric(6)); CREATE TABLE journal (line text);"
        "ALTER TABLE journal REPLICA IDENTITY FULL;"
        "INSERT INTO counters SELECT i, 0 FROM generate_series(1, 20) i; INSERT INTO journal VALUES ('first'), ('first')"
    )
    return Mirrored(database, tmp_path / "lake", spark)


def _change(mirrored: Mirrored) -> None:
    mirrored.database.execute(
        "UPDATE counters SET n = n + 1 WHERE id <= 10; INSERT INTO journal VALUES ('more'), ('more')"
    )


def _replace(mirrored: Mirrored) -> None:
    _change(mirrored)
    mirrored.resync()


def _evolve(mirrored: Mirrored) -> None:
    mirrored.database.execute("ALTER TABLE counters ADD COLUMN x int; ALTER TABLE journal RENAME line TO text")
    mirrored.database.execute(
        "UPDATE counters SET n = n + 1, x = 3 WHERE id <= 10; INSERT INTO journal VALUES ('more')"
    )


def _fill(mirrored: Mirrored) -> None:
    mirrored.database.execute("ALTER TABLE counters ADD COLUMN x int DEFAULT 7; UPDATE counters SET n = n + 1")
    mirrored.database.execute(
        "ALTER TABLE journal ADD COLUMN y text DEFAULT 'why'; INSERT INTO journal VALUES ('more')"
    )


def _nothing(_: Mirrored) -> None:
    """The initial copy does it."""


def _loses_its_answer(monkeypatch: pytest.MonkeyPatch, method: str, times: int) -> list[str]:
    """Let the first calls of a method do their work and then fail; what was lost so far."""
    original: Callable[..., Any] = getattr(IcebergTables, method)
    lost: list[str] = []

    def late(self: IcebergTables, *args: Any, **named: Any) -> Any:
        answer = original(self, *args, **named)
        if len(lost) < times:
            lost.append(method)
            raise RuntimeError("the answer is lost")
        return answer

    monkeypatch.setattr(IcebergTables, method, late)
    return lost


@pytest.mark.parametrize(
    ("method", "cause"),
    [
        pytest.param("publish", _change, id="apply"),
        pytest.param("create", _nothing, id="copy", marks=pytest.mark.slow),
        pytest.param("publish", _replace, id="resync-published"),
        pytest.param("replace", _replace, id="resync", marks=pytest.mark.slow),
        pytest.param("evolve", _evolve, id="columns", marks=pytest.mark.slow),
        pytest.param("replace", _fill, id="filled columns", marks=pytest.mark.slow),
    ],
)
def test_a_commit_whose_answer_is_lost_is_made_once(
    method: str, cause: Callable[[Mirrored], None], mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cause is not _nothing:
        mirrored.catches_up(*TABLES)
        cause(mirrored)
    lost = _loses_its_answer(monkeypatch, method, 2)
    mirrored.once()
    assert lost == [method] * 2
    mirrored.catches_up(*TABLES)
    _change_again(mirrored)
    mirrored.catches_up(*TABLES)


def _change_again(mirrored: Mirrored) -> None:
    mirrored.database.execute("UPDATE counters SET n = n + 1; DELETE FROM journal WHERE ctid = '(0,1)'")


def test_a_drop_whose_answer_is_lost_leaves_nothing(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored.catches_up(*TABLES)
    Mirror(mirrored.config).remove(["public.journal"], drop_lake=True)
    lost = _loses_its_answer(monkeypatch, "drop", 1)
    for _ in range(2):
        mirrored.once()
    assert lost == ["drop"]
    mirrored.catches_up("counters")
    with open_catalog(mirrored.lake) as catalog:
        assert [name for _, name in catalog.list_tables("public")] == ["counters"]
    assert not list((mirrored.lake / "public").glob("journal*"))


def test_a_rename_whose_answer_is_lost_is_finished(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored.configure(groups=[{"name": "default", "flush_interval": 0.1, "on_rename": "rename"}])
    mirrored.catches_up(*TABLES)
    mirrored.database.execute("ALTER TABLE journal RENAME TO diary; INSERT INTO diary VALUES ('renamed')")
    lost = _loses_its_answer(monkeypatch, "rename", 1)
    mirrored.once()
    assert lost == ["rename"]
    mirrored.catches_up("counters", "diary")
    mirrored.database.execute("INSERT INTO diary VALUES ('more')")
    mirrored.catches_up("counters", "diary")


def test_a_move_whose_answer_is_lost_goes_on_without_a_copy(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that a table comes to writes a position record of its own for the rows that are there."""
    mirrored.catches_up(*TABLES)
    mirror = Mirror(mirrored.config)
    with mirrored.running():
        mirrored.is_streaming(*TABLES)
        mirror.create_group(GroupSpec("second", True, flush_interval=0.1))
        wait_until(lambda: mirror.status().groups[-1].state == "RUNNING", PATIENCE, mirror.groups)
        lost = _loses_its_answer(monkeypatch, "restate", 2)
        _change(mirrored)
        mirror.move([f"public.{name}" for name in TABLES], "second")
        wait_until(lambda: {table.group for table in mirror.tables()} == {"second"}, PATIENCE, mirror.tables)
        _change_again(mirrored)
        mirrored.follows(*TABLES)
    assert lost == ["restate"] * 2
    for name in TABLES:
        assert [entry.after for entry in mirror.history(f"public.{name}")].count("SNAPSHOT") == 1
