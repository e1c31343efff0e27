"""A worker that comes free begins with what is new now, and not with what the last manifest had.

Manifests come once in the flush interval. While all workers are busy, a table that waits for one would begin with what
was new up to that long ago; so the capture is asked to publish what is complete when a worker is free for it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic

FRESH_SHARE = 0.25
"""what was published no longer ago than this share of the flush interval is new still"""
ANSWER_SECONDS = 0.2
"""how long the capture may take for it, before work begins with what is there; usually it is a quarter of that"""


class Freshness:
    def __init__(self, flush_interval: float, hurry: Callable[[], object]) -> None:
        """`hurry`: ask the capture to publish what is complete. It counts its answers; a manifest is one, too."""
        self._interval, self._fresh, self._hurry = flush_interval, FRESH_SHARE * flush_interval, hurry
        self._fresh_until = self._asked_last = -inf
        self._asked: tuple[float, tuple[int, int]] | None = None

    def given(self, manifest: int, read_at: float, answers: int) -> bool:
        """Whether work may begin: the last manifest is new, or the capture has answered, or takes too long for it.

        `manifest` was read at `read_at`; so many times the capture has answered that all is published.
        """
        now = monotonic()
        if now < max(self._fresh_until, read_at + self._fresh):
            self._asked = None
            return True
        if self._asked is None:
            self._asked, self._asked_last = (now, (manifest, answers)), now
            self._hurry()
            return False
        asked_at, known = self._asked
        if (manifest, answers) == known and now - asked_at < ANSWER_SECONDS:
            return False
        self._asked, self._fresh_until = None, now + self._fresh
        return True

    @property
    def awaited(self) -> float | None:
        """How much longer an answer may take that was asked for."""
        left = self._asked[0] + ANSWER_SECONDS - monotonic() if self._asked is not None else 0.0
        return left if left > 0 else None

    def too_soon(self, began: float) -> bool:
        """Whether a table whose last work began then is to wait, though something has arrived for it.

        What came ahead of time was for another table: none is committed more often for that.
        """
        now = monotonic()
        return now - self._asked_last < self._interval and now - began < self._interval - ANSWER_SECONDS
