"""The reading side of speculative decoding: passes blocks of open transactions to the pipeline in large portions.

A transaction of which a part is rolled back is not decoded speculatively any more; its spool is read at its commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..decode import Messages, slice_bytes
from .pipeline import Pipeline

MAX_SPECULATIVE = 2
"""transactions at a time: each has growing segments of its own"""


@dataclass
class _Waiting:
    parts: list[Messages] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0


class SpeculativeReader:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._waiting: dict[int, _Waiting] = {}

    def begin(self, xid: int) -> None:
        if len(self._waiting) < MAX_SPECULATIVE:
            self._waiting[xid] = _Waiting()

    def take(self, xid: int, messages: Messages) -> None:
        waiting = self._waiting.get(xid)
        if waiting is None:
            return
        waiting.parts.append(messages)
        waiting.bytes += messages.size
        waiting.messages += len(messages)
        if waiting.bytes >= slice_bytes(waiting.bytes, waiting.messages):
            self._pipeline.take_speculative(xid, waiting.parts)
            self._waiting[xid] = _Waiting()

    def forget(self, xid: int) -> None:
        if self._waiting.pop(xid, None) is not None:
            self._pipeline.forget(xid)

    def complete(self, xid: int) -> None:
        """A transaction has committed: pass on the rest of it."""
        waiting = self._waiting.pop(xid, None)
        if waiting is not None and waiting.parts:
            self._pipeline.take_speculative(xid, waiting.parts)
