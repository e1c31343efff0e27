"""The capture process: its entry point, and its side of the link to the parent.

It ends when it is told to, on SIGTERM, and when its parent is gone; Ctrl-C is for the parent to decide on.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from ..position import ZERO, Lsn
from .report import STOP, CaptureReport, CaptureState
from .worker import CaptureWorker


class _Parent(logging.Handler):
    """The child's side of the link: commands in, reports and log records out, never waiting for the other end."""

    def __init__(self, link: Connection) -> None:
        super().__init__()
        self._link = link
        self._stopping = False
        self._signalled, self._signal = os.pipe()
        os.set_blocking(self._signal, False)
        self.wake: Sequence[int] = (link.fileno(), self._signalled)

    def catch_signals(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: Any) -> None:
        self._stopping = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._signal, b"x")

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
            # The parent is gone: finish what is complete and go, too.
            self._stopping = True
        return flush_requested

    def send_report(self, report: CaptureReport) -> bool:
        return self._pass_on("report", report)

    def emit(self, record: logging.LogRecord) -> None:
        self._pass_on("log", (record.name, record.levelno, self.format(record)))

    def _pass_on(self, kind: str, value: object) -> bool:
        try:
            # A socket that takes anything takes one of these: they are small beside its buffer.
            if not select.select([], [self._link], [], 0)[1]:
                return False
            self._link.send((kind, value))
        except OSError:
            self._stopping = True
        return True


def _settle_interpreter() -> None:
    """What is loaded stays, and of the objects that come by the million next to none is part of a cycle."""
    # With the process, and not with the first rows.
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    # The thread that reads is busy in Python; those that decode need it for a moment between long calls.
    sys.setswitchinterval(0.001)


def main(fd: int) -> None:
    """The child's entry."""
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
    # What it warns of, as of a rollback on a lost connection, comes as an error of ours, too.
    logging.getLogger("psycopg").setLevel(logging.WARNING if level <= logging.DEBUG else logging.CRITICAL + 1)
    _settle_interpreter()
    worker = CaptureWorker(config, group, parent)
    worker.run()
    if worker.report.state is CaptureState.FAILED:
        sys.exit(1)
