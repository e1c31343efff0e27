"""A capture worker in this process, on a thread, so that a test can stop it at named points."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from capturing import PATIENCE, CapturedGroup
from wal2lake.capture.postgres import capture_source
from wal2lake.capture.report import CaptureReport
from wal2lake.capture.worker import CaptureWorker
from wal2lake.changelog import storage_for
from wal2lake.position import ZERO, Lsn
from wal2lake.source import connect, mark


class RunningPump:
    """Follows the group's stream until the end of the `with` block."""

    def __init__(self, group: CapturedGroup) -> None:
        self._config = group.config
        self._read, self._write = os.pipe()
        self.wake: Sequence[int] = (self._read,)
        self.stopping = False
        self._flush_requested: Lsn | None = None
        self._changed = threading.Condition()
        self.reports: list[CaptureReport] = []
        source = capture_source(group.config, group.group)
        self._thread = threading.Thread(
            target=CaptureWorker(group.config, group.group, self, source, storage_for(group.config.changelog_path)).run
        )

    def poll_commands(self) -> Lsn | None:
        flush_requested, self._flush_requested = self._flush_requested, None
        if flush_requested is not None:
            os.read(self._read, 100)
        return flush_requested

    def send_report(self, report: CaptureReport) -> bool:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()
        return True

    def request_flush(self, until: Lsn = ZERO) -> None:
        self._flush_requested = until
        os.write(self._write, b"x")

    def wait_for(self, condition: Callable[[CaptureReport], bool]) -> CaptureReport:
        with self._changed:
            found = self._changed.wait_for(lambda: bool(self.reports) and condition(self.reports[-1]), PATIENCE)
        assert found, self.reports[-1:]
        return self.reports[-1]

    def catch_up(self) -> CaptureReport:
        """Wait until all that is committed now is logged."""
        with connect(self._config.source) as conn:
            until = mark(conn)
        self.request_flush(until)
        return self.wait_for(lambda report: report.logged_lsn >= until or report.fatal)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping = True
        os.write(self._write, b"x")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)
