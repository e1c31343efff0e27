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
def test_a_lake_table_of_others_is_refused_and_a_directory_of_others_stays(
    project: Project, database: Database
) -> None:
    for name in ("taken", "beside", "free"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1), (2)")
    project.lake.mkdir()
    with open_catalog(project.lake) as catalog:
        catalog.create_namespace("public")
        rows = pa.table({"id": pa.array([7, 8, 9], pa.int32())})
        catalog.create_table(("public", "taken"), schema=rows.schema).append(rows)
    theirs = project.lake / "public" / "beside"
    theirs.mkdir(parents=True)
    (theirs / "precious.txt").write_text("not a table")
    before = {name: _contents(project.lake / "public" / name) for name in ("taken", "beside")}

    project.configure(database.dsn)
    ended = project.run("run", "--once")
    assert ended.code == 1, ended.all
    ((error, remedy),) = lines_of_error(ended.err)
    assert "public.taken" in error and "did not make" in error and "rename or drop" in remedy
    assert_equal_tables(database, project.lake, ["free", "beside"])
    assert {name: _contents(project.lake / "public" / name) for name in before} == before
    with open_catalog(project.lake) as catalog:
        assert catalog.load_table(("public", "taken")).scan().to_arrow()["id"].to_pylist() == [7, 8, 9]

    database.execute("INSERT INTO free VALUES (3); INSERT INTO taken VALUES (3)")
    assert project.run("run", "--once").code == 1
    assert_equal_tables(database, project.lake, ["free", "beside"])
    assert {name: _contents(project.lake / "public" / name) for name in before} == before
