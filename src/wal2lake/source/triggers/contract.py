"""The protocols of a lane: buffers that triggers fill, as drains and copies use them.

Any method raises ConnectionFailed if the server can't be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...clock import Clock
from ...decode import Messages
from ...position import Lsn
from ...visibility import PgSnapshot
from ..model import ExportedSnapshot
from .definition import Buffer


@dataclass(frozen=True)
class Filled:
    """A buffer that has rows for a drain."""

    buffer: Buffer
    ordered: bool
    """whether there are truncations or marks among them"""


@dataclass(frozen=True)
class Drain:
    """What a drain is made of; its transaction is open until its last message was taken."""

    snapshot: PgSnapshot
    position: Lsn
    filled: Sequence[Filled]
    us: int
    """when it began, in microseconds since PostgreSQL's epoch"""


@dataclass(frozen=True)
class Request:
    """What a copy has asked a lane for, and the answer."""

    asked: str | None
    """its number; None: nobody asks"""
    answered: str | None
    granted: bool


@dataclass(frozen=True)
class Look:
    """A lane at one moment."""

    position: Lsn
    """the end of the WAL, read before anything else: all that committed below it can be seen afterwards"""
    asked: str | None
    """the number of a copy's request"""
    exported: str | None
    """the snapshot that it is about"""
    asked_position: Lsn | None
    answered: str | None


class DrainRequests(Protocol):
    """What copies ask a lane for: a drain at a snapshot that they have exported."""

    def ask(self, number: str, snapshot: ExportedSnapshot) -> bool:
        """Ask, unless another copy waits for its answer. Who is gone has left a snapshot that is gone, too."""

    def answer(self) -> Request | None:
        """None if there is no lane any more."""

    def withdraw(self, number: str) -> None: ...


class Buffers(Protocol):
    """The buffers of a lane, for the one stream that drains them: a session for drains, and one for all else."""

    @property
    def clock(self) -> Clock: ...
    def exist(self) -> bool: ...
    def present(self) -> Sequence[Buffer]:
        """All of the lane, also those that are not filled any more."""

    def look(self) -> Look | None:
        """None if there is no lane any more."""

    def snapshot(self) -> str:
        """The present one."""

    def mark(self) -> None:
        """Write a message to the WAL, so that its end moves."""

    def begin(self, last: PgSnapshot | None, position: Lsn, exported: str | None = None) -> Drain:
        """Open a drain's transaction, of rows that it sees and `last` does not. Raises SourceError if the snapshot that
        it is to have is gone.
        """

    def read(self, drain: Drain, last: PgSnapshot | None, binary: bool) -> Iterator[Messages]:
        """The messages of a drain with rows, a portion at a time; with the last its transaction ends."""

    def end(self) -> None:
        """End the transaction of a drain."""

    def abandon(self) -> None:
        """The same after an error."""

    def delete(self, buffer: Buffer, seen: PgSnapshot) -> int:
        """Delete the rows that a snapshot sees; how many."""

    def vacuum(self, buffer: Buffer) -> None: ...
    def reached(self, position: Lsn) -> None:
        """Note how far the lane was captured, for people."""

    def answer(self, number: str, granted: bool) -> None: ...
    def follow(self) -> None:
        """Have altered tables captured in their new columns. Raises SourceBusy where one is locked."""

    def tidy(self) -> None:
        """Drop buffers that nothing fills any more and that are empty. Raises SourceBusy where one is locked."""

    def wait(self, timeout: float, wake: Sequence[int]) -> None:
        """Until time is up, or a `wake` is readable."""

    def close(self) -> None: ...
