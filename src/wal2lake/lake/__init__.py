"""Everything that runs on Spark: the first copy of a table, and the changes that follow."""

from .engine import Lake
from .model import Applied, Batch

__all__ = ["Applied", "Batch", "Lake"]
