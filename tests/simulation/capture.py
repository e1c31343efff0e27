"""The capture of a group as tasks of a simulated process: the link to its parent is in memory.

It behaves towards the loop as `CaptureProcess` does: it reports, it is started again when it crashes, it gives up when
it crashes too often, and it stops when it is told to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from simulation.executor import SimulatedExecutor
from simulation.tasks import SimulatedTask
from wal2lake.capture.process import MOST_DEATHS, STOP_SECONDS
from wal2lake.capture.report import CaptureReport, CaptureState, Owner
from wal2lake.errors import CaptureError
from wal2lake.position import ZERO, Lsn
from wal2lake.retry import CAPTURE

ENDED = (CaptureState.STOPPED, CaptureState.FAILED)


class Worker(Protocol):
    """What runs in the process."""

    def run(self) -> None: ...


class Link:
    """The child's side: an Owner. What the parent asks for is seen at the child's next look, as on a socket."""

    def __init__(self, executor: SimulatedExecutor) -> None:
        self._executor, self._wakeup = executor, executor.wakeup()
        self._commands: list[Lsn | None] = []
        self.reports = executor.queue()
        self.wake: Sequence[int] = (self._wakeup.fileno(),)
        self.stopping = False

    def poll_commands(self) -> Lsn | None:
        self._executor.yield_()
        commands, self._commands = self._commands, []
        self._wakeup.clear()
        self.stopping = self.stopping or None in commands
        return max((command for command in commands if command is not None), default=None)

    def send_report(self, report: CaptureReport) -> bool:
        self.reports.put(report)
        return True

    def send(self, command: Lsn | None) -> None:
        """From the parent: a position, or None to stop."""
        self._commands.append(command)
        self._wakeup.set()


class SimulatedCapture:
    """A CaptureHandle. `make` makes what runs in the process, for the child's side of a link."""

    def __init__(
        self, executor: SimulatedExecutor, group: str, make: Callable[[Owner], Worker],
        on_report: Callable[[], object] = lambda: None, parent: str = "", kill: Callable[[str], object] | None = None,
    ) -> None:  # fmt: skip
        """`parent`: the process that it is of; one that is started after it must have another name.

        `kill`: ends a process with all that it has opened.
        """
        self._kill = kill or executor.kill
        self._parent = f"{parent}/" if parent else ""
        self._executor, self._group, self._make, self._on_report = executor, group, make, on_report
        self._report = CaptureReport()
        self._stopping = executor.event()
        self._link: Link | None = None
        self._keeper: SimulatedTask | None = None
        self._started = 0

    @property
    def process(self) -> str:
        """The name of the process that runs, for `SimulatedExecutor.kill`."""
        return f"{self._parent}capture-{self._group}-{self._started}"

    def start(self) -> None:
        if self._keeper is not None and self._keeper.is_alive():
            if self._report.state not in ENDED:
                raise RuntimeError(f"capture of group {self._group} is running")
            self._keeper.join()
        self._stopping.clear()
        self._report = replace(self._report, state=CaptureState.STARTING, error=None)
        self._keeper = self._executor.start(f"keep-capture-{self._group}", self._keep, daemon=True)

    def report(self) -> CaptureReport:
        return self._report

    def request_flush(self, until: Lsn = ZERO) -> None:
        if self._link is not None:
            self._link.send(until)

    def stop(self) -> CaptureReport:
        self._stopping.set()
        if self._keeper is not None:
            if self._link is not None:
                self._link.send(None)
            self._keeper.join(STOP_SECONDS)
            if self._keeper.is_alive():
                self._kill(self.process)
                self._keeper.join()
        return self._report

    def orphan(self) -> None:
        """The parent has crashed: the child sees the end of the link, publishes what is complete, and ends."""
        if self._link is not None:
            self._link.send(None)

    def _keep(self) -> None:
        deaths = 0
        while True:
            before = self._report.manifest
            self._run_one()
            if self._report.state in ENDED:
                return
            deaths = deaths + 1 if self._report.manifest == before else 1
            error = CaptureError(group=self._group, cause="it ended unexpectedly (it was killed)")
            ends = self._stopping.is_set() or deaths > MOST_DEATHS
            state = CaptureState.FAILED if ends else CaptureState.RECONNECTING
            self._set(replace(self._report, state=state, error=error))
            if ends or self._stopping.wait(CAPTURE.after(deaths)):
                return

    def _run_one(self) -> None:
        """Run one process, and take in what it reports until it ends."""
        self._started += 1
        link = self._link = Link(self._executor)
        if self._stopping.is_set():
            link.send(None)
        child = self._executor.spawn(self.process, self.process, lambda: self._make(link).run(), daemon=True)

        def close() -> None:
            child.join()
            link.reports.put(None)

        self._executor.start(f"end-of-{self.process}", close, daemon=True)
        while (report := link.reports.get()) is not None:
            self._set(report)

    def _set(self, report: CaptureReport) -> None:
        self._report = report.following(self._report)
        self._on_report()
