"""Capture from a slot that is polled through SQL against the replication stream of the same WAL, and what idling costs.

Idle: nobody writes, and the processor time of all server processes of the capture is read. Then single rows are
inserted, and each is timed from the return of its commit until the polling stream gives it.
"""

from __future__ import annotations

import time
from contextlib import closing
from statistics import median
from typing import Any

from wal2lake.capture.process import CaptureProcess
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import Config
from wal2lake.position import Lsn
from wal2lake.source import ChangeSource, StreamRequest, connect, server_facts
from wal2lake.source.polling import open_polling

from .loads import one_transaction, single_row_updates
from .machine import cpu_seconds
from .model import Options, Ratio, Section
from .recorded import GROUP, LIMIT_SECONDS, PUBLICATION, SLOT, Recorded, recorded, scratch

STREAM = "replication stream"
LEAST_SHARE = 0.5
MOST_MB = 400.0
MOST_IDLE_CORES = 0.01
MOST_SEEN_SECONDS = 0.2
MB = 1_000_000
_IDLE_SECONDS = 20.0
_CHANGES = 30


def measure(options: Options) -> Section:
    outcomes = []
    loads = [one_transaction(options.rows(1_000_000)), single_row_updates(options.rows(300_000, 100_000))]
    for load in loads:
        with recorded(load) as record:
            outcomes.append(_against_the_stream(record, options.repeat))
            if load is loads[0]:
                idle = _idle(record, options.seconds_of(_IDLE_SECONDS))
                seen = _seen(record)
    ratios = [
        Ratio(
            "polling", each["load"], "s", each["seconds"], STREAM, each["peer"], each["peer"] / each["seconds"], target
        )
        for each, target in zip(outcomes, (LEAST_SHARE, None), strict=True)
    ]
    memory = max(each["memory"] for each in outcomes) / MB
    what = "nobody writes"
    ratios += [
        Ratio("polling, memory", outcomes[0]["load"], "MB", memory, "", None, memory, MOST_MB, at_most=True),
        Ratio("polling, idle", what, "cores of the server", idle, "", None, idle, MOST_IDLE_CORES, at_most=True),
        Ratio("polling, first change seen", what, "s", max(seen), "", None, max(seen), MOST_SEEN_SECONDS, at_most=True),
    ]
    return Section(
        name="polling",
        title="A slot that is polled, against the replication stream",
        header=("load", "stream", "poll", "poll rows/s", "stream ÷ poll", "memory of capture"),
        rows=tuple(
            (
                each["load"], f"{each['peer']:.2f} s", f"{each['seconds']:.2f} s",
                f"{each['rows'] / each['seconds']:,.0f}", f"{each['peer'] / each['seconds']:.2f}",
                f"{each['memory'] / MB:.0f} MB",
            )
            for each in outcomes
        ),
        notes=(
            f"idle: {100 * idle:.2f} % of a core on the server",
            f"a change after idling is given after {1000 * median(seen):.0f} ms (median), "
            f"{1000 * max(seen):.0f} ms (most)",
        ),
        figures={"loads": outcomes, "idle_cores": idle, "seen_seconds": seen},
        ratios=tuple(ratios),
    )  # fmt: skip


def _against_the_stream(record: Recorded, repeat: int) -> dict[str, Any]:
    ours: list[float] = []
    peers: list[float] = []
    memory = 0
    for turn in range(repeat):
        for mode in ("poll", "wal") if turn % 2 else ("wal", "poll"):
            with scratch(record, f"{mode}-{turn}") as directory:
                taken = record.capture(directory, mode=mode)
                record.verify(directory, contents=mode == "poll" and turn == repeat - 1)
                (ours if mode == "poll" else peers).append(taken.seconds)
                if mode == "poll":
                    memory = max(memory, taken.peak_memory or 0)
    load = record.load
    return {
        "load": load.name, "rows": load.rows, "seconds": median(ours), "peer": median(peers), "memory": memory,
        "runs": ours, "peer_runs": peers,
    }  # fmt: skip


def _idle(record: Recorded, seconds: float) -> float:
    """Cores that the server's processes of an idle capture keep busy."""
    with scratch(record, "idle") as directory:
        config = Config(
            source={"dsn": record.ground.dsn},
            lake={"path": str(directory)},
            groups=[{"name": GROUP, "capture": "poll"}],
        )
        log = ChangeLog(storage_for(config.changelog_path), GROUP)
        with closing(connect(config.source)) as connection:
            log.create(server_facts(connection), SLOT)
        log.begin(record.copy_slot(SLOT))
        capture = CaptureProcess(config, config.groups[0])
        capture.start()
        try:
            # What a bite costs goes by where the slot begins to read the WAL, which moves at checkpoints.
            record.ground.connection.execute("CHECKPOINT")
            end = Lsn.parse(record.ground.value("SELECT pg_current_wal_insert_lsn()::text"))
            capture.wait_for(lambda report: report.acknowledged_lsn >= end or report.fatal, LIMIT_SECONDS)
            pids = record.ground.connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'wal2lake%' AND pid <> pg_backend_pid()"
            ).fetchall()
            began, before = time.monotonic(), sum(cpu_seconds(pid) or 0.0 for (pid,) in pids)
            time.sleep(seconds)
            used = sum(cpu_seconds(pid) or 0.0 for (pid,) in pids) - before
            return used / (time.monotonic() - began)
        finally:
            capture.stop()
            record.drop_slot(SLOT)


def _seen(record: Recorded) -> list[float]:
    """Seconds from a commit until the change is given, each after a while in which nothing changed."""
    connection = record.ground.connection
    start = record.copy_slot(SLOT)
    source = Config(source={"dsn": record.ground.dsn}).source
    found = []
    with open_polling(source, StreamRequest(SLOT, (PUBLICATION,), start), GROUP) as stream:
        while stream.received <= record.end:
            stream.read(1.0)
            stream.acknowledge(stream.keepalive_lsn)
        for number in range(_CHANGES):
            _until_idle(stream, 0.4 + 0.01 * number)
            connection.execute("INSERT INTO finish VALUES (%s)", [1000 + number])
            began = time.monotonic()
            while not stream.read(1.0):
                pass
            found.append(time.monotonic() - began)
    record.drop_slot(SLOT)
    return found


def _until_idle(stream: ChangeSource, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        stream.read(left)
        stream.acknowledge(stream.keepalive_lsn)
