"""What a capture process and its parent tell each other: how far capture is, and what it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from ..changelog.budget import Usage
from ..errors import Wal2LakeError
from ..position import ZERO, Lsn

STOP = "stop"
"""the command that ends the process; every other command is a position up to which a flush is requested"""


class CaptureState(StrEnum):
    STARTING = "starting"
    STREAMING = "streaming"
    RECONNECTING = "reconnecting"
    """an error that goes away by itself; tried again with backoff"""
    FAILED = "failed"
    """an error that stays; the process ends"""
    STOPPED = "stopped"


@dataclass(frozen=True)
class CaptureReport:
    """How far capture is. Positions never go back while the process lives."""

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
    """what blocks capture; None when all is well"""
    connected_once: bool = False
    """whether the stream has ever been open"""
    answers: int = 0
    """how many requested flushes are done"""
    appends: bool = False
    """whether the stream has the publication of append-only tables"""
    budget: Usage = field(default_factory=Usage)
    """how full the change log is"""

    @property
    def fatal(self) -> bool:
        """Whether the process has given up."""
        return self.state is CaptureState.FAILED


class Owner(Protocol):
    """Whoever started the worker: gets its reports, and says when to stop."""

    wake: Sequence[int]
    """file descriptors that become readable when `attend` has something to do"""

    def poll_commands(self) -> Lsn | None:
        """Take what has come in; up to where it asks for a flush without waiting for the interval, if it does."""

    @property
    def stopping(self) -> bool: ...

    def send_report(self, report: CaptureReport) -> bool:
        """Pass a report on without waiting; False if it can't be taken right now."""
