"""Decides whether and when Spark is restarted after its JVM has died."""

from __future__ import annotations

from dataclasses import dataclass

from ...retry import SPARK

MOST_IN_A_ROW = 5
"""consecutive JVMs that may fail or die early; the next failure ends the run"""
LASTING_SECONDS = 600.0
"""a JVM that lived so long resets the count"""


@dataclass
class Restarts:
    """Counts consecutive JVMs that failed to start or died early."""

    in_a_row: int = 0

    def ended(self, lived: float) -> float | None:
        """Seconds to wait before the next start, after a JVM that lived for `lived`; None: do not restart."""
        self.in_a_row = 1 if lived >= LASTING_SECONDS else self.in_a_row + 1
        if self.in_a_row > MOST_IN_A_ROW:
            return None
        return SPARK.after(self.in_a_row)
