"""Types whose text is more than their name says: copy and stream give the same values, and follow the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirroring import Mirrored

from lake_history import read_lake
from servers import Database
from wal2lake.schema import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPED = """
    CREATE TYPE piped;
    CREATE FUNCTION piped_in(cstring) RETURNS piped AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
    CREATE FUNCTION piped_out(piped) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
    CREATE TYPE piped (INPUT = piped_in, OUTPUT = piped_out, LIKE = text, DELIMITER = '|');
    CREATE DOMAIN boxes AS box[];
    CREATE DOMAIN one_box AS box;
"""


def _rows(lake: Path, table: str) -> list[dict[str, Any]]:
    return sorted(read_lake(lake, TableId("public", table)), key=lambda row: row["id"])


def test_array_elements_are_told_apart_by_the_delimiter_of_their_type(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(PIPED)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, plain box[], of_domain boxes, over_domain one_box[], own piped[])"
    )
    row = "'{(1,1),(0,0);(2,2),(1,1)}', '{(1,1),(0,0);(2,2),(1,1)}', '{(1,1),(0,0);NULL}', '{a,b|c;d|NULL}'"
    database.execute(f"INSERT INTO t VALUES (1, {row})")
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    assert not mirrored.once().missed
    database.execute(f"INSERT INTO t VALUES (2, {row})")
    assert not mirrored.once().missed
    copied, streamed = _rows(tmp_path / "lake", "t")
    assert {**streamed, "id": 1} == copied
    assert copied == {
        "id": 1,
        "plain": ["(1,1),(0,0)", "(2,2),(1,1)"],
        "of_domain": ["(1,1),(0,0)", "(2,2),(1,1)"],
        "over_domain": ["(1,1),(0,0)", None],
        "own": ["a,b", "c;d", None],
    }
