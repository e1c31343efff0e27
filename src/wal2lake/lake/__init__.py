"""Everything that runs on Spark: the initial copy of a table, and the changes that follow."""

from .lake import Lake
from .model import Applied, Batch

__all__ = ["Applied", "Batch", "Lake"]
