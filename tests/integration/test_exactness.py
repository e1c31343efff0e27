"""Values are exact: whatever PostgreSQL can hold in a column comes out of the lake the same, by copy and by stream.

Hypothesis makes tables of random columns and rows. A third of the rows is there for the copy, a third is streamed as
inserts, a third as updates of copied rows; so each value goes both ways, and pyiceberg's rows must be PostgreSQL's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conftest import ConfigFactory
from oracle import assert_equal_tables
from servers import Database, can_declare
from wal2lake.config import Config
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES_SQL = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy', 'quo''te"d, \\ é');
    CREATE TYPE pair AS (a int, b text);
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE DOMAIN short_text AS varchar(20);
    CREATE DOMAIN cents AS numeric(12,2);
"""


def _float(width: int) -> st.SearchStrategy[str]:
    plain = st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=True).map(repr)  # type: ignore[arg-type]
    return plain | st.sampled_from(["NaN", "Infinity", "-Infinity", "-0", "0"])


def _numeric(precision: int, scale: int) -> st.SearchStrategy[str]:
    most = 10**precision - 1

    def text(number: int) -> str:
        digits = str(abs(number)).rjust(scale + 1, "0")
        whole, fraction = (digits[:-scale], "." + digits[-scale:]) if scale else (digits, "")
        return ("-" if number < 0 else "") + whole + fraction

    return st.integers(-most, most).map(text) | st.sampled_from([text(most), text(-most), "0"])


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "",
        "NULL",
        "null",
        "\\N",
        "\\",
        '"',
        "'",
        "a\tb\nc\r\nd",
        "\\x00",
        "\\u0000",
        "{}",
        "{a,b}",
        "é表😀",
        "\u200b",
        "t",
        "NaN",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
).map(lambda value: json.dumps(value, ensure_ascii=True))
DATE = st.dates().map(str) | st.sampled_from(
    ["0001-01-01", "9999-12-31", "1582-10-04", "1582-10-15", "1970-01-01", "1900-02-28"]
)
TIME = st.times().map(str) | st.sampled_from(["00:00:00", "24:00:00", "23:59:59.999999"])
TIMESTAMP = st.datetimes().map(str) | st.sampled_from(
    ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999", "2024-03-31 02:30:00"]
)
ZONE = st.sampled_from(["+00", "+05:30", "-08", " Europe/Berlin", " America/New_York"])
MOMENTS = ["01-01 00:00:00", "03-31 02:30:00", "10-27 02:30:00.5", "06-15 12:34:56.789012", "12-31 23:59:59.999999"]
TIMESTAMPTZ = st.builds("{:04d}-{}{}".format, st.integers(2, 9998), st.sampled_from(MOMENTS), ZONE)
INET = st.ip_addresses().map(str) | st.sampled_from(["10.0.0.0/8", "::/0", "192.168.1.5/24"])
INTERVAL = st.builds(
    "{} mons {} days {}{} secs".format,
    st.integers(-50, 50),
    st.integers(-99, 99),
    st.sampled_from(["", "-"]),
    st.integers(0, 99999),
)
SCALARS: dict[str, st.SearchStrategy[str]] = {
    "boolean": st.sampled_from(["t", "f"]),
    "int2": st.integers(-(2**15), 2**15 - 1).map(str),
    "int4": st.integers(-(2**31), 2**31 - 1).map(str),
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "float4": _float(32),
    "float8": _float(64),
    "numeric(10,2)": _numeric(10, 2),
    "numeric(38,38)": _numeric(38, 38),
    "numeric(38,0)": _numeric(38, 0),
    "numeric(5,-2)": st.integers(-99999, 99999).map(lambda n: str(n * 100)),
    "numeric(60,5)": _numeric(60, 5),
    "numeric": _numeric(50, 20) | st.sampled_from(["NaN", "Infinity", "-Infinity", "1.10", "1.1", "0.000", "-0.0"]),
    "text": TEXT,
    "varchar(40)": TEXT,
    "char(8)": st.text("ab é", max_size=8),
    "name": st.text("abc_é", max_size=20),
    '"char"': st.sampled_from(["a", ""]),
    "uuid": st.uuids().map(str),
    "inet": INET,
    "cidr": st.sampled_from(["10.0.0.0/8", "10.1.2.3/32", "::1/128"]),
    "macaddr": st.sampled_from(["08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"]),
    "interval": INTERVAL,
    "int4range": st.sampled_from(["empty", "[1,5)", "(,3)", "(,)"]),
    "tstzrange": st.sampled_from(["empty", "[2024-01-01 00:00+02,2024-02-01 00:00+00)"]),
    "tsvector": st.sampled_from(["'a':1 'b':2", ""]),
    "bit(8)": st.integers(0, 255).map(lambda n: f"{n:08b}"),
    "varbit": st.integers(0, 255).map(lambda n: f"{n:b}"),
    "money": st.integers(-(10**9), 10**9).map(lambda n: str(n / 100)),
    "json": JSON,
    "jsonb": JSON.filter(lambda text: "\\u0000" not in text),
    "bytea": st.binary(max_size=40).map(lambda b: "\\x" + b.hex()) | st.just("\\x" + bytes(range(256)).hex()),
    "date": DATE,
    "time": TIME,
    "timetz": st.sampled_from(["12:00:00+02", "23:59:59.123456-11"]),
    "timestamp": TIMESTAMP,
    "timestamp(3)": TIMESTAMP.filter(lambda text: "9999-12" not in text),
    "timestamptz": TIMESTAMPTZ,
    "mood": st.sampled_from(["sad", "ok", "very happy", "quo'te\"d, \\ é"]),
    "pair": st.sampled_from(["(1,a)", '(,"x y")', "(2,)", '(3,"quo""te, é")']),
    "positive": st.integers(1, 1000).map(str),
    "short_text": st.text("abc é", max_size=20),
    "cents": _numeric(12, 2),
    "oid": st.integers(0, 2**32 - 1).map(str),
    "point": st.sampled_from(["(1,2)", "(-1.5,0)"]),
    "box": st.sampled_from(["(3,4),(1,2)"]),
    "pg_lsn": st.sampled_from(["0/0", "16/B374D848"]),
}
SCALARS = {name: values for name, values in SCALARS.items() if can_declare(name)}
ARRAYED = [name for name in SCALARS if name not in ('"char"', "name", "box")]


def _array(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def literal(values: Sequence[str | None]) -> str:
        quoted = ("NULL" if v is None else '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values)
        return "{" + ",".join(quoted) + "}"

    return st.lists(st.none() | elements, max_size=4).map(literal)


COLUMN_TYPES: dict[str, st.SearchStrategy[str]] = {
    **SCALARS,
    **{f"{name}[]": _array(SCALARS[name]) for name in ARRAYED},
    "int4[][]": st.sampled_from(["{{1,2},{3,4}}", "{}", "{1}"]),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str | None]]]:
    """Column types, and rows of values as text."""
    types = draw(st.lists(st.sampled_from(sorted(COLUMN_TYPES)), min_size=6, max_size=14))
    row = st.tuples(*(st.none() | COLUMN_TYPES[name] for name in types)).map(list)
    return types, draw(st.lists(row, min_size=6, max_size=18))


def _create(database: Database, name: str, types: Sequence[str]) -> None:
    columns = ", ".join(f"c{i} {type_name}" for i, type_name in enumerate(types))
    database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, {columns})")


def _insert(database: Database, name: str, types: Sequence[str], key: int, row: Sequence[str | None]) -> None:
    values = ", ".join(f"%s::{type_name}" for type_name in types)
    database.execute(f"INSERT INTO {name} VALUES (%s, {values})", [key, *row])


def _update(database: Database, name: str, types: Sequence[str], key: int, row: Sequence[str | None]) -> None:
    values = ", ".join(f"c{i} = %s::{type_name}" for i, type_name in enumerate(types))
    database.execute(f"UPDATE {name} SET {values} WHERE id = %s", [*row, key])


def check_exact(
    database: Database, config: Config, spark: SparkSession, made: Sequence[tuple[list[str], list[list[str | None]]]]
) -> None:
    database.execute(TYPES_SQL)
    names = [f"t{number}" for number in range(len(made))]
    for name, (types, rows) in zip(names, made, strict=True):
        _create(database, name, types)
        for key, row in enumerate(rows[::2]):
            _insert(database, name, types, key, row)
    copied = Mirror(config, spark).run_once()
    assert [(table.name, table.error) for table in copied.missed] == []
    assert_equal_tables(database, config.lake_path, names)
    for name, (types, rows) in zip(names, made, strict=True):
        for key, row in enumerate(rows[1::2]):
            _insert(database, name, types, 1000 + key, row)
            _update(database, name, types, key, row)
    followed = Mirror(config, spark).run_once()
    assert [(table.name, table.error) for table in followed.missed] == []
    assert_equal_tables(database, config.lake_path, names)


def test_the_values_that_hurt_of_every_type(database: Database, config: ConfigFactory, spark: SparkSession) -> None:
    """Every column type, a dozen to a table, with the values that hurt, and NULL."""
    edges: dict[str, list[str]] = {
        "text": ["", "\\N", "NULL", "a\tb\nc\\d", "😀", "x" * 10_000_000],
        "float8": ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1"],
        "float4": ["NaN", "1e-45", "3.4028235e38", "-0", "0.1"],
        "timestamptz": ["0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "2024-03-31 02:30:00 Europe/Berlin"],
        "date": ["0001-01-01", "9999-12-31", "1582-10-10"],
        "bytea": ["\\x", "\\x" + bytes(range(256)).hex()],
        "text[]": ["{}", '{NULL,"NULL","",a}', '{"a\\"b","c\\\\d","{}",","}'],
        "json": ['{"a":  1, "a": 2}', '"\\u00e9\\ud83d\\ude00"'],
        "char(8)": ["a  ", ""],
    }
    columns = {
        name: [*(edges.get(name) or [_example(strategy, seed) for seed in range(4)]), None]
        for name, strategy in sorted(COLUMN_TYPES.items())
    }
    made: list[tuple[list[str], list[list[str | None]]]] = []
    for names in _dozens(list(columns)):
        height = max(len(columns[name]) for name in names)
        # Each row stands twice: one goes with the copy, the other comes by the stream.
        rows = [[columns[name][i % len(columns[name])] for name in names] for i in range(height) for _ in range(2)]
        made.append((list(names), rows))
    check_exact(database, config(), spark, made)


def _dozens(names: list[str]) -> list[list[str]]:
    return [names[i : i + 12] for i in range(0, len(names), 12)]


def _example(strategy: st.SearchStrategy[str], seed: int) -> str:
    found: list[str] = []

    @settings(max_examples=seed + 1, database=None, derandomize=True, phases=[Phase.generate])
    @given(strategy)
    def collect(value: str) -> None:
        found.append(value)

    collect()
    return found[-1]


def test_random_tables_come_out_exactly(database: Database, config: ConfigFactory, spark: SparkSession) -> None:
    made: list[tuple[list[str], list[list[str | None]]]] = []

    @settings(
        max_examples=10, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(tables())
    def collect(table: tuple[list[str], list[list[str | None]]]) -> None:
        made.append(table)

    collect()
    try:
        check_exact(database, config(), spark, made)
    except BaseException as error:
        error.add_note(f"the tables were {made!r}")
        raise
