"""How long to wait before a retry: one rule, a policy for each operation. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 16


@dataclass(frozen=True)
class Backoff:
    """Seconds to wait after consecutive failures: `first`, doubled each time, at most `most`."""

    first: float
    most: float
    spread: float = 0.0
    """the wait is shortened by up to this share, so that what failed together is not retried together"""

    def after(self, failures: int, jitter: float = 0.0) -> float:
        """Seconds to wait after the n-th consecutive failure (n from 1). `jitter`, from 0 to 1, shortens it."""
        if failures < 1:
            raise ValueError("failures are counted from 1")
        doubled = self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)
        return min(doubled, self.most) * (1 - self.spread * jitter)


TABLE = Backoff(30.0, 32 * 60.0, spread=0.2)
GROUP = Backoff(30.0, 32 * 60.0)
CAPTURE = Backoff(0.5, 30.0, spread=0.5)
POLL = Backoff(5.0, 60.0, spread=0.2)
SPARK = Backoff(1.0, 60.0)
BACKGROUND = Backoff(0.5, 5.0)
COMPACTION = Backoff(60.0, 3600.0)
