"""Types whose text is more than their name says: copy and stream give the same values, and follow the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import Mirrored

from capture_modes import not_by_triggers
from lake_history import read_lake
from servers import Database
from wal2lake.mirror import Mirror
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


def test_array_elements_are_split_at_the_delimiter_of_their_type(
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


ALTERED = {
    "a label of an enum": "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    "labels that change places": "ALTER TYPE mood RENAME VALUE 'sad' TO 'x'; "
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'sad'; ALTER TYPE mood RENAME VALUE 'x' TO 'ok'",
    "an attribute of a composite": "ALTER TYPE addr ADD ATTRIBUTE zip text CASCADE",
}


@pytest.fixture
def typed(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    """Tables that have a type in a column of its own, in arrays, domains, ranges and composites."""
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad'); CREATE DOMAIN feeling AS mood;"
        "CREATE TYPE moods AS RANGE (SUBTYPE = mood); CREATE TYPE addr AS (street text, m mood);"
        "CREATE TABLE plain (id int PRIMARY KEY, v mood); CREATE TABLE listed (id int PRIMARY KEY, v feeling[]);"
        "CREATE TABLE ranged (id int PRIMARY KEY, v moods); CREATE TABLE nested (id int PRIMARY KEY, v addr[]);"
        "CREATE TABLE other (id int PRIMARY KEY, v text)"
    )
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    _insert(database, 0)
    return mirrored


TYPED = ("plain", "listed", "ranged", "nested", "other")


def _insert(database: Database, first: int) -> None:
    for table, value in {
        "plain": "m", "listed": "ARRAY[m]::feeling[]", "ranged": "moods(m, NULL)", "other": "'x'",
        "nested": "ARRAY[(jsonb_populate_record(NULL::addr, jsonb_build_object('street', 'a', 'm', m)))]",
    }.items():  # fmt: skip
        database.execute(
            f"INSERT INTO {table} SELECT {first} + n, {value} "
            "FROM unnest(enum_range(NULL::mood)) WITH ORDINALITY AS e (m, n)"
        )


@pytest.mark.parametrize("what", ALTERED)
def test_values_follow_a_type_that_was_altered(typed: Mirrored, what: str) -> None:
    typed.catches_up(*TYPED)
    _insert(typed.database, 10)
    typed.database.execute(ALTERED[what])
    _insert(typed.database, 20)
    typed.catches_up(*TYPED)
    _insert(typed.database, 30)
    typed.catches_up(*TYPED)
    copies = {name: _copies(typed, name) for name in TYPED}
    assert copies["other"] == 1 and copies["nested"] == 2
    assert copies["plain"] == (1 if "composite" in what else 2)


def test_a_label_that_is_added_costs_no_copy(typed: Mirrored) -> None:
    typed.catches_up(*TYPED)
    typed.database.execute("ALTER TYPE mood ADD VALUE 'fine' BEFORE 'glad'")
    _insert(typed.database, 10)
    typed.catches_up(*TYPED)
    assert {_copies(typed, name) for name in TYPED} == {1}


def test_a_label_that_is_renamed_under_a_run_and_no_row_follows(typed: Mirrored) -> None:
    with typed.running():
        typed.is_streaming("plain")
        typed.database.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        typed.becomes_equal("plain")


@not_by_triggers
def test_a_column_of_a_type_that_was_never_altered_is_added_without_a_copy(typed: Mirrored) -> None:
    typed.catches_up("plain")
    typed.database.execute("ALTER TABLE plain ADD COLUMN more mood DEFAULT 'sad'; INSERT INTO plain VALUES (50, 'ok')")
    typed.catches_up("plain")
    typed.catches_up("plain")
    assert _copies(typed, "plain") == 1
    typed.database.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    typed.catches_up("plain")


def _copies(mirrored: Mirrored, table: str) -> int:
    """How often a table has begun its copy."""
    history = Mirror(mirrored.config).history(f"public.{table}")
    return sum(entry.after == "SNAPSHOT" for entry in history)
