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
    """factor on the size of every load"""
    seconds: float
    """how long freshness is measured"""
    repeat: int
    """how often each pair of rivals runs, in alternation"""
    full: bool = False
    """the whole loads and the long parts; else what takes minutes"""
    soak_seconds: float = 3600.0
    """how long the soak goes on"""

    def rows(self, full: int, quick: int | None = None) -> int:
        """Rows of a load: `quick` where the run is to take minutes, if it differs."""
        return max(100, round(self._size(full, quick) * self.scale))

    def seconds_of(self, full: float, quick: float | None = None) -> float:
        return self._size(full, quick) * self.scale

    def _size(self, full: float, quick: float | None) -> float:
        return full if self.full or quick is None else quick


@dataclass(frozen=True)
class Ratio:
    """A line of the summary: one figure of ours, a peer's beside it if there is one, and what was aimed at."""

    name: str
    load: str
    """the load that was run, with its numbers"""
    unit: str
    """of `ours` and `peer`"""
    ours: float
    peer_name: str
    peer: float | None
    value: float
    """what is held against the target: a ratio that is higher when we do better; without a peer the figure itself"""
    target: float | None = None
    at_most: bool = False
    """the target is an upper bound"""

    @property
    def identity(self) -> tuple[str, str, str]:
        """By this the same figure is known in another run."""
        return self.name, self.load, self.peer_name

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    plot: str
    """a name in `plots.PLOTS`"""
    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Section:
    """The outcome of one part: a table and remarks for people, figures for programs."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    ratios: tuple[Ratio, ...] = ()
    series: tuple[Series, ...] = ()


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def require_equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise WrongData(f"{what}: {found}, expected {expected}")
