"""Conditions of partitions mean for a row what they mean in SQL."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from simulation.predicates import Unsupported, condition


@pytest.mark.parametrize(
    ("text", "value", "answer"),
    [
        ("((a IS NOT NULL) AND (a >= 1) AND (a < 10))", 1, True),
        ("((a IS NOT NULL) AND (a >= 1) AND (a < 10))", 10, False),
        ("((a IS NOT NULL) AND (a >= 1) AND (a < 10))", None, False),
        ("(a >= '-5'::integer)", -6, False),
        ("(a >= 1)", None, None),
        ("(NOT (a >= 1))", None, None),
        ("((a IS NULL) OR (a = ANY (ARRAY[1, 2])))", None, True),
        ("((a IS NULL) OR (a = ANY (ARRAY[1, 2])))", 2, True),
        ("(NOT ((a IS NOT NULL) AND (a = 3)))", 3, False),
        ("((a IS NOT NULL) AND ((a)::text = 'it''s'::text))", "it's", True),
        ("((a IS NOT NULL) AND (a >= '2024-01-01'::date))", date(2024, 1, 1), True),
        ("(a < '2024-01-01 00:00:00+01'::timestamp with time zone)", datetime(2023, 12, 31, 23, tzinfo=UTC), False),
        ("(a < '2024-01-01 00:00:00'::timestamp without time zone)", datetime(2023, 12, 31, 23), True),
        ("(a = 1.50)", Decimal("1.5"), True),
        ("(a = true)", True, True),
        ("((`a` IS NOT NULL) AND (`a` >= 10L) AND (`a` < 20L))", 13, True),
        ("(`a` IN ('x', 'y'))", None, None),
        ("(`a` IN ('x', 'y'))", "y", True),
        ("(`a` >= DATE'2024-01-02')", date(2024, 1, 1), False),
        ("(`a` < TIMESTAMP'2024-01-01 00:00:00+00:00')", datetime(2023, 12, 31, tzinfo=UTC), True),
        ("(`a` = 1.5BD)", Decimal("1.50"), True),
    ],
)
def test_a_condition_answers_as_sql_does(text: str, value: Any, answer: bool | None) -> None:
    assert condition(text)({"a": value}) is answer


def test_columns_are_found_by_the_names_that_they_had() -> None:
    assert condition('("A b" = 1)', {"A b": "c"})({"c": 1}) is True


@pytest.mark.parametrize(
    "text", [None, "", "satisfies_hash_partition(1, 2, 0, a)", "(a = b)", "(a = 1", "(lower(a) = 'x')"]
)
def test_conditions_that_columns_cannot_express_are_refused(text: str | None) -> None:
    with pytest.raises(Unsupported):
        condition(text)


def test_the_order_of_strings_is_refused() -> None:
    with pytest.raises(Unsupported):
        condition("(a >= 'x')")({"a": "y"})
