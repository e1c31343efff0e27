"""The reading side of decoding: collects messages and finds complete transactions, at almost no cost.

Messages that are taken out go to the decoder in the same order, on any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .messages import BEGIN, COMMIT, Messages

SLICE_BYTES = 8 * 1024 * 1024
"""raw bytes that are decoded together, far below the limit of a string column"""
_WIDE_MESSAGE = 512
_IDLE_SHARE = 4


def slice_bytes(size: int, messages: int) -> int:
    """How many bytes of such messages to decode together: more if rows are wide and few.

    For few values a column costs more in calls than in values, and each call contends for the GIL.
    """
    return SLICE_BYTES * (2 if size > _WIDE_MESSAGE * messages else 1)


class Intake:
    """Waiting messages: those up to the last commit, and those of the transaction that is still arriving."""

    def __init__(self) -> None:
        self._complete: list[Messages] = []
        self._open: list[Messages] = []
        self.in_transaction = False
        self.complete_bytes = self._complete_messages = 0
        self.open_bytes = self._open_messages = 0
        """what came after the last commit"""

    @property
    def has_complete(self) -> bool:
        """Whether a transaction has ended, also one without rows."""
        return bool(self._complete)

    @property
    def pending_bytes(self) -> int:
        return self.complete_bytes + self.open_bytes

    def complete_is_worth_decoding(self, idle: bool) -> bool:
        """`idle`: the decoder has nothing else to do, so less is enough."""
        enough = slice_bytes(self.complete_bytes, self._complete_messages)
        return self.complete_bytes >= (enough // _IDLE_SHARE if idle else enough)

    @property
    def open_is_worth_decoding(self) -> bool:
        return self.open_bytes >= slice_bytes(self.open_bytes, self._open_messages)

    def feed(self, messages: Sequence[bytes]) -> None:
        """Take CopyData payloads of XLogData ('w', its header, the pgoutput message), in the order of the stream."""
        some = messages if isinstance(messages, Messages) else Messages.of(messages)
        if not some:
            return
        begin, commit = _last(some, BEGIN), _last(some, COMMIT)
        if commit >= 0:
            ended, some = some[: commit + 1], some[commit + 1 :]
            self._complete += [*self._open, ended]
            self.complete_bytes += self.open_bytes + ended.size
            self._complete_messages += self._open_messages + len(ended)
            self._open, self.open_bytes, self._open_messages = [], 0, 0
        if some:
            self._open.append(some)
            self.open_bytes += some.size
            self._open_messages += len(some)
        if begin != commit:
            self.in_transaction = begin > commit

    def take_complete(self) -> list[Messages]:
        """Everything up to the last commit."""
        taken, self._complete, self.complete_bytes, self._complete_messages = self._complete, [], 0, 0
        return taken

    def take_open(self) -> list[Messages]:
        """The messages of the open transaction so far. Call `take_complete` before."""
        if self._complete:
            raise RuntimeError("take_open() before take_complete(): complete transactions are waiting")
        taken, self._open, self.open_bytes, self._open_messages = self._open, [], 0, 0
        return taken


def slices(parts: Iterable[Messages], most_bytes: int) -> Iterator[list[Messages]]:
    """Messages in portions of about so many bytes, or of one message."""
    waiting: list[Messages] = []
    size = 0
    for part in parts:
        rest = part
        while size + rest.size >= most_bytes:
            count = max(int(np.searchsorted(rest.end, most_bytes - size, "right")), 0 if waiting else 1)
            if count:
                waiting.append(rest[:count])
                rest = rest[count:]
            yield waiting
            waiting, size = [], 0
            if not rest:
                break
        if rest:
            waiting.append(rest)
            size += rest.size
    if waiting:
        yield waiting


def _last(messages: Messages, kind: int) -> int:
    return messages.kinds.tobytes().rfind(kind)
