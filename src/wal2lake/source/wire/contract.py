"""What a wire does, and what may become of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...decode import Messages


@dataclass(frozen=True)
class Said:
    """An error or a notice of the server."""

    state: str
    """its SQLSTATE; empty if there is none"""
    text: str
    """the primary message alone: details may hold row values"""


class Refused(Exception):
    """The server ended the stream with an error, or did not begin it."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.text)
        self.said = said


class Broken(Exception):
    """The line is gone, or the server ended the stream without a reason."""


@dataclass(frozen=True)
class Arrived:
    """Whole messages, in their order."""

    messages: Messages
    """of the WAL, each with the header of XLogData"""
    keepalives: list[bytes]


class Wire(Protocol):
    """One stream. Every method may raise `Broken`, and those that look at what came `Refused`."""

    gathered: int
    """bytes that have come since the last `take`"""

    @property
    def fileno(self) -> int:
        """What to wait on."""

    def ask(self, command: bytes) -> None:
        """Send the command that begins the stream."""

    def agreed(self) -> bool:
        """Whether the server has begun it; False if its answer has not come yet."""

    def gather(self) -> bool:
        """Take in what has come, as far as there is room; whether it was anything."""

    def take(self) -> Arrived:
        """Hand out what is whole of it."""

    def send(self, message: bytes) -> None:
        """Have a message on its way, or kept for `flush`."""

    def end(self) -> None:
        """Tell the server that no message follows."""

    def flush(self) -> bool:
        """Send what is left; whether that was all."""

    def close(self) -> None:
        """End the connection."""
