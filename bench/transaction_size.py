"""Capture as transactions grow, from one row to a hundred thousand, beside `pg_recvlogical`: for a plot."""

from __future__ import annotations

from typing import Any

from .capture import PEER, measure_load
from .loads import equal_transactions
from .model import Options, Section, Series
from .recorded import recorded

SIZES = (1, 10, 100, 1_000, 10_000, 100_000)


def measure(options: Options) -> Section:
    rows = options.rows(300_000, 100_000)
    outcomes: list[dict[str, Any]] = []
    for size in SIZES:
        if size <= rows:
            with recorded(equal_transactions(rows, size)) as record:
                outcomes.append(measure_load(record, 1))
    sizes = SIZES[: len(outcomes)]
    return Section(
        name="transaction-size",
        title=f"Capture of {rows:,} inserts by size of transaction",
        header=("rows in a transaction", "pg_recvlogical rows/s", "wal2lake rows/s"),
        rows=tuple(
            (f"{size:,}", f"{each['peer_rows_per_second']:,.0f}", f"{each['rows_per_second']:,.0f}")
            for size, each in zip(sizes, outcomes, strict=True)
        ),
        notes=("each ran once",),
        figures={"loads": outcomes},
        series=(
            Series("capture", "wal2lake", sizes, tuple(each["rows_per_second"] for each in outcomes)),
            Series("capture", PEER, sizes, tuple(each["peer_rows_per_second"] for each in outcomes)),
        ),
    )
