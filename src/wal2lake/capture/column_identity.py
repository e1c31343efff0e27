"""Which columns a relation message means, when the catalog has moved on since the rows were written.

A message names columns and types but no attribute numbers. It lists them in the order of their numbers, though, and
PostgreSQL never gives a number twice, so that what the catalog still has, and what was seen before, often leave one
answer. Where they leave several, there is none.

    before  id#1 a#2     message  id b     catalog  id#1 c#2      b is #2: there is no other number
    before  id#1 a#2     message  id x     catalog  id#1 b#3      x may be #2 renamed, or #3 before it was renamed
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_STEPS = 10_000
"""a search that takes longer has no answer"""


@dataclass(frozen=True)
class Known:
    """What is known of a table's numbers."""

    now: Mapping[int, str]
    """names by number, as the catalog has them"""
    highest: int
    """the highest number that was ever given"""
    before: Mapping[int, str]
    """names by number in the newest schema that was seen before; empty: none was"""
    unsent: frozenset[int] = frozenset()
    """numbers of columns that are in no message: generated ones"""


def numbers(names: Sequence[str], known: Known) -> tuple[int, ...]:
    """The number of each column of a message; all 0 where more than one answer is possible, or none."""
    gone, anchors = _gone_before(known) | known.unsent, _anchors(names, known)
    answers: list[tuple[int, ...]] = []
    steps = itertools.count(1)

    def step(chosen: tuple[int, ...]) -> None:
        """Every way to go on with rising numbers that contradicts nothing; two are as good as many."""
        if len(answers) > 1 or next(steps) > _MOST_STEPS:
            return
        if len(chosen) == len(names):
            answers.append(chosen)
            return
        name = names[len(chosen)]
        for number in range(chosen[-1] + 1 if chosen else 1, known.highest + 1):
            anchored = anchors.get(name) == number
            if number not in gone and (anchored or (name not in anchors and number not in anchors.values())):
                step((*chosen, number))
            if number in known.now or anchored:
                # A column that is there now was there then, if any later one was.
                return

    step(())
    certain = len(answers) == 1 and next(steps) <= _MOST_STEPS
    return answers[0] if certain else (0,) * len(names)


def _gone_before(known: Known) -> set[int]:
    """Numbers of columns that were dropped before the newest schema that was seen."""
    if not known.before:
        return set()
    return {number for number in range(1, max(known.before)) if number not in known.before}


def _anchors(names: Sequence[str], known: Known) -> dict[str, int]:
    """Columns that have one name all along. A name that stands for two numbers says nothing."""
    found: dict[str, int] = {}
    for name in names:
        told = {number for some in (known.before, known.now) for number, one in some.items() if one == name}
        if len(told) == 1:
            found[name] = told.pop()
    return found
