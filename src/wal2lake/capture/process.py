"""The parent's handle on the capture process of a group.

Capture runs in a process of its own, so that a slot never waits for the JVM or for Python's other threads. It is
started as a fresh interpreter that imports neither Spark nor the lake (`child.py`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection

from ..config import Config, GroupConfig
from ..errors import CaptureError
from ..position import ZERO, Lsn
from ..retry import CAPTURE
from .report import STOP, CaptureReport, CaptureState

log = logging.getLogger(__name__)

MOST_DEATHS = 5
"""so many times in a row the process may die without publishing anything"""
STOP_SECONDS = 7.0
"""how long the process may take to publish what is complete and to go"""
_BOOT = (
    # What is imported stays: collecting garbage meanwhile takes a tenth of the time.
    "import gc; gc.disable(); "
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from wal2lake.capture.child import main; main(int(sys.argv[1]))"
)


class CaptureProcess:
    """The parent's side. A thread takes in what the process says and starts it again when it dies of no error.

    `on_report` is called in that thread after each report.
    """

    def __init__(self, config: Config, group: GroupConfig, on_report: Callable[[], object] = lambda: None) -> None:
        self._config, self._group, self._on_report = config, group, on_report
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self._keeper: threading.Thread | None = None
        self._stopping = threading.Event()
        self._report = CaptureReport()
        self._changed = threading.Condition()

    def start(self) -> None:
        if self._keeper is not None and self._keeper.is_alive():
            if self._report.state not in (CaptureState.STOPPED, CaptureState.FAILED):
                raise RuntimeError(f"capture of group {self._group.name} is running")
            # The last word of a process comes a moment before its end.
            self._keeper.join()
        self._stopping.clear()
        self._report = replace(self._report, state=CaptureState.STARTING, error=None)
        self._spawn()
        self._keeper = threading.Thread(target=self._keep, name=f"capture-{self._group.name}", daemon=True)
        self._keeper.start()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def report(self) -> CaptureReport:
        """The latest report."""
        return self._report

    def wait_for(self, condition: Callable[[CaptureReport], bool], timeout: float) -> CaptureReport:
        """Wait until a report meets a condition, at most so many seconds; the latest report either way."""
        with self._changed:
            self._changed.wait_for(lambda: condition(self._report), timeout)
        return self._report

    def request_flush(self, until: Lsn = ZERO) -> None:
        """Ask for what is complete to be published at once, or when all below `until` has come."""
        self._send(until)

    def stop(self, timeout: float = STOP_SECONDS) -> CaptureReport:
        """End the process cleanly; by force when it takes too long. What is durable stays, the rest comes again."""
        self._stopping.set()
        if self._process is None or self._keeper is None:
            return self._report
        self._send(STOP)
        self._keeper.join(timeout)
        if self._keeper.is_alive():
            log.warning("capture of group %s does not stop: killed", self._group.name)
            self._process.kill()
            self._keeper.join()
        return self._report

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # A process group of its own: Ctrl-C in the terminal reaches the parent alone.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0,
                # NumPy's algebra, which nothing here uses, would start its threads with the process.
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            )  # fmt: skip
        self._link = Connection(ours.detach())
        self._send((self._config, self._group, logging.getLogger("wal2lake").getEffectiveLevel()))
        if self._stopping.is_set():
            # It may have been set after the last process died and before this one could be told.
            self._send(STOP)

    def _send(self, message: object) -> None:
        if self._link is not None and not self._link.closed:
            with contextlib.suppress(OSError):
                self._link.send(message)

    def _keep(self) -> None:
        deaths = 0
        while True:
            before = self._report.manifest
            code = self._take()
            if self._report.state in (CaptureState.STOPPED, CaptureState.FAILED):
                return
            deaths = deaths + 1 if self._report.manifest == before else 1
            error = CaptureError(group=self._group.name, cause=f"it ended unexpectedly (exit status {code})")
            ends = self._stopping.is_set() or deaths > MOST_DEATHS
            self._set(
                replace(self._report, state=CaptureState.FAILED if ends else CaptureState.RECONNECTING, error=error)
            )
            if ends or self._stopping.wait(CAPTURE.after(deaths)):
                return
            log.warning("%s: started again", error)
            self._spawn()

    def _take(self) -> int:
        """Take in all that one process says, until it ends; its exit status."""
        link, process = self._link, self._process
        assert link is not None and process is not None
        with link:
            while True:
                try:
                    kind, value = link.recv()
                except (EOFError, OSError):
                    return process.wait()
                if kind == "report":
                    self._set(value)
                else:
                    name, level, text = value
                    logging.getLogger(name).log(level, "%s", text)

    def _set(self, report: CaptureReport) -> None:
        with self._changed:
            # A process that was started again begins at zero; what was logged stays logged.
            self._report = replace(
                report,
                received_lsn=max(report.received_lsn, self._report.received_lsn),
                logged_lsn=max(report.logged_lsn, self._report.logged_lsn),
                acknowledged_lsn=max(report.acknowledged_lsn, self._report.acknowledged_lsn),
                manifest=max(report.manifest, self._report.manifest),
                connected_once=report.connected_once or self._report.connected_once,
            )
            self._changed.notify_all()
        self._on_report()
