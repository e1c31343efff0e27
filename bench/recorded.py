"""A load's WAL, written once behind a slot and read as often as wanted, by whoever wants to.

Each reader gets a new copy of that slot, so all have the same WAL before them and the server has the same decoding to
do. wal2lake reads it with its real capture process: decoded, written as segments, published and acknowledged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from wal2lake.capture.process import CaptureProcess
from wal2lake.capture.report import CaptureReport
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import Config
from wal2lake.demo.server import HOST, SUPERUSER, find_binaries
from wal2lake.position import Lsn
from wal2lake.source import connect, server_facts
from wal2lake.source.publishing import publication, slot

from .contents import SourceTable, require_same_changes, segments_of
from .ground import DATABASE, Ground, prepared
from .loads import Load
from .machine import cpu_seconds, disk_bytes, peak_memory, share
from .model import require_equal

GROUP = "bench"
SLOT = slot.slot_name(GROUP, DATABASE)
PUBLICATION = publication.publication_name(GROUP)
TEMPLATE, PEER_SLOT = "bench_template", "bench_peer"
LIMIT_SECONDS = 1800.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Taken:
    """One run of our capture over a load."""

    start_seconds: float
    """from the start of the process to the open stream"""
    seconds: float
    """from the open stream to the acknowledgement"""
    manifests: int
    own_cores: float | None
    server_cores: float | None
    """cores that the capture process and the server's walsender kept busy"""
    peak_memory: int | None
    """most bytes that the process had in memory"""
    disk: int
    """most bytes that the change log took"""


@dataclass(frozen=True)
class Recorded:
    ground: Ground
    load: Load
    end: Lsn
    """whoever is beyond it has the whole load"""
    before: dict[str, Any]
    """the tables' rows before the load"""

    def capture(self, directory: Path, *, streaming: bool = True, mode: str = "auto") -> Taken:
        """Let our capture take the load in, into a change log below an empty directory."""
        config = self._config(directory, streaming, mode)
        log = ChangeLog(storage_for(config.changelog_path), GROUP)
        with connect(config.source) as connection:
            log.create(server_facts(connection), SLOT)
        log.begin(self.copy_slot(SLOT))
        capture = CaptureProcess(config, config.groups[0])
        launched = time.monotonic()
        capture.start()
        try:
            capture.wait_for(lambda report: report.connected_once or report.fatal, LIMIT_SECONDS)
            began, own = time.monotonic(), cpu_seconds(capture.pid)
            sender = self.ground.value(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
            disk = self._until_acknowledged(capture, log)
            seconds = time.monotonic() - began
            own_cores = share(own, cpu_seconds(capture.pid), seconds)
            # The walsender began when the stream did.
            server_cores = None if sender is None else share(0.0, cpu_seconds(sender), seconds)
            memory = peak_memory(capture.pid)
        finally:
            report = capture.stop()
        self.drop_slot(SLOT)
        return Taken(began - launched, seconds, report.manifest, own_cores, server_cores, memory, disk)

    def receive(self) -> float:
        """Seconds that pg_recvlogical takes, from its start to its end; it keeps nothing."""
        self.copy_slot(PEER_SLOT)
        command = [
            str(find_binaries() / "pg_recvlogical"), "--host", HOST, "--port", str(self.ground.server.port),
            "--username", SUPERUSER, "--dbname", DATABASE, "--slot", PEER_SLOT, "--start", "--no-loop",
            "--endpos", str(self.end), "-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}",
            "--file", os.devnull,
        ]  # fmt: skip
        environment = {**os.environ, "PGPASSWORD": self.ground.server.password}
        began = time.monotonic()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
        seconds = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(f"pg_recvlogical failed: {done.stderr.strip()}")
        self.drop_slot(PEER_SLOT)
        return seconds

    def verify(self, directory: Path, *, contents: bool) -> None:
        """The change log has every change; with `contents` also: it makes of the tables before what they are."""
        log = self.log(directory)
        for name, changes in self.load.changes.items():
            table = SourceTable(self.ground.connection, name)
            found = sum(segment.rows for segment in segments_of(log, table.oid))
            require_equal(f"{self.load.name}: changes of {name} in the manifests", found, changes)
            if contents:
                require_same_changes(log, table, self.before[name])

    def log(self, directory: Path) -> ChangeLog:
        return ChangeLog(storage_for(self._config(directory).changelog_path), GROUP)

    def copy_slot(self, name: str) -> Lsn:
        """Make a slot that has the load before it; where it begins."""
        self.ground.connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (TEMPLATE, name))
        return Lsn.parse(
            self.ground.value(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{name}'")
        )

    def drop_slot(self, name: str) -> None:
        with connect(Config(source={"dsn": self.ground.dsn}).source) as connection:
            slot.drop(connection, name)

    def _config(self, directory: Path, streaming: bool = True, mode: str = "auto") -> Config:
        source = {"dsn": self.ground.dsn, **({} if streaming else {"streaming": False})}
        return Config(source=source, lake={"path": str(directory)}, groups=[{"name": GROUP, "capture": mode}])

    def _until_acknowledged(self, capture: CaptureProcess, log: ChangeLog) -> int:
        """Wait until the load is published and acknowledged; the most that the log took meanwhile."""

        def over(report: CaptureReport) -> bool:
            return report.acknowledged_lsn > self.end or report.fatal

        limit, most, looked = time.monotonic() + LIMIT_SECONDS, 0, time.monotonic()
        # When all has come it is published without waiting for the interval, as `run --once` has it.
        capture.request_flush(Lsn(self.end + 1))
        while not over(report := capture.wait_for(over, POLL_SECONDS)):
            if time.monotonic() > looked + 10 * POLL_SECONDS:
                most, looked = max(most, disk_bytes(Path(log.storage.uri()))), time.monotonic()
            if time.monotonic() > limit:
                raise RuntimeError(f"capture is not beyond {self.end} after {LIMIT_SECONDS:g} s: {report}")
        if report.fatal:
            raise RuntimeError(f"capture failed: {report.error}")
        return max(most, disk_bytes(Path(log.storage.uri())))


@contextmanager
def recorded(load: Load, *, keep_before: bool = True) -> Iterator[Recorded]:
    """Write a load behind a fresh slot, on a server of its own; `keep_before`: for a comparison of whole tables."""
    with prepared() as ground:
        connection = ground.connection
        connection.execute("CREATE TABLE finish (id int PRIMARY KEY)")
        load.before(ground)
        ground.settle()
        tables = ", ".join(f'"{name}"' for name in load.changes)
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {tables}, finish")
        before = {name: SourceTable(connection, name).read() for name in load.changes} if keep_before else {}
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (TEMPLATE,))
        load.write(ground)
        end = Lsn.parse(ground.value("SELECT pg_current_wal_insert_lsn()::text"))
        # What lies beyond `end` begins with this transaction, so whoever is beyond `end` has the whole load.
        connection.execute("INSERT INTO finish VALUES (1)")
        ground.settle()
        yield Recorded(ground, load, end, before)


@contextmanager
def scratch(record: Recorded, name: str) -> Iterator[Path]:
    """A directory for one change log; it is removed with all that is in it."""
    directory = record.ground.directory / name
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def middle(values: list[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
