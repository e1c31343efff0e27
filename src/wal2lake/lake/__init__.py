"""Everything that runs on Spark: initial copies, apply, and maintenance of lake tables.

Other packages use the names listed here, never the modules behind them.
"""

from .copying.exchange import exchange, of_partitions
from .lake import Lake
from .model import Applied, Batch, Exchange, Facts, Into, Work, copied, still_visible
from .ports import LakeTables
from .spark.jars import ICEBERG as ICEBERG_JAR
from .spark.jars import SQLITE as SQLITE_JAR

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
