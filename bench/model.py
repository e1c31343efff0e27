"""What the parts of the benchmark are asked and what they answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class WrongData(Exception):
    """A side produced something else than the database holds; its figures are worth nothing."""


@dataclass(frozen=True)
class Options:
    scale: float
    """factor on the number of rows of every load"""
    seconds: float
    """how long freshness is measured"""
    repeat: int
    """how often each pair of rivals runs, in alternation"""

    def rows(self, full: int) -> int:
        return max(100, round(full * self.scale))


@dataclass(frozen=True)
class Section:
    """The outcome of one part: a table and remarks for people, figures for programs."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def require_equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise WrongData(f"{what}: {found}, expected {expected}")
