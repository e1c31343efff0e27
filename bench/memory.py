"""Memory and disk of capture for one huge transaction, taken in while it runs and after its commit.

The most that the process ever had in memory is the kernel's own figure. The contents are compared slice by slice, so
that the comparison itself stays small, too.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .contents import SourceTable, require_same_rows, segments_of
from .loads import one_transaction
from .model import Options, Ratio, Section, WrongData
from .recorded import Recorded, recorded, scratch

TARGET_MB = 400.0
MB = 1_000_000
SLICE_ROWS = 250_000


def measure(options: Options) -> Section:
    load = one_transaction(options.rows(10_000_000, 2_000_000))
    outcomes = []
    with recorded(load, keep_before=False) as record:
        for streaming in (True, False):
            with scratch(record, f"lake-{streaming}") as directory:
                taken = record.capture(directory, streaming=streaming)
                record.verify(directory, contents=False)
                require_same_slices(record, directory)
            if taken.peak_memory is None:
                raise RuntimeError("this system does not tell how much memory a process has had")
            outcomes.append({"streaming": streaming, "load": load.name, "rows": load.rows, **asdict(taken)})
    return Section(
        name="memory",
        title=f"Memory and disk of capture for {load.name}",
        header=("streaming", "most memory", "most disk in the change log", "seconds", "rows/s"),
        rows=tuple(
            (
                _word(each), f"{each['peak_memory'] / MB:,.0f} MB", f"{each['disk'] / MB:,.0f} MB",
                f"{each['seconds']:.1f}", f"{load.rows / each['seconds']:,.0f}",
            )
            for each in outcomes
        ),
        figures={"runs": outcomes},
        ratios=tuple(_ratio(each) for each in outcomes),
    )  # fmt: skip


def _word(outcome: dict[str, Any]) -> str:
    return "on" if outcome["streaming"] else "off"


def _ratio(outcome: dict[str, Any]) -> Ratio:
    megabytes = outcome["peak_memory"] / MB
    name = f"memory of capture, streaming {_word(outcome)}"
    return Ratio(name, outcome["load"], "MB", megabytes, "", None, megabytes, TARGET_MB, at_most=True)


def require_same_slices(record: Recorded, directory: Path) -> None:
    """Inserts in the order of their keys: each slice of the log is the same range of the table, and none is twice."""
    log = record.log(directory)
    (name,) = record.load.changes
    table = SourceTable(record.ground.connection, name)
    end = None
    for segment in segments_of(log, table.oid):
        for batch in pq.ParquetFile(log.uri(segment)).iter_batches(SLICE_ROWS, columns=table.columns):
            found = table.comparable(pa.Table.from_batches([batch]))
            low, high = pc.min_max(found[table.key]).as_py().values()
            if end is not None and low <= end:
                raise WrongData(f"{name}: change log: the row with key {low} is twice in it, or out of order")
            rows = table.read(f'"{table.key}" BETWEEN {low} AND {high}')
            require_same_rows(f"{name}: change log, keys {low:,} to {high:,}", found, rows)
            end = high
