"""Attribute numbers of the columns in a message, from earlier schemas and the catalog."""

import pytest

from wal2lake.capture.column_identity import Known, numbers

CASES = {
    "added since": (("id", "a"), {1: "id", 2: "a", 3: "b"}, 3, {}, (1, 2)),
    "renamed since": (("id", "a"), {1: "id", 2: "b"}, 2, {}, (1, 2)),
    "renamed before and since": (("id", "b"), {1: "id", 2: "c"}, 2, {1: "id", 2: "a"}, (1, 2)),
    "dropped since": (("id", "a", "b"), {1: "id", 3: "b"}, 3, {}, (1, 2, 3)),
    "a rename or a new column": (("id", "x"), {1: "id", 3: "b"}, 3, {1: "id", 2: "a"}, (0, 0)),
    "dropped before": (("id", "x"), {1: "id", 3: "b"}, 3, {1: "id", 3: "y"}, (1, 3)),
    "dropped and added under one name": (("id", "n"), {1: "id", 3: "n"}, 3, {1: "id", 2: "n"}, (0, 0)),
    "in front of another": (("id", "n", "z"), {1: "id", 3: "z", 4: "n"}, 4, {1: "id", 2: "n", 3: "z"}, (1, 2, 3)),
    "swapped since": (("id", "a", "b"), {1: "id", 2: "b", 3: "a"}, 3, {}, (0, 0, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_message_is_numbered(case: str) -> None:
    names, now, highest, before, expected = CASES[case]
    assert numbers(names, Known(now, highest, before)) == expected


def test_columns_that_are_never_sent_are_passed_over() -> None:
    known = Known({1: "id", 3: "b"}, 3, {}, frozenset({2}))
    assert numbers(("id", "a"), known) == (1, 3)


def test_a_search_without_end_has_no_answer() -> None:
    many = {number: f"c{number}" for number in range(1, 3)}
    assert numbers([f"x{i}" for i in range(60)], Known(many, 200, {})) == (0,) * 60
