"""How long to wait before something that failed is tried again: one rule, a policy for each thing. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 16


@dataclass(frozen=True)
class Backoff:
    """Seconds to wait after failures in a row: `first`, doubled each time, at most `most`."""

    first: float
    most: float
    spread: float = 0.0
    """so large a share sooner, at most: what failed together need not come back together"""

    def after(self, failures: int, chance: float = 0.0) -> float:
        """Seconds to wait after the n-th failure in a row (n from 1). `chance`, from 0 to 1, shortens it."""
        if failures < 1:
            raise ValueError("there is nothing to wait for before the first failure")
        doubled = self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)
        return min(doubled, self.most) * (1 - self.spread * chance)


TABLE = Backoff(30.0, 32 * 60.0, spread=0.2)
GROUP = Backoff(30.0, 32 * 60.0)
CAPTURE = Backoff(0.5, 30.0, spread=0.5)
SPARK = Backoff(1.0, 60.0)
COMPACTION = Backoff(60.0, 3600.0)
