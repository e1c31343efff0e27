"""The initial copy of a table: ranges of heap pages, read over JDBC and converted to lake columns.

Spark's JDBC source reads each range in a transaction of its own that imports the exported snapshot, so all see the same
moment. Columns have positional names (`c0`, `c1`, …), so that no name needs quoting.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

from ... import quoting
from ...source import BLOCK_BYTES, CopySource, ExportedSnapshot, Heap, filtered
from ...source.sessions import SET_FOR_COPY
from ..names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

MOST_PAGES_PER_RANGE = 8192
LEAST_PAGES_PER_RANGE = 512
_BYTES_PER_FETCH = 16 * 1024 * 1024
_HEAP_BYTES_PER_FILE = 512 * 1024 * 1024
_LITERAL = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\?""")
_BACKQUOTED = re.compile(r"`(?:[^`]|``)*`")
_POLL_SECONDS = 0.5


def range_size(pages: int, cores: int) -> int:
    """Pages per range: 64 MB for a large table, less for a small one, so that every core gets several."""
    return min(MOST_PAGES_PER_RANGE, max(LEAST_PAGES_PER_RANGE, math.ceil(pages / (4 * cores))))


def ranges(pages: int, size: int) -> list[str]:
    """Conditions on `pos` (the ctid) that together select every row once; the last one has no upper bound."""
    starts = list(range(0, max(pages, 1), size))
    conditions = []
    for start in starts:
        low = f"pos >= '({start},0)'::tid"
        conditions.append(low if start == starts[-1] else f"{low} AND pos < '({start + size},0)'::tid")
    return conditions


def fetch_size(average_row_bytes: int) -> int:
    """Rows per fetch: about 16 MB; never zero, which would read whole ranges at once and outside of a transaction."""
    return min(50_000, max(100, _BYTES_PER_FETCH // max(average_row_bytes, 1)))


def tasks(pages: int, count: int, cores: int) -> int:
    """Number of tasks, and so of files: enough for every core, then about 512 MB of heap each."""
    return max(1, min(count, max(4 * cores, math.ceil(pages * BLOCK_BYTES / _HEAP_BYTES_PER_FILE))))


def init_statement(snapshot: str) -> str:
    # The driver sends its own settings after those of the startup packet.
    shared = f"SET TRANSACTION SNAPSHOT {quoting.literal(snapshot)}"
    return f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; {shared}; {SET_FOR_COPY}"


def subquery(source: CopySource, heap: Heap) -> str:
    columns = ", ".join(f"{wire.sql} AS c{position}" for position, wire in enumerate(source.copy_columns))
    # ONLY: rows of tables that inherit from this one are not its own.
    name = heap.sql_name.removeprefix("ONLY ")
    where = f" WHERE {for_jdbc(filtered(source.schema.where))}" if source.schema.where is not None else ""
    return f"(SELECT ctid AS pos, {columns} FROM ONLY {name}{where}) AS heap"  # noqa: S608 - quoted by its makers


def for_jdbc(condition: str) -> str:
    """A condition for the JDBC driver: question marks of operators are doubled, those in strings and names are not."""
    return _LITERAL.sub(lambda found: "??" if found[0] == "?" else found[0], condition)


def projection(source: CopySource) -> list[str]:
    """Spark expressions that convert the JDBC columns into the lake's columns."""
    expressions = []
    for position, (column, wire) in enumerate(zip(source.schema.columns, source.copy_columns, strict=True)):
        value = _BACKQUOTED.sub(f"`c{position}`", wire.spark)
        expressions.append(f"CAST({value} AS {column.lake.spark}) AS {quoted(column.name)}")
    return expressions


def read(session: SparkSession, source: CopySource, snapshot: ExportedSnapshot, cores: int) -> DataFrame:
    """The rows of the table at the snapshot, in the lake's columns and types."""
    frames = []
    pages = sum(heap.pages for heap in source.heaps)
    size = range_size(pages, cores)
    for heap in source.heaps:
        properties = {
            **source.jdbc_properties,
            "driver": "org.postgresql.Driver",
            "fetchsize": str(fetch_size(heap.average_row_bytes)),
            "sessionInitStatement": init_statement(snapshot.name),
        }
        conditions = ranges(heap.pages, size)
        frame = session.read.jdbc(
            source.jdbc_url, subquery(source, heap), predicates=conditions, properties=properties
        )  # fmt: skip
        frames.append(frame)
    if not frames:
        return nothing(session, source)
    count = sum(len(ranges(heap.pages, size)) for heap in source.heaps)
    rows = reduce(lambda one, other: one.unionAll(other), frames)
    wanted = tasks(pages, count, cores)
    return (rows.coalesce(wanted) if wanted < count else rows).selectExpr(*projection(source))


def nothing(session: SparkSession, source: CopySource) -> DataFrame:
    """No rows, with the lake's columns: for a partitioned table without partitions."""
    columns = [f"CAST(NULL AS {column.lake.spark}) AS {quoted(column.name)}" for column in source.schema.columns]
    return session.range(0).selectExpr(*columns)


@contextmanager
def watched(session: SparkSession, group: str, progress: Callable[[int], None]) -> Iterator[None]:
    """Report the rows read so far by the jobs of a group to `progress`, twice a second, from Spark's metrics."""
    done = threading.Event()

    def watch() -> None:
        seen = 0
        while not done.wait(_POLL_SECONDS):
            try:
                rows = _rows_read(session, group)
            except Exception:
                log.debug("reading Spark's task metrics", exc_info=True)
                continue
            if rows > seen:
                seen = rows
                progress(rows)

    thread = threading.Thread(target=watch, name="wal2lake-copy-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _rows_read(session: SparkSession, group: str) -> int:
    context: Any = session.sparkContext._jsc
    store = context.sc().statusStore()
    total = 0
    for job in session.sparkContext.statusTracker().getJobIdsForGroup(group):
        stages = store.job(job).stageIds()
        for index in range(stages.size()):
            total += int(store.lastStageAttempt(stages.apply(index)).inputRecords())
    return total
