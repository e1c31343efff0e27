"""Conversions of slices of a buffer equal Arrow's own casts of the same texts in an array."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_encoder import decode, insert, rows, table
from wal2lake.schema import ReplicaIdentity
from wal2lake.types import LakeType, from_text
from wal2lake.types.slices import PADDING, Slices


def slices(texts: list[str | None], gap: int) -> Slices:
    """The texts with some other bytes between them, as in messages."""
    data, start, length = bytearray(PADDING), [], []
    for text in texts:
        data += b"-9t" * gap
        start.append(len(data))
        encoded = (text or "").encode()
        length.append(len(encoded))
        data += encoded
    data += PADDING
    valid = np.array([text is not None for text in texts])
    at = np.array(start, np.int64), np.array(length, np.int64)
    return Slices(np.frombuffer(bytes(data), np.uint8), *at, None if valid.all() else valid)


def moment(value: datetime) -> str:
    """As PostgreSQL writes it: no zeros at the end of the fraction, minutes of the zone only where there are some."""
    text = value.isoformat(" ")
    whole, dot, rest = text.partition(".")
    if dot:
        text = f"{whole}.{rest[:6].rstrip('0')}{rest[6:]}"
    return text.removesuffix(":00") if value.tzinfo is not None else text


def number(digits: int, scale: int) -> st.SearchStrategy[str]:
    limit = 10**digits - 1
    edges = st.sampled_from([0, 1, -1, limit, -limit, 10**scale, -(10**scale)])

    def spelled(value: int) -> str:
        whole, part = divmod(abs(value), 10**scale)
        return f"{'-' if value < 0 else ''}{whole}" + (f".{part:0{scale}d}" if scale else "")

    return st.one_of(edges, st.integers(-limit, limit)).map(spelled)


zones = st.one_of(st.just(UTC), st.integers(-15 * 60, 15 * 60).map(lambda n: timezone(timedelta(minutes=n))))
middle_times = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29))
EDGES = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]
TEXTS: dict[str, st.SearchStrategy[str]] = {
    "int": st.one_of(st.sampled_from([-(2**31), 2**31 - 1, 0]), st.integers(-(2**31), 2**31 - 1)).map(str),
    "long": st.one_of(st.sampled_from([-(2**63), 2**63 - 1, 0]), st.integers(-(2**63), 2**63 - 1)).map(str),
    "double": st.one_of(
        st.sampled_from(["-0", "5e-324", "Infinity", "-Infinity"]), st.floats(allow_nan=False).map(repr)
    ),
    "decimal(14,4)": number(14, 4),
    "decimal(18,0)": number(18, 0),
    "decimal(36,6)": number(36, 6),
    "date": st.one_of(st.sampled_from([date.min, date.max, date(2024, 2, 29)]), st.dates()).map(str),
    "timestamp": st.one_of(st.sampled_from(EDGES), st.datetimes()).map(moment),
    "timestamptz": st.builds(lambda value, zone: moment(value.replace(tzinfo=zone)), middle_times, zones),
    "string": st.one_of(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40),
        st.text("abc0", min_size=13, max_size=20),
        st.text("abc0", max_size=14),
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_random_columns_are_what_arrow_makes_of_them(kind: str) -> None:
    lake = LakeType.parse(kind)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.one_of(st.none(), TEXTS[kind]), min_size=1, max_size=40), st.integers(0, 3))
    def same(texts: list[str | None], gap: int) -> None:
        found = from_text(slices(texts, gap), lake)
        found.array.validate(full=True)
        assert found.unfit is None
        assert found.array.equals(pa.array(texts, pa.string()).cast(lake.arrow))

    same()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["t", "f", None]), max_size=40), st.integers(0, 3))
def test_booleans_are_what_their_letters_say(texts: list[str | None], gap: int) -> None:
    found = from_text(slices(texts, gap), LakeType.parse("boolean"))
    found.array.validate(full=True)
    assert found.array.to_pylist() == [None if text is None else text == "t" for text in texts]


@pytest.mark.parametrize(
    ("kind", "bad", "what"),
    [
        ("date", "0044-03-15 BC", "a date before year 1 or after 9999"),
        ("date", "infinity", "infinity"),
        ("date", "10000-01-01", "a date before year 1 or after 9999"),
        ("timestamp", "0044-03-15 12:00:00.5 BC", "a date before year 1 or after 9999"),
        ("timestamptz", "-infinity", "infinity"),
        ("decimal(14,4)", "NaN", "NaN"),
        ("decimal(14,4)", "1.00005", "a number with more digits"),
        ("decimal(14,4)", "12345678901.0000", "a number with more digits"),
    ],
)
def test_what_does_not_fit_is_named_and_the_others_stay(kind: str, bad: str, what: str) -> None:
    lake = LakeType.parse(kind)
    good = {"date": "2024-01-31", "timestamp": "2024-01-31 00:00:00.25", "timestamptz": "2024-01-31 00:00:00+05:30"}
    texts = [good.get(kind, "-7.2500"), None, bad, good.get(kind, "0.0001")]
    found = from_text(slices(texts, 1), lake)
    assert found.unfit is not None
    assert (found.unfit.row, found.unfit.what) == (2, what)
    assert found.array.equals(pa.array([*texts[:2], None, texts[3]], pa.string()).cast(lake.arrow))


def test_far_texts_that_are_not_utf8_are_refused_and_the_others_stay() -> None:
    some = slices(["a text that is far", None, "another x that is far", ""], 1)
    data = some.data.copy()
    data[int(some.start[2]) + 8] = 0xFF
    found = from_text(Slices(data, some.start, some.length, some.valid), LakeType.parse("string"))
    assert found.unfit is not None
    assert (found.unfit.row, found.unfit.what) == (2, "bytes that are not UTF-8")
    assert found.array.to_pylist() == ["a text that is far", None, None, ""]


cells = st.one_of(st.none(), st.text("ab0é", max_size=20), st.integers(250, 70_000).map(lambda n: "x" * n))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=12))
def test_cells_of_any_length_are_found_behind_each_other(sent: list[tuple[str | None, ...]]) -> None:
    schema = table({"a": "string", "b": "string", "c": "string"}, key=(), identity=ReplicaIdentity.FULL)
    cut = decode(schema, *(insert(1000, list(row)) for row in sent))
    assert rows(cut.tables, *schema.names) == sent
