"""Whether and when Spark is started again after its JVM has died."""

from __future__ import annotations

from dataclasses import dataclass

from ..retry import SPARK

MOST_IN_A_ROW = 5
"""JVMs that may fail or die in a row; the next one ends the run"""
LASTING_SECONDS = 600.0
"""a JVM that has lived so long was a good one: its end is the first in a row"""


@dataclass
class Restarts:
    """How often in a row a JVM has failed to start or died early."""

    in_a_row: int = 0

    def ended(self, lived: float) -> float | None:
        """Seconds to wait before the next start, after a JVM that has lived for some; None: no more."""
        self.in_a_row = 1 if lived >= LASTING_SECONDS else self.in_a_row + 1
        if self.in_a_row > MOST_IN_A_ROW:
            return None
        return SPARK.after(self.in_a_row)
