"""The benchmark's comparison of contents finds a wrong value, a row too many, and a row too few."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest
from bench.contents import COMMIT, OP, SEQ, SourceTable, overlaid, require_same_rows
from bench.model import WrongData

from servers import Database

TABLE = """
    CREATE TABLE things (
        id bigint PRIMARY KEY, name text, amount numeric(10,2), at timestamptz, day date, good boolean, size float8)
"""
ROWS = """
    INSERT INTO things SELECT n, 'thing ' || n, n / 10.0, timestamptz '2024-02-29 12:00:00.000001Z', date '2024-02-29', n % 2 = 0, n / 3.0
    FROM generate_series(1, 4) n UNION ALL SELECT 5, NULL, NULL, NULL, NULL, NULL, NULL
"""


@pytest.fixture
def table(database: Database) -> Any:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        yield SourceTable(connection, "things"), connection


def changes(rows: Any, *ops: str) -> Any:
    """Changes in the lake's types, as a segment has them."""
    count = rows.num_rows
    return rows.append_column(OP, [list(ops)]).append_column(COMMIT, [[7] * count]).append_column(SEQ, [range(count)])


def test_inserts_of_every_kind_of_value_make_the_table(table: Any) -> None:
    source, connection = table
    before = source.read()
    connection.execute(ROWS)
    rows = source.read()
    require_same_rows("things", overlaid(source, before, changes(rows, *"IIIII")), rows)


def test_lake_types_are_compared_with_what_postgres_holds(table: Any) -> None:
    source, connection = table
    connection.execute(ROWS)
    rows = source.read()
    at, day = rows["at"].cast(pa.timestamp("us", "UTC")), rows["day"].cast(pa.int32()).cast(pa.date32())
    lake = rows.set_column(3, "at", at).set_column(4, "day", day)
    lake = lake.set_column(2, "amount", lake["amount"].cast(pa.decimal128(10, 2)))
    lake = lake.set_column(5, "good", lake["good"].cast(pa.bool_()))
    require_same_rows("things", source.comparable(lake), rows)


def test_updates_and_deletes_lie_over_the_rows_before(table: Any) -> None:
    source, connection = table
    connection.execute(ROWS)
    before = source.read()
    connection.execute("UPDATE things SET name = 'first' WHERE id = 2")
    first = source.read("id = 2")
    connection.execute("UPDATE things SET name = 'last' WHERE id = 2; DELETE FROM things WHERE id = 3")
    log = pa.concat_tables([first, source.read("id = 2"), before.slice(2, 1)])
    require_same_rows("things", overlaid(source, before, changes(log, *"UUD")), source.read())


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda rows: rows.slice(1), "1 of PostgreSQL's are missing, 0 are not"),
        (lambda rows: pa.concat_tables([rows, rows.slice(4)]), "0 of PostgreSQL's are missing, 1 are not"),
        (lambda rows: rows.set_column(1, "name", pa.array(["thing 1", "thing 2", "thing 3", "other", None])), "1 of"),
        (lambda rows: rows.set_column(1, "name", pa.array(["thing 1", "thing 2", "thing 3", "thing 4", ""])), "1 of"),
    ],
    ids=["a row too few", "a row twice", "another value", "empty text for NULL"],
)
def test_wrong_data_are_found(table: Any, wrong: Any, found: str) -> None:
    source, connection = table
    connection.execute(ROWS)
    rows = source.read()
    with pytest.raises(WrongData, match=found):
        require_same_rows("things", wrong(rows), rows)
