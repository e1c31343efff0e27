"""The capture process: its entry point, and its end of the link to the parent.

It ends on the stop command, on SIGTERM, and when its parent has died. Ctrl-C is handled by the parent.
"""

from __future__ import annotations

import gc
import logging
import select
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from ..changelog import storage_for
from ..executor import SYSTEM_EXECUTOR
from ..position import ZERO, Lsn
from .postgres import capture_source
from .report import STOP, CaptureReport, CaptureState
from .worker import CaptureWorker


class _Parent(logging.Handler):
    """The child's end of the link: receives commands, sends reports and log records; never blocks."""

    def __init__(self, link: Connection) -> None:
        super().__init__()
        self._link = link
        self._stopping = False
        self._terminated = SYSTEM_EXECUTOR.wakeup()
        self.wake: Sequence[int] = (link.fileno(), self._terminated.fileno())

    def catch_signals(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: Any) -> None:
        self._stopping = True
        self._terminated.set()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def poll_commands(self) -> Lsn | None:
        flush_requested: Lsn | None = None
        try:
            while not self._stopping and self._link.poll():
                command = self._link.recv()
                if command == STOP:
                    self._stopping = True
                else:
                    flush_requested = max(command, flush_requested or ZERO)
        except (EOFError, OSError):
            # The parent has died: publish what is complete and end.
            self._stopping = True
        return flush_requested

    def send_report(self, report: CaptureReport) -> bool:
        return self._pass_on("report", report)

    def emit(self, record: logging.LogRecord) -> None:
        self._pass_on("log", (record.name, record.levelno, self.format(record)))

    def _pass_on(self, kind: str, value: object) -> bool:
        try:
            # A socket that is writable takes a whole message: messages are small beside its buffer.
            if not select.select([], [self._link], [], 0)[1]:
                return False
            self._link.send((kind, value))
        except OSError:
            self._stopping = True
        return True


def _tune_interpreter() -> None:
    """Garbage collection is limited: imports are permanent, and the many objects of decoding form almost no cycles."""
    # Imported at the start, not with the first rows.
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    # The reading thread is busy in Python; decoding threads need the GIL briefly between long calls.
    sys.setswitchinterval(0.001)


def main(fd: int) -> None:
    """Entry point of the child."""
    link = Connection(fd)
    parent = _Parent(link)
    parent.catch_signals()
    try:
        config, group, level = link.recv()
    except (EOFError, OSError):
        return
    ours = logging.getLogger("wal2lake")
    ours.setLevel(level)
    ours.propagate = False
    ours.addHandler(parent)
    # Its warnings, for example of a rollback on a lost connection, are also raised as errors of ours.
    logging.getLogger("psycopg").setLevel(logging.WARNING if level <= logging.DEBUG else logging.CRITICAL + 1)
    _tune_interpreter()
    worker = CaptureWorker(config, group, parent, capture_source(config, group), storage_for(config.changelog_path))
    worker.run()
    if worker.report.state is CaptureState.FAILED:
        sys.exit(1)
