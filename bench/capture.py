"""Capture against `pg_recvlogical` to /dev/null, on the same WAL.

Both read copies of one slot that was made before the load was written, up to the same position. Our clock runs from the
open stream to the acknowledgement, and the time that our process takes to start stands beside it. pg_recvlogical
decodes and keeps nothing; the clock runs from its start to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

from .loads import Load, one_transaction, pgbench_mix, single_row_updates, wide_table
from .model import Options, Ratio, Section
from .recorded import Recorded, Taken, middle, recorded, scratch

PEER = "pg_recvlogical"
TARGET = 0.9


def loads(options: Options) -> list[Load]:
    return [
        one_transaction(options.rows(1_000_000, 500_000)),
        single_row_updates(options.rows(300_000, 100_000)),
        pgbench_mix(options.rows(100_000)),
        wide_table(options.rows(100_000)),
    ]


def measure(options: Options) -> Section:
    outcomes: list[dict[str, Any]] = []
    for number, load in enumerate(loads(options)):
        with recorded(load) as record:
            outcomes.append(measure_load(record, options.repeat))
            if number == 0:
                outcomes.append(measure_load(record, options.repeat, streaming=False))
    return Section(
        name="capture",
        title="Capture against pg_recvlogical on the same WAL",
        header=(
            "load", "pg_recvlogical", "wal2lake", "wal2lake rows/s", "pg_recvlogical ÷ wal2lake",
            "start of our process",
        ),
        rows=tuple(
            (
                each["load"], f"{each['peer_seconds']:.2f} s", f"{each['seconds']:.2f} s",
                f"{each['rows_per_second']:,.0f}", f"{each['ratio']:.2f}", f"{each['start_seconds']:.2f} s",
            )
            for each in outcomes
        ),
        notes=tuple(cores(each) for each in outcomes),
        figures={"loads": outcomes},
        ratios=tuple(
            Ratio("capture", each["load"], "s", each["seconds"], PEER, each["peer_seconds"], each["ratio"], TARGET)
            for each in outcomes
        ),
    )  # fmt: skip


def cores(outcome: dict[str, Any]) -> str:
    """How busy both ends of the stream were."""
    own, server = outcome["own_cores"], outcome["server_cores"]
    if own is None or server is None:
        return f"{outcome['load']}: processor use unknown on this system"
    return f"{outcome['load']}: the capture process kept {own:.2f} cores busy, the server's walsender {server:.2f}"


def measure_load(record: Recorded, repeat: int, *, streaming: bool = True) -> dict[str, Any]:
    ours, peers = alternate(record, repeat, record.receive, streaming=streaming)
    load = record.load
    seconds, peer = median(taken.seconds for taken in ours), median(peers)
    return {
        "load": load.name if streaming else f"{load.name}, streaming off",
        "rows": load.rows, "transactions": load.transactions,
        "seconds": seconds, "rows_per_second": load.rows / seconds,
        "peer_seconds": peer, "peer_rows_per_second": load.rows / peer, "ratio": peer / seconds,
        "start_seconds": median(taken.start_seconds for taken in ours),
        "own_cores": middle([taken.own_cores for taken in ours]),
        "server_cores": middle([taken.server_cores for taken in ours]),
        "runs": [asdict(taken) for taken in ours], "peer_runs": peers,
    }  # fmt: skip


def alternate(
    record: Recorded, repeat: int, peer: Callable[[], float], *, streaming: bool = True
) -> tuple[list[Taken], list[float]]:
    """Run both sides in turns; every run of ours is counted, the last one's contents are compared."""
    ours: list[Taken] = []
    peers: list[float] = []
    for turn in range(repeat):
        with scratch(record, f"lake-{turn}") as directory:
            # Who is first has the colder caches: they take turns at it.
            for who in ("ours", "peer") if turn % 2 else ("peer", "ours"):
                if who == "peer":
                    peers.append(peer())
                else:
                    ours.append(record.capture(directory, streaming=streaming))
            record.verify(directory, contents=turn == repeat - 1)
    return ours, peers
