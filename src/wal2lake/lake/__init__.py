"""Everything that runs on Spark: initial copies, apply, and maintenance of lake tables.

Other packages use the names listed here, never the modules behind them.
"""

from .copying.exchange import exchange, of_partitions
from .iceberg.runtime import ICEBERG as ICEBERG_JAR
from .iceberg.runtime import SQLITE as SQLITE_JAR
from .lake import Lake
from .model import Applied, Batch, Exchange, Facts, Into, Work, copied, still_visible
from .ports import LakeTables

__all__ = [
    "ICEBERG_JAR",
    "SQLITE_JAR",
    "Applied",
    "Batch",
    "Exchange",
    "Facts",
    "Into",
    "Lake",
    "LakeTables",
    "Work",
    "copied",
    "exchange",
    "of_partitions",
    "still_visible",
]
