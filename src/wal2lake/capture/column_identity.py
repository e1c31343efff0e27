"""Attribute numbers of the columns in a relation message, when the catalog has changed since the rows were written.

A message has names and types of columns but no attribute numbers. It lists them in the order of their numbers, and
PostgreSQL never reuses a number, so the present catalog and earlier schemas often leave one answer. Where they leave
several, the answer is unknown.

    before  id#1 a#2     message  id b     catalog  id#1 c#2      b is #2: there is no other number
    before  id#1 a#2     message  id x     catalog  id#1 b#3      x is #2 renamed, or #3 before its rename: unknown
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_STEPS = 10_000
"""limit of the search, after which the answer is unknown"""


@dataclass(frozen=True)
class Known:
    """What is known of a table's attribute numbers."""

    now: Mapping[int, str]
    """names by number in the catalog"""
    highest: int
    """the highest number that was ever assigned"""
    before: Mapping[int, str]
    """names by number in the newest earlier schema; empty: there is none"""
    unsent: frozenset[int] = frozenset()
    """numbers of columns that messages never have: generated ones"""


def numbers(names: Sequence[str], known: Known) -> tuple[int, ...]:
    """The number of each column of a message; all 0 if there are several possible answers, or none."""
    dropped, anchors = _dropped_before(known) | known.unsent, _anchors(names, known)
    answers: list[tuple[int, ...]] = []
    steps = itertools.count(1)

    def step(chosen: tuple[int, ...]) -> None:
        """Try every continuation with rising numbers that contradicts nothing; stop at the second solution."""
        if len(answers) > 1 or next(steps) > _MOST_STEPS:
            return
        if len(chosen) == len(names):
            answers.append(chosen)
            return
        name = names[len(chosen)]
        for number in range(chosen[-1] + 1 if chosen else 1, known.highest + 1):
            anchored = anchors.get(name) == number
            if number not in dropped and (anchored or (name not in anchors and number not in anchors.values())):
                step((*chosen, number))
            if number in known.now or anchored:
                # A column that exists now existed then if any column with a higher number did.
                return

    step(())
    certain = len(answers) == 1 and next(steps) <= _MOST_STEPS
    return answers[0] if certain else (0,) * len(names)


def _dropped_before(known: Known) -> set[int]:
    """Numbers of columns that were dropped before the newest earlier schema."""
    if not known.before:
        return set()
    return {number for number in range(1, max(known.before)) if number not in known.before}


def _anchors(names: Sequence[str], known: Known) -> dict[str, int]:
    """Columns that have always had one name. A name that stood for two numbers proves nothing."""
    found: dict[str, int] = {}
    for name in names:
        known_numbers = {number for some in (known.before, known.now) for number, one in some.items() if one == name}
        if len(known_numbers) == 1:
            found[name] = known_numbers.pop()
    return found
