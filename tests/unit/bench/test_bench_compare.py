"""Two revisions that were measured in turns: what differs, and what is noise."""

import pytest
from bench.compare import Difference, differences, table

SECONDS, RATE = ("capture", "updates", "s"), ("apply of a backlog", "changes", "changes/s")


@pytest.mark.parametrize(
    ("figure", "base", "head", "verdict"),
    [
        (SECONDS, (2.0, 2.02, 1.98), (2.04, 2.06, 2.05), "the same within noise"),
        (SECONDS, (2.0, 2.0, 2.0), (2.5, 2.5, 2.5), "**worse**"),
        (SECONDS, (2.0, 2.0, 2.0), (1.5, 1.5, 1.5), "better"),
        (RATE, (100.0, 100.0, 100.0), (80.0, 80.0, 80.0), "**worse**"),
        (RATE, (100.0, 100.0, 100.0), (150.0, 150.0, 150.0), "better"),
        (RATE, (70.0, 100.0, 130.0), (80.0, 80.0, 80.0), "the same within noise"),
    ],
)
def test_a_difference_counts_when_it_is_larger_than_that_between_rounds(
    figure: tuple[str, str, str], base: tuple[float, ...], head: tuple[float, ...], verdict: str
) -> None:
    assert Difference(figure, base, head).verdict == verdict


def test_only_figures_that_both_revisions_have_are_compared() -> None:
    found = differences([{SECONDS: 2.0, RATE: 9.0}] * 2, [{SECONDS: 3.0}] * 2)
    assert [each.figure for each in found] == [SECONDS]
    assert "| capture | updates | 2.00 s | 3.00 s | -33.3% | 5.0% | **worse** |" in table(found, "a", "b")


def test_one_round_is_not_judged() -> None:
    assert Difference(SECONDS, (2.0,), (9.0,)).verdict.startswith("not judged")
