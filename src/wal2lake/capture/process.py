"""The parent's handle on the capture process of a group.

Capture runs in a process of its own, so that a slot never waits for the JVM or for other Python threads. The process is
a new interpreter that imports neither Spark nor the lake (`child.py`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Protocol

from ..config import Config, GroupConfig
from ..errors import CaptureError
from ..executor import SYSTEM_EXECUTOR, Executor, Task
from ..position import ZERO, Lsn
from ..retry import CAPTURE
from .report import STOP, CaptureReport, CaptureState

log = logging.getLogger(__name__)

MOST_DEATHS = 5
"""consecutive deaths without a published manifest after which it is not restarted"""
STOP_SECONDS = 7.0
"""limit for the process to publish what is complete and to end"""
_BOOT = (
    # Imported modules are permanent; garbage collection during imports takes a tenth of the time.
    "import gc; gc.disable(); "
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from wal2lake.capture.child import main; main(int(sys.argv[1]))"
)


class ChildProcess(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Wait for its end; its exit status."""

    def kill(self) -> None: ...


def launch(link: socket.socket) -> ChildProcess:
    """Start a capture process as a new interpreter, with the child's end of the link."""
    # A process group of its own, so that Ctrl-C in the terminal reaches the parent only.
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, str(link.fileno()), json.dumps(sys.path)],
        pass_fds=[link.fileno()], stdin=subprocess.DEVNULL, process_group=0,
        # Nothing here uses NumPy's linear algebra, which would start threads at import.
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
    )  # fmt: skip


class CaptureProcess:
    """The parent's side. A thread receives messages of the process, and restarts it if it dies without an error.

    `on_report` is called on that thread after each report.
    """

    def __init__(
        self, config: Config, group: GroupConfig, on_report: Callable[[], object] = lambda: None,
        executor: Executor = SYSTEM_EXECUTOR,
    ) -> None:  # fmt: skip
        self._config, self._group, self._on_report, self._executor = config, group, on_report, executor
        self._process: ChildProcess | None = None
        self._link: Connection | None = None
        self._keeper: Task | None = None
        self._stopping = executor.event()
        self._report = CaptureReport()
        self._changed = executor.condition()

    def start(self) -> None:
        if self._keeper is not None and self._keeper.is_alive():
            if self._report.state not in (CaptureState.STOPPED, CaptureState.FAILED):
                raise RuntimeError(f"capture of group {self._group.name} is running")
            # The last report of a process arrives just before its end.
            self._keeper.join()
        self._stopping.clear()
        self._report = replace(self._report, state=CaptureState.STARTING, error=None)
        self._spawn()
        self._keeper = self._executor.start(f"capture-{self._group.name}", self._keep, daemon=True)

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
        """Wait at most `timeout` seconds for a report that meets a condition; return the latest report in any case."""
        with self._changed:
            self._changed.wait_for(lambda: condition(self._report), timeout)
        return self._report

    def request_flush(self, until: Lsn = ZERO) -> None:
        """Request that what is complete be published at once, or when everything below `until` has arrived."""
        self._send(until)

    def stop(self, timeout: float = STOP_SECONDS) -> CaptureReport:
        """End the process cleanly, or kill it after the timeout. What is not durable is read again later."""
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
            self._process = launch(theirs)
        self._link = Connection(ours.detach())
        self._send((self._config, self._group, logging.getLogger("wal2lake").getEffectiveLevel()))
        if self._stopping.is_set():
            # A flush may have been requested between the death of the last process and the start of this one.
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
            log.warning("%s: it is restarted", error)
            self._spawn()

    def _take(self) -> int:
        """Receive everything that one process sends until it ends; return its exit status."""
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
            self._report = report.following(self._report)
            self._changed.notify_all()
        self._on_report()
