"""A place in the lake that is not ours is never written to; the tables beside it are mirrored all the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest
from mirroring import lines_of_error

from command import Project
from oracle import assert_equal_tables
from servers import Database
from wal2lake.demo.compare import open_catalog


def _contents(directory: Path) -> dict[str, str]:
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in directory.rglob("*")
        if file.is_file()
    }


@pytest.mark.slow
def test_a_lake_table_and_a_directory_of_somebody_else_are_refused(project: Project, database: Database) -> None:
    for name in ("taken", "occupied", "free"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1), (2)")
    project.lake.mkdir()
    with open_catalog(project.lake) as catalog:
        catalog.create_namespace("public")
        rows = pa.table({"id": pa.array([7, 8, 9], pa.int32())})
        catalog.create_table(("public", "taken"), schema=rows.schema).append(rows)
    occupied = project.lake / "public" / "occupied"
    occupied.mkdir(parents=True)
    (occupied / "precious.txt").write_text("not a table")
    before = {name: _contents(project.lake / "public" / name) for name in ("taken", "occupied")}

    project.configure(database.dsn)
    ended = project.run("run", "--once")
    assert ended.code == 1, ended.all
    pairs = lines_of_error(ended.err)
    assert [name for name in ("occupied", "taken") for error, _ in pairs if f"public.{name}" in error] == [
        "occupied", "taken",
    ], ended.err  # fmt: skip
    assert len(pairs) == 2, ended.err
    for error, remedy in pairs:
        assert "did not make" in error and "rename or drop" in remedy
    assert_equal_tables(database, project.lake, ["free"])
    assert {name: _contents(project.lake / "public" / name) for name in before} == before
    with open_catalog(project.lake) as catalog:
        assert catalog.load_table(("public", "taken")).scan().to_arrow()["id"].to_pylist() == [7, 8, 9]

    database.execute("INSERT INTO free VALUES (3); INSERT INTO taken VALUES (3)")
    assert project.run("run", "--once").code == 1
    assert_equal_tables(database, project.lake, ["free"])
    assert {name: _contents(project.lake / "public" / name) for name in before} == before
