"""The reading side of working ahead: blocks of running transactions go to the pipeline in portions worth decoding.

A transaction that loses a part to a rollback is no longer worked on ahead; it is read from its spool at its commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..decode import Messages, slice_bytes
from .pipeline import Pipeline

MOST_AHEAD = 2
"""transactions at a time: each has segments of its own that grow"""


@dataclass
class _Waiting:
    parts: list[Messages] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0


class Ahead:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._waiting: dict[int, _Waiting] = {}

    def begin(self, xid: int) -> None:
        if len(self._waiting) < MOST_AHEAD:
            self._waiting[xid] = _Waiting()

    def take(self, xid: int, messages: Messages) -> None:
        waiting = self._waiting.get(xid)
        if waiting is None:
            return
        waiting.parts.append(messages)
        waiting.bytes += messages.size
        waiting.messages += len(messages)
        if waiting.bytes >= slice_bytes(waiting.bytes, waiting.messages):
            self._pipeline.take_ahead(xid, waiting.parts)
            self._waiting[xid] = _Waiting()

    def forget(self, xid: int) -> None:
        if self._waiting.pop(xid, None) is not None:
            self._pipeline.forget(xid)

    def complete(self, xid: int) -> None:
        """A transaction has committed: what is left of it is handed over."""
        waiting = self._waiting.pop(xid, None)
        if waiting is not None and waiting.parts:
            self._pipeline.take_ahead(xid, waiting.parts)
