"""The stream of a slot where triggers captured before: what their last drain has seen is left out.

    last drain: position P, snapshot S          boundary B: a position after S was taken, inside a record of ours
    commit LSN < B:  S sees it ─► left out;  S does not see it ─► part of one transaction that commits at B
    commit LSN ≥ B:  as it is

A commit that waits for a synchronous standby has a commit record below P and is not in S; its own LSN would put it
before what the lake has already. Therefore all that S does not see below B is one transaction at B, as if it were one
more drain. Nothing is acknowledged before that is durable, so after a crash the same transactions come again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from ...decode import Messages
from ...position import Lsn
from ...visibility import Visibility
from ..ports import ChangeSource

_HEADER = 25
"""of XLogData, before the message"""
_BEGIN, _COMMIT, _RELATION, _ORIGIN = ord("B"), ord("C"), ord("R"), ord("O")
_BEGIN_BODY = struct.Struct(">qqI")
_COMMIT_BODY = struct.Struct(">Bqqq")


class CrossingStream:
    """Implements ChangeSource around the stream of a slot, which begins at or before the last drain's position."""

    awaits_acknowledgement = False

    def __init__(self, stream: ChangeSource, position: Lsn, crossing: Visibility) -> None:
        """`position`: what the last drain ended at."""
        self._stream, self._position, self._crossing = stream, position, crossing
        self.capabilities = replace(stream.capabilities, streamed=False)
        self._over = False
        """whether everything below the boundary has been given"""
        self._seen: bool | None = None
        """whether triggers have captured the transaction that is being read; None between transactions"""
        self._gathering: int | None = None
        """the commit time of the transaction at the boundary, once it is begun"""

    @property
    def received(self) -> Lsn:
        return self._stream.received if self._over else self._position

    @property
    def keepalive_lsn(self) -> Lsn:
        return self._stream.keepalive_lsn if self._over else self._position

    @property
    def acknowledged(self) -> Lsn:
        return max(self._stream.acknowledged, self._position)

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        messages = self._stream.read(timeout, wake)
        if self._over:
            return messages
        given = list(self._crossed(messages))
        if not self._over and self._seen is None and self._stream.keepalive_lsn >= self._crossing.until:
            given += self._end()
        return Messages.of(given)

    def _crossed(self, messages: Messages) -> Iterator[bytes]:
        for message in messages:
            kind = message[_HEADER]
            if self._over or kind == _RELATION:
                yield message
            elif kind == _BEGIN:
                yield from self._begin(message)
            elif kind == _COMMIT:
                self._seen = None
            elif not self._seen and kind != _ORIGIN:
                yield message

    def _begin(self, message: bytes) -> Iterator[bytes]:
        commit_lsn, us, xid = _BEGIN_BODY.unpack_from(message, _HEADER + 1)
        if commit_lsn >= self._crossing.until:
            yield from self._end()
            yield message
            return
        self._seen = self._crossing.sees(commit_lsn, xid)
        if not self._seen and self._gathering is None:
            self._gathering = us
            body = _BEGIN_BODY.pack(self._crossing.until - 1, us, xid)
            yield message[: _HEADER + 1] + body

    def _end(self) -> list[bytes]:
        self._over = True
        if self._gathering is None:
            return []
        until = int(self._crossing.until)
        body = _COMMIT_BODY.pack(0, until - 1, until, self._gathering)
        return [b"w" + bytes(_HEADER - 1) + b"C" + body]

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        self._stream.stay(timeout, wake)

    def ask(self) -> None:
        self._stream.ask()

    def acknowledge(self, lsn: Lsn) -> None:
        # Below the boundary, the server would leave out what was not given yet.
        if lsn >= self._crossing.until:
            self._stream.acknowledge(lsn)

    def finish(self, timeout: float = 2.0) -> None:
        self._stream.finish(timeout)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
