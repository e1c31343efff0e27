"""The protocol of a wire, and its exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ....decode import Messages


@dataclass(frozen=True)
class Said:
    """An error or a notice of the server."""

    state: str
    """its SQLSTATE; empty if there is none"""
    text: str
    """the primary message only: details may hold row values"""


class Refused(Exception):
    """The server ended the stream with an error, or refused to start it."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.text)
        self.said = said


class Broken(Exception):
    """The connection is lost, or the server ended the stream without a reason."""


@dataclass(frozen=True)
class Arrived:
    """Whole messages, in order."""

    messages: Messages
    """messages with WAL, each with the header of XLogData"""
    keepalives: list[bytes]


class Wire(Protocol):
    """One stream. Every method may raise `Broken`; methods that look at received messages may raise `Refused`."""

    gathered: int
    """bytes received since the last `take`"""

    @property
    def fileno(self) -> int:
        """The descriptor to wait on."""

    def ask(self, command: bytes) -> None:
        """Send the command that starts the stream."""

    def agreed(self) -> bool:
        """Whether the server has started the stream; False if its answer has not arrived."""

    def gather(self) -> bool:
        """Receive what has arrived, as far as there is room; return whether there was anything."""

    def take(self) -> Arrived:
        """Return the whole messages received."""

    def send(self, message: bytes) -> None:
        """Send a message, or keep it for `flush`."""

    def end(self) -> None:
        """Send the end of the stream."""

    def flush(self) -> bool:
        """Send what is left; return whether that was all."""

    def close(self) -> None:
        """Close the connection."""
