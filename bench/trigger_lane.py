"""A table that is captured by triggers, and our capture process that drains it, without the rest of the mirror."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from wal2lake.capture.process import CaptureProcess
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import Config
from wal2lake.position import Lsn
from wal2lake.source import TriggerSource, connect, server_facts

from .ground import Ground
from .machine import cpu_seconds, share
from .recorded import LIMIT_SECONDS

GROUP = "triggers"
"""not the group of a slot beside it: a lane replaces what its group had"""


@dataclass(frozen=True)
class Drained:
    """One run of our capture over what triggers have buffered."""

    seconds: float
    """from the open lane to the durable manifest"""
    own_cores: float | None


class TriggerLane:
    """Triggers on some tables of a server."""

    def __init__(self, ground: Ground, directory: Path, *tables: str) -> None:
        self._ground = ground
        self.config = Config(
            source={"dsn": ground.dsn},
            lake={"path": str(directory)},
            groups=[
                {"name": GROUP, "capture": "trigger", "tables": [f"public.{table}" for table in tables]},
            ],
        )
        self.log = ChangeLog(storage_for(self.config.changelog_path), GROUP)
        with closing(TriggerSource(self.config, self.config.groups[0])) as source:
            if refused := source.publish(source.discover()):
                raise RuntimeError(f"no triggers: {refused}")
            with connect(self.config.source) as connection:
                self.log.create(server_facts(connection), source.slot_name)
            with source.create_slot() as taken:
                self.log.begin(taken.snapshot.lsn, token=taken.snapshot.token)

    def buffer(self, table: str) -> str:
        oid = self._ground.value(f"SELECT '{table}'::regclass::oid::int8")
        return f"wal2lake_changes.changes_{oid}"

    @contextmanager
    def capturing(self) -> Iterator[CaptureProcess]:
        capture = CaptureProcess(self.config, self.config.groups[0])
        capture.start()
        try:
            capture.wait_for(lambda report: report.connected_once or report.fatal, LIMIT_SECONDS)
            yield capture
        finally:
            capture.stop()

    def drain(self) -> Drained:
        """Bring what is committed into the change log."""
        end = Lsn.parse(self._ground.value("SELECT pg_current_wal_insert_lsn()::text"))
        with self.capturing() as capture:
            began, own = time.monotonic(), cpu_seconds(capture.pid)
            self.until(capture, end)
            seconds = time.monotonic() - began
            return Drained(seconds, share(own, cpu_seconds(capture.pid), seconds))

    def until(self, capture: CaptureProcess, end: Lsn) -> None:
        capture.request_flush(end)
        report = capture.wait_for(lambda report: report.logged_lsn >= end or report.fatal, LIMIT_SECONDS)
        if report.logged_lsn < end:
            raise RuntimeError(f"capture is not at {end} after {LIMIT_SECONDS:g} s: {report}")
