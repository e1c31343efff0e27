"""The protocol of a slot that is read through SQL: what its session is asked, and how answers come.

Any method may raise `Broken` or `Refused`; the session is of no use then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...clock import Clock
from ...decode import Messages
from ...position import Lsn


class Answer(Protocol):
    """The answer to one statement, which may take long."""

    @property
    def over(self) -> bool: ...
    def gather(self, most: int) -> None:
        """Take in what has come, up to so many bytes of changes. Never waits."""


class Bite(Answer, Protocol):
    """What `pg_logical_slot_peek_binary_changes` gives: whole transactions from the slot's position on."""

    @property
    def copied(self) -> int:
        """Changes that have come so far."""

    @property
    def standing(self) -> tuple[Lsn, Lsn | None] | None:
        """Of before the bite: the end of the flushed WAL, and the position of the slot, None if there is no slot.

        None until it has come.
        """

    @property
    def size(self) -> int:
        """Bytes that have not been taken."""

    @property
    def pending(self) -> int:
        """Changes that have not been taken."""

    def take(self) -> Messages:
        """The changes that have come, each as XLogData."""


class PolledSlot(Protocol):
    """A slot, through one ordinary session that answers one thing at a time."""

    @property
    def clock(self) -> Clock: ...
    @property
    def binary(self) -> bool:
        """Whether values are given in binary form."""

    @property
    def server_version(self) -> int: ...
    @property
    def skipped(self) -> str | None:
        """Why the server has left out changes, if it said so."""

    def confirmed(self) -> Lsn | None:
        """The position of the slot. Raises SlotLost if it does not exist. Called first."""

    def flushed(self) -> Lsn:
        """The end of the flushed WAL."""

    def peek(self, most: int) -> Bite:
        """Begin to read from the slot's position on; it ends with the transaction that has the `most`th change."""

    def advance(self, to: Lsn) -> Answer:
        """Begin to move the slot; what is below the position can't be read any more."""

    def wait(self, timeout: float, wake: Sequence[int], answers: bool) -> bool:
        """Wait until time is up, a `wake` is readable or, with `answers`, something comes; whether it is a `wake`."""

    def arrives(self, seconds: float) -> bool:
        """Whether more of an answer comes within a moment."""

    def cancel(self, timeout: float) -> None:
        """Ask the server to end what it does; the rest of the answer still has to be gathered."""

    def close(self, busy: bool) -> None:
        """`busy`: an answer is not over."""
