"""The comparison that all proofs rest on must itself see every difference."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oracle import assert_equal_tables
from servers import Database
from wal2lake.demo.compare import open_catalog

MOMENT = datetime(2024, 3, 31, 1, 30, 0, 123456)
ROW: dict[str, tuple[str, Any, Any]] = {
    # column: (declaration and value in SQL, Arrow type, the value that the lake should have)
    "b": ("boolean = true", pa.bool_(), True),
    "i": ("smallint = -32768", pa.int32(), -32768),
    "l": ("bigint = 9223372036854775807", pa.int64(), 2**63 - 1),
    "f": ("real = 0.1", pa.float32(), 0.1),
    "g": ("float8 = '-0'", pa.float64(), -0.0),
    "nan": ("float8 = 'NaN'", pa.float64(), float("nan")),
    "inf": ("float8 = '-Infinity'", pa.float64(), float("-inf")),
    "tiny": ("float8 = 5e-324", pa.float64(), 5e-324),
    "d": ("numeric(38,10) = 0.0000000001", pa.decimal128(38, 10), Decimal("0.0000000001")),
    "n": ("numeric = 1.500", pa.string(), "1.500"),
    "t": ("text = E'a,\"b\"\\n\\r\\n\\\\N\\t😀'", pa.string(), 'a,"b"\n\r\n\\N\t😀'),
    "empty": ("text = ''", pa.string(), ""),
    "null": ("text = NULL", pa.string(), None),
    "c": ("char(4) = 'ab'", pa.string(), "ab  "),
    "y": ("bytea = '\\x00ff0a5c'", pa.binary(), b"\x00\xff\n\\"),
    "day": ("date = '0001-01-01'", pa.date32(), date(1, 1, 1)),
    "ts": ("timestamp = '9999-12-31 23:59:59.999999'", pa.timestamp("us"), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "tz": (
        "timestamptz = '2024-03-31 03:30:00.123456+02'", pa.timestamp("us", "UTC"),
        MOMENT.replace(tzinfo=UTC),
    ),
    "a": ("text[] = ARRAY['x', NULL, 'NULL', '', 'a\"b\\c,d', 'é']", pa.list_(pa.string()),
          ["x", None, "NULL", "", 'a"b\\c,d', "é"]),
    "ai": ("int[] = '{}'", pa.list_(pa.int32()), []),
    "an": ("int[] = NULL", pa.list_(pa.int32()), None),
    "af": ("float8[] = '{1,NaN,-0}'", pa.list_(pa.float64()), [1.0, float("nan"), -0.0]),
    "at": ("timestamptz[] = '{2024-03-31 03:30:00.123456+02}'", pa.list_(pa.timestamp("us", "UTC")),
           [MOMENT.replace(tzinfo=UTC)]),
    "ay": ("bytea[] = ARRAY['\\x00'::bytea, NULL]", pa.list_(pa.binary()), [b"\0", None]),
}  # fmt: skip
OTHER: dict[str, Any] = {
    "b": None, "i": 0, "l": 1, "f": 0.2, "g": 0.0, "nan": 1.0, "inf": float("inf"), "tiny": 0.0,
    "d": Decimal("0.0000000002"), "n": "1.5", "t": 'a,"b"\n\n\\N\t😀', "empty": None, "null": "", "c": "ab",
    "y": b"\x00\xff\n", "day": date(1, 1, 2), "ts": datetime(9999, 12, 31, 23, 59, 59), "tz": None,
    "a": ["x", "NULL", None, "", 'a"b\\c,d', "é"], "ai": None, "an": [], "af": [1.0, float("nan"), 0.0],
    "at": [], "ay": [b"\0", b""],
}  # fmt: skip


def _lake(lake: Path, name: str, table: Any) -> None:
    lake.mkdir(exist_ok=True)
    with open_catalog(lake) as catalog:
        catalog.create_namespace_if_not_exists("public")
        catalog.create_table(("public", name), table.schema).append(table)


def _one_row(database: Database, lake: Path, changed: dict[str, Any]) -> None:
    columns = {name: declaration.split(" = ", 1) for name, (declaration, _, _) in ROW.items()}
    declared = ", ".join(f'"{name}" {kind}' for name, (kind, _) in columns.items())
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {declared})")
    database.execute(f"INSERT INTO t VALUES (1, {', '.join(value for _, value in columns.values())})")
    values = {name: changed.get(name, value) for name, (_, _, value) in ROW.items()}
    table = {"id": pa.array([1], pa.int32())} | {n: pa.array([values[n]], ROW[n][1]) for n in ROW}
    _lake(lake, "t", pa.table(table))


def test_equal_rows_of_every_type_are_equal(database: Database, tmp_path: Path) -> None:
    _one_row(database, tmp_path / "lake", {})
    assert_equal_tables(database, tmp_path / "lake", ["t"])


@pytest.mark.parametrize("column", list(ROW))
def test_another_value_is_seen_in_a_column_of_every_type(database: Database, tmp_path: Path, column: str) -> None:
    _one_row(database, tmp_path / "lake", {column: OTHER[column]})
    with pytest.raises(AssertionError, match=f"1: differs in {column}$"):
        assert_equal_tables(database, tmp_path / "lake", ["public.t"])


def test_rows_are_counted_as_a_multiset(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (v text); INSERT INTO t VALUES ('a'), ('a'), ('b'), (NULL)")
    _lake(tmp_path / "lake", "t", pa.table({"v": pa.array(["a", "b", "b", None])}))
    with pytest.raises(AssertionError, match="1 missing in the lake, 1 not in PostgreSQL"):
        assert_equal_tables(database, tmp_path / "lake", ["t"])


def test_a_missing_and_an_extra_row_are_named_by_their_keys(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    _lake(tmp_path / "lake", "t", pa.table({"id": pa.array([2, 3], pa.int32())}))
    with pytest.raises(AssertionError, match=r"(?s)1: missing in the lake.*3: not in PostgreSQL"):
        assert_equal_tables(database, tmp_path / "lake", ["t"])


def test_a_column_that_only_one_side_has_is_seen(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, gone int)")
    _lake(tmp_path / "lake", "t", pa.table({"id": pa.array([], pa.int32())}))
    with pytest.raises(AssertionError, match="gone"):
        assert_equal_tables(database, tmp_path / "lake", ["t"])


def test_empty_tables_are_equal(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text[])")
    _lake(tmp_path / "lake", "t", pa.table({"id": pa.array([], pa.int32()), "v": pa.array([], pa.list_(pa.string()))}))
    assert_equal_tables(database, tmp_path / "lake", ["t"])
