"""Messages between a capture process and its parent: reports of progress, and commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from ..changelog import Usage
from ..errors import Wal2LakeError
from ..position import ZERO, Lsn

STOP = "stop"
"""the command that ends the process; any other command is the position up to which a flush is requested"""


class CaptureState(StrEnum):
    STARTING = "starting"
    STREAMING = "streaming"
    RECONNECTING = "reconnecting"
    """a transient error; retried with backoff"""
    FAILED = "failed"
    """a permanent error; the process ends"""
    STOPPED = "stopped"


@dataclass(frozen=True)
class CaptureReport:
    """Progress of capture. Positions never go back while the process lives."""

    state: CaptureState = CaptureState.STARTING
    received_lsn: Lsn = ZERO
    logged_lsn: Lsn = ZERO
    """everything that committed below this is in a manifest"""
    acknowledged_lsn: Lsn = ZERO
    manifest: int = 0
    """number of the last manifest, 0 if there is none"""
    commit_ts: datetime | None = None
    """commit time of the last transaction in that manifest"""
    error: Wal2LakeError | None = None
    """what blocks capture; None: nothing"""
    connected_once: bool = False
    """whether the stream has been open once"""
    answers: int = 0
    """number of requested flushes that are done"""
    appends: bool = False
    """whether the stream has the publication of append-only tables"""
    budget: Usage = field(default_factory=Usage)
    """usage of the change log's disk budget"""

    @property
    def fatal(self) -> bool:
        """Whether the process has given up."""
        return self.state is CaptureState.FAILED

    def following(self, before: CaptureReport) -> CaptureReport:
        """This report after an earlier one. A restarted process begins at zero, but what was logged stays logged."""
        return replace(
            self,
            received_lsn=max(self.received_lsn, before.received_lsn),
            logged_lsn=max(self.logged_lsn, before.logged_lsn),
            acknowledged_lsn=max(self.acknowledged_lsn, before.acknowledged_lsn),
            manifest=max(self.manifest, before.manifest),
            connected_once=self.connected_once or before.connected_once,
        )


class CaptureHandle(Protocol):
    """Capture of a group, as its loop controls it. What is durable in the change log survives it."""

    def start(self) -> None:
        """Start it, also after an end. Raises RuntimeError while it runs."""

    def stop(self) -> CaptureReport:
        """Stop it, after publishing what is complete if that is possible in time; return the last report."""

    def report(self) -> CaptureReport:
        """The latest report; the same object until there is a later one."""

    def request_flush(self, until: Lsn = ZERO) -> None:
        """Request that what is complete be published at once, or when everything below `until` has arrived."""


MakeCapture = Callable[[Callable[[], object]], CaptureHandle]
"""makes the capture of a group; the callback is called after each report, on any task"""


class Owner(Protocol):
    """Starts the worker, receives its reports, and decides when it stops."""

    wake: Sequence[int]
    """descriptors that become readable when `poll_commands` has work"""

    def poll_commands(self) -> Lsn | None:
        """Receive commands; return the position up to which a flush is requested, if one is."""

    @property
    def stopping(self) -> bool: ...

    def send_report(self, report: CaptureReport) -> bool:
        """Send a report without blocking; False if that is impossible at the moment."""
