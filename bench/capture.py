"""Capture against `pg_recvlogical` to /dev/null, on the same WAL.

Both read copies of one slot that was made before the load was written, up to the same position. wal2lake is its real
capture process: decoded, written as segments, published and acknowledged; the clock runs from the open stream to the
acknowledgement, and the time that its process takes to start stands beside it. pg_recvlogical decodes and keeps
nothing; the clock runs from its start to its end.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.changelog import ChangeLog
from wal2lake.config import Config
from wal2lake.control.capture import CaptureProcess
from wal2lake.control.pump import CaptureReport
from wal2lake.demo.server import HOST, SUPERUSER, find_binaries
from wal2lake.position import Lsn
from wal2lake.source import connect, publication, server_facts, slot

from .ground import DATABASE, Ground, prepared
from .loads import ORDERS, Load, one_transaction, single_row_updates
from .machine import cpu_seconds, share
from .model import Options, Section, WrongData, require_equal

GROUP = "bench"
SLOT = slot.slot_name(GROUP, DATABASE)
PUBLICATION = publication.publication_name(GROUP)
TEMPLATE, PEER_SLOT = "bench_template", "bench_peer"
LIMIT_SECONDS = 900.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Taken:
    """One run of our capture over a load."""

    start_seconds: float
    """from the start of the process to the open stream"""
    seconds: float
    manifests: int
    own_cores: float | None
    server_cores: float | None
    """cores that the capture process and the server's walsender kept busy"""


def measure(options: Options) -> Section:
    loads = [one_transaction(options.rows(500_000)), single_row_updates(options.rows(100_000))]
    outcomes = [_measure_load(load, options.repeat) for load in loads]
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
        notes=tuple(_note(each) for each in outcomes),
        figures={"loads": outcomes},
    )  # fmt: skip


def _note(outcome: dict[str, Any]) -> str:
    own, server = outcome["own_cores"], outcome["server_cores"]
    if own is None or server is None:
        return f"{outcome['load']}: processor use unknown on this system"
    return f"{outcome['load']}: the capture process kept {own:.2f} cores busy, the server's walsender {server:.2f}"


def _measure_load(load: Load, repeat: int) -> dict[str, Any]:
    with prepared() as ground:
        end = _write(ground, load)
        ours: list[Taken] = []
        peers: list[float] = []
        for turn in range(repeat):
            directory = ground.directory / f"lake-{turn}"
            # Who is first has the colder caches: they take turns at it.
            for who in ("ours", "peer") if turn % 2 else ("peer", "ours"):
                if who == "peer":
                    peers.append(_receive(ground, end))
                else:
                    ours.append(_capture(ground, directory, end))
            _verify(ground, directory, load, contents=turn == repeat - 1)
    seconds, peer = median(taken.seconds for taken in ours), median(peers)
    return {
        "load": load.name, "rows": load.rows, "transactions": load.transactions,
        "seconds": seconds, "rows_per_second": load.rows / seconds,
        "peer_seconds": peer, "peer_rows_per_second": load.rows / peer, "ratio": peer / seconds,
        "start_seconds": median(taken.start_seconds for taken in ours),
        "own_cores": _middle([taken.own_cores for taken in ours]),
        "server_cores": _middle([taken.server_cores for taken in ours]),
        "runs": [asdict(taken) for taken in ours], "peer_runs": peers,
    }  # fmt: skip


def _middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _write(ground: Ground, load: Load) -> Lsn:
    """Write the load behind a fresh slot; the position that is reached when all of it has been read."""
    connection = ground.connection
    connection.execute(ORDERS)
    connection.execute("CREATE TABLE finish (id int PRIMARY KEY)")
    load.before(connection)
    ground.settle()
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders, finish")
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (TEMPLATE,))
    load.write(connection)
    end = Lsn.parse(ground.value("SELECT pg_current_wal_insert_lsn()::text"))
    # What lies beyond `end` begins with this transaction, so whoever is beyond `end` has the whole load.
    connection.execute("INSERT INTO finish VALUES (1)")
    ground.settle()
    return end


def _copied_slot(ground: Ground, name: str) -> Lsn:
    ground.connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (TEMPLATE, name))
    return Lsn.parse(
        ground.value(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{name}'")
    )


def _receive(ground: Ground, end: Lsn) -> float:
    _copied_slot(ground, PEER_SLOT)
    command = [
        str(find_binaries() / "pg_recvlogical"), "--host", HOST, "--port", str(ground.server.port),
        "--username", SUPERUSER, "--dbname", DATABASE, "--slot", PEER_SLOT, "--start", "--no-loop",
        "--endpos", str(end), "-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}", "--file", os.devnull,
    ]  # fmt: skip
    environment = {**os.environ, "PGPASSWORD": ground.server.password}
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"pg_recvlogical failed: {done.stderr.strip()}")
    _drop_slot(ground, PEER_SLOT)
    return seconds


def _capture(ground: Ground, directory: Path, end: Lsn) -> Taken:
    config = Config(source={"dsn": ground.dsn}, lake={"path": str(directory)}, groups=[{"name": GROUP}])
    log = ChangeLog(config.changelog_path, GROUP)
    with connect(config.source) as connection:
        log.create(server_facts(connection), SLOT)
    log.begin(_copied_slot(ground, SLOT))
    capture = CaptureProcess(config, config.groups[0])
    launched = time.monotonic()
    capture.start()
    try:
        capture.wait_for(lambda report: report.connected_once or report.fatal, LIMIT_SECONDS)
        began, own = time.monotonic(), cpu_seconds(capture.pid)
        sender = ground.value(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
        _until_acknowledged(capture, end)
        seconds = time.monotonic() - began
        own_cores = share(own, cpu_seconds(capture.pid), seconds)
        # The walsender began when the stream did.
        server_cores = share(0.0, cpu_seconds(sender), seconds)
    finally:
        report = capture.stop()
    _drop_slot(ground, SLOT)
    return Taken(began - launched, seconds, report.manifest, own_cores, server_cores)


def _until_acknowledged(capture: CaptureProcess, end: Lsn) -> None:
    def over(report: CaptureReport) -> bool:
        return report.acknowledged_lsn > end or report.fatal

    limit = time.monotonic() + LIMIT_SECONDS
    while not over(report := capture.wait_for(lambda r: over(r) or r.received_lsn > end, POLL_SECONDS)):
        if report.received_lsn > end:
            # All has come: what is left is to publish it without waiting for the interval, as `run --once` does.
            capture.hurry()
            report = capture.wait_for(over, POLL_SECONDS)
        if time.monotonic() > limit:
            raise RuntimeError(f"capture is not beyond {end} after {LIMIT_SECONDS:g} s: {report}")
    if report.fatal:
        raise RuntimeError(f"capture failed: {report.error}")


def _drop_slot(ground: Ground, name: str) -> None:
    with connect(Config(source={"dsn": ground.dsn}).source) as connection:
        slot.drop(connection, name)


def _verify(ground: Ground, directory: Path, load: Load, *, contents: bool) -> None:
    config = Config(source={"dsn": ground.dsn}, lake={"path": str(directory)})
    log = ChangeLog(config.changelog_path, GROUP)
    oid = int(ground.value("SELECT 'orders'::regclass::oid::int8"))
    segments = [s for manifest in log.after(0) if oid in manifest.tables for s in manifest.tables[oid].segments]
    require_equal(f"{load.name}: changes in the manifests", sum(segment.rows for segment in segments), load.rows)
    if not contents:
        return
    columns = ["id", "quantity", "_commit_lsn", "_seq"]
    changes = pa.concat_tables(pq.read_table(log.path(segment), columns=columns) for segment in segments)
    changes = changes.sort_by([("id", "ascending"), ("_commit_lsn", "ascending"), ("_seq", "ascending")])
    ids, quantities = changes["id"].to_numpy(), changes["quantity"].to_numpy()
    last = np.append(ids[1:] != ids[:-1], True)
    held = dict(zip(ids[last].tolist(), quantities[last].tolist(), strict=True))
    rows = dict(ground.connection.execute("SELECT id, quantity FROM orders").fetchall())
    wrong = sum(1 for id, quantity in held.items() if rows.get(id) != quantity)
    if wrong or (load.transactions == 1 and len(held) != len(rows)):
        raise WrongData(f"{load.name}: {wrong} rows of the change log differ from the table")
