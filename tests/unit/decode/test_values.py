"""Texts of values are parsed exactly."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_encoder import decode, insert, rows, table
from wal2lake.schema import ReplicaIdentity
from wal2lake.types import slices


def values(lake: str, *texts: str | bytes | None, **column: Any) -> list[Any]:
    """What a column of this lake type holds after these texts were sent; none may be refused."""
    schema = table({"v": lake}, key=(), identity=ReplicaIdentity.FULL)
    schema = replace(schema, columns=(replace(schema.columns[0], **column),))
    cut = decode(schema, *(insert(1000, [text]) for text in texts))
    assert cut.refusals == {}
    return [value for (value,) in rows(cut.tables, "v")]


def test_booleans() -> None:
    assert values("boolean", "t", "f", None, "t") == [True, False, None, True]


def test_whole_numbers_at_their_limits() -> None:
    assert values("int", "-2147483648", "2147483647", "0", None) == [-(2**31), 2**31 - 1, 0, None]
    assert values("long", "-9223372036854775808", "9223372036854775807", None) == [-(2**63), 2**63 - 1, None]


def test_floats_with_their_odd_values() -> None:
    found = values("double", "NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e+308", "0.1", None)
    assert math.isnan(found[0])
    assert found[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, found[3]) == -1
    assert found[4:] == [5e-324, 1.7976931348623157e308, 0.1, None]
    single = values("float", "0.1", "3.4028235e+38", "1e-45", "-0", "NaN")
    assert struct.pack("3f", *single[:3]) == struct.pack("3f", 0.1, 3.4028235e38, 1e-45)
    assert math.copysign(1, single[3]) == -1
    assert math.isnan(single[4])


def test_decimals_are_exact_and_get_the_scale_of_their_column() -> None:
    nines = "9" * 38
    assert values("decimal(38,0)", nines, "-" + nines) == [Decimal(nines), Decimal("-" + nines)]
    assert values("decimal(38,38)", "0." + nines, "0", None) == [Decimal("0." + nines), 0, None]
    assert values("decimal(38,10)", "-1234567890123456789012345678.0123456789") == [
        Decimal("-1234567890123456789012345678.0123456789")
    ]
    assert [str(one) for one in values("decimal(10,2)", "1", "1.5", "-0.05", "1.500")] == [
        "1.00",
        "1.50",
        "-0.05",
        "1.50",
    ]
    assert values("decimal(10,2)", "1." + "0" * 50, "0" * 3 + "7.1") == [Decimal(1), Decimal("7.1")]


def test_dates_and_times_from_year_1_to_9999() -> None:
    assert values("date", "0001-01-01", "9999-12-31", "2024-02-29", None) == [
        date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29), None,
    ]  # fmt: skip
    assert values("timestamp", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2024-01-02 03:04:05.1", None) == [
        datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(2024, 1, 2, 3, 4, 5, 100000), None,
    ]  # fmt: skip
    assert values("timestamptz", "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", None) == [
        datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None,
    ]  # fmt: skip


def test_bytes_of_every_kind() -> None:
    every = bytes(range(256))
    assert values("binary", "\\x" + every.hex(), "\\x", None, "\\x00") == [every, b"", None, b"\0"]


def test_strings_stay_as_they_are() -> None:
    odd = ["", "NULL", "null", "\\N", "a\nb\tc\\d", "żółć", "😀" * 5, "x" * 12, "y" * 13, '"{,}"', " ", None]
    assert values("string", *odd) == odd


def test_texts_beyond_the_reach_of_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_REACH_BITS", 7)
    texts = [f"{n:03d}" + "x" * (n % 100) for n in range(200)]
    assert values("string", *texts) == texts


def test_a_value_of_ten_megabytes() -> None:
    large = "0123456789" * 1_000_000
    assert values("string", "a", large, None, "b") == ["a", large, None, "b"]
    assert values("binary", "\\x" + large, "\\x01") == [bytes.fromhex(large), b"\1"]


def test_arrays_of_every_kind_of_element() -> None:
    assert values("list<int>", "{1,NULL,-3}", "{}", None, "{NULL}") == [[1, None, -3], [], None, [None]]
    assert values("list<long>", "{}", "{}") == [[], []]
    assert values("list<boolean>", "{t,f,NULL}") == [[True, False, None]]
    assert values("list<double>", "{1.5,Infinity}") == [[1.5, math.inf]]
    assert values("list<decimal(5,2)>", "{1.5,-2.25}") == [[Decimal("1.50"), Decimal("-2.25")]]
    assert values("list<date>", "{2024-01-01,NULL}") == [[date(2024, 1, 1), None]]
    assert values("list<timestamp>", '{"2024-01-01 00:00:00.5"}') == [[datetime(2024, 1, 1, 0, 0, 0, 500000)]]
    assert values("list<timestamptz>", '{"2024-01-01 00:00:00+00"}') == [[datetime(2024, 1, 1, tzinfo=UTC)]]
    assert values("list<binary>", r'{"\\x00ff","\\x",NULL}') == [[b"\x00\xff", b"", None]]
    assert values("list<string>", r'{a,"b c","d,e","{f}","\"g\"","h\\i","NULL",NULL,"",null_}') == [
        ["a", "b c", "d,e", "{f}", '"g"', "h\\i", "NULL", None, "", "null_"]
    ]


def test_elements_are_separated_by_the_delimiter_of_their_type() -> None:
    boxes = values("list<string>", "{(1,1),(0,0);(2,2),(1,1)}", delimiter=";")
    assert boxes == [["(1,1),(0,0)", "(2,2),(1,1)"]]
    assert values("list<string>", "{0101:NULL}", delimiter=":") == [["0101", None]]


def literal(elements: list[str | None]) -> str:
    """An array literal, written one element after the other as PostgreSQL's array_out does."""
    written = []
    for element in elements:
        if element is None:
            written.append("NULL")
        elif element == "" or element.upper() == "NULL" or any(c in '{},"\\ \t\n\r\v\f' for c in element):
            written.append('"' + "".join("\\" + c if c in '"\\' else c for c in element) + '"')
        else:
            written.append(element)
    return "{" + ",".join(written) + "}"


tricky = st.text(st.sampled_from('{},"\\ NULabé😀\n\t1;'), max_size=12)
element_lists = st.lists(st.one_of(st.none(), tricky, st.text(st.characters(exclude_characters="\0", codec="utf-8"))))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), element_lists), min_size=1, max_size=8))
def test_array_literals_give_back_their_elements(arrays: list[list[str | None] | None]) -> None:
    texts = [None if array is None else literal(array) for array in arrays]
    assert values("list<string>", *texts) == arrays


moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))
row_values = st.tuples(
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40)),
    st.one_of(st.none(), st.decimals(-(10**28) + 1, 10**28 - 1, allow_nan=False, places=10)),
    st.one_of(st.none(), moments),
    st.one_of(st.none(), st.binary(max_size=40)),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.floats(allow_nan=False)),
    st.one_of(st.none(), st.dates()),
)


def spelled(value: Any) -> str | None:
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, float):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, repr(value))
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return None if value is None else format(value, "f") if isinstance(value, Decimal) else str(value)


@settings(max_examples=200, deadline=None)
@given(st.lists(row_values, min_size=1, max_size=30))
def test_random_rows_come_back_as_they_were_sent(sent: list[tuple[Any, ...]]) -> None:
    kinds = ["long", "string", "decimal(38,10)", "timestamp", "binary", "boolean", "double", "date"]
    schema = table({f"c{n}": kind for n, kind in enumerate(kinds)}, key=(), identity=ReplicaIdentity.FULL)
    cut = decode(schema, *(insert(1000, [spelled(value) for value in row]) for row in sent))
    assert cut.refusals == {}
    assert rows(cut.tables, *schema.names) == sent
