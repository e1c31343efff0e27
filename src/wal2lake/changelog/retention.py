"""Manifests that every table has applied, kept for a while for readers of events."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..clock import SYSTEM_CLOCK, Clock


class _Applied(NamedTuple):
    number: int
    bytes: int
    until: float


class Retention:
    """Which applied manifests can be deleted: those kept for so many seconds, and those that there is no room for."""

    def __init__(self, seconds: float = 0.0, most_bytes: int = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._seconds, self._most_bytes, self._clock = seconds, most_bytes, clock
        self._kept: deque[_Applied] = deque()
        self._bytes = 0
        self._upto = 0

    def add(self, number: int, size: int) -> None:
        """A manifest that every table has applied; numbers only grow."""
        self._kept.append(_Applied(number, size, self._clock.monotonic() + self._seconds))
        self._bytes += size

    def upto(self, waiting_bytes: int) -> int:
        """The last manifest that can be deleted. `waiting_bytes`: what the manifests take that are not applied."""
        now = self._clock.monotonic()
        while self._kept and (
            self._kept[0].until <= now or (self._seconds and self._bytes + waiting_bytes > self._most_bytes)
        ):
            applied = self._kept.popleft()
            self._upto, self._bytes = applied.number, self._bytes - applied.bytes
        return self._upto
