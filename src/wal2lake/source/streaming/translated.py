"""A stream of another output plugin, as pgoutput would have written it: a ChangeSource around a ChangeSource.

stream ──► translator ──► messages of pgoutput
             ▲ what the catalog says of the tables that it names
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from ...config import PGOUTPUT, SourceConfig
from ...decode import Messages, Reading, SlotMark, TableName, Translator
from ...errors import SourceRefused
from ...position import Lsn
from ..ports import ChangeSource, StreamRequest
from ..sessions.closing import Closing
from .named_relations import NamedRelations
from .stream import ReplicationStream, StreamTimeouts

_AGAIN_SECONDS = 0.01
"""until a transaction that the stream tells of is looked for again, where others do not see it yet"""
_PORTION_BYTES = 4 * 1024 * 1024
"""given at once, about"""
_MOST_WAITING_BYTES = 32 * 1024 * 1024
"""raw bytes that wait for others to see their transactions; then nothing more is read"""


class Relations(Protocol):
    """What the catalog says of relations by their names."""

    def mark(self) -> SlotMark | None: ...
    def read(self, names: Collection[TableName], everything: bool) -> Reading: ...
    def close(self) -> None: ...


class TranslatedStream(Closing):
    """Implements ChangeSource. `relations` is closed with it."""

    def __init__(self, stream: ChangeSource, relations: Relations, translator: Translator) -> None:
        self._stream, self._relations, self._translator = stream, relations, translator
        self.received, self.keepalive_lsn = stream.received, stream.keepalive_lsn
        self.capabilities = replace(
            stream.capabilities, streamed=translator.gives_blocks, binary=False, published_only=False
        )
        self._out: deque[bytes] = deque()
        self._waiting_bytes = 0

    @property
    def awaits_acknowledgement(self) -> bool:
        return not self._out and self._translator.settled and self._stream.awaits_acknowledgement

    @property
    def acknowledged(self) -> Lsn:
        return self._stream.acknowledged

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        if not self._out:
            self._take(timeout, wake)
        portion, size = [], 0
        while self._out and size < _PORTION_BYTES:
            portion.append(self._out.popleft())
            size += len(portion[-1])
        if not self._out:
            self._move()
        return Messages.of(portion)

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        self._stream.stay(timeout, wake)

    def ask(self) -> None:
        self._stream.ask()

    def acknowledge(self, lsn: Lsn) -> None:
        self._stream.acknowledge(lsn)

    def finish(self, timeout: float = 2.0) -> None:
        self._stream.finish(timeout)

    def close(self) -> None:
        self._stream.close()
        self._relations.close()

    def _move(self) -> None:
        """All that was read has been given, but for what waits in the translator."""
        passed = Lsn(self._translator.passed)
        received, alive = passed, passed
        if self._translator.settled:
            received, alive = self._stream.received, max(passed, self._stream.keepalive_lsn)
        self.received = max(self.received, received)
        self.keepalive_lsn = max(self.keepalive_lsn, alive)

    def _take(self, timeout: float, wake: Sequence[int]) -> None:
        """Read what has come, and translate what can be."""
        if self._translator.waiting:
            timeout = min(timeout, _AGAIN_SECONDS)
        if self._waiting_bytes >= _MOST_WAITING_BYTES:
            self._stream.stay(timeout, wake)
        else:
            messages = self._stream.read(timeout, wake)
            self._waiting_bytes += messages.size
            self._translator.feed(messages)
        self._out.extend(self._translator.translate())
        while asked := self._translator.asked:
            self._translator.read(self._relations.read(asked, self._translator.asks_all))
            more = self._translator.translate()
            self._out.extend(more)
            if not more and not self._translator.asks_all:
                break
        if not self._translator.waiting:
            self._waiting_bytes = 0


class _Told(ChangeSource, Protocol):
    """A stream in the form of its output plugin."""

    @property
    def server_version(self) -> int: ...


def translated(
    source: SourceConfig, request: StreamRequest, group: str, opened: Callable[[bool], _Told]
) -> ChangeSource:
    """A stream of the configured output plugin. `opened`: opens it, asking also for what only newer versions know if
    its argument says so; then it raises SourceRefused if the server's does not."""
    if source.plugin == PGOUTPUT:
        return opened(True)
    relations = NamedRelations(source, group, request.slot, request.publications)
    try:
        # Before the stream begins: what had ended by then ended before all that comes.
        relations.require_readable(source.plugin)
        mark = relations.mark()
        try:
            exact, stream = True, opened(True)
        except SourceRefused:
            exact, stream = False, opened(False)
    except BaseException:
        relations.close()
        raise
    marks = [mark] if mark is not None else []
    translator = Translator(source.plugin, stream.server_version, marks, blocks=request.streamed, exact=exact)
    return TranslatedStream(stream, relations, translator)


def open_stream(
    source: SourceConfig, request: StreamRequest, group: str, patience: StreamTimeouts | None = None
) -> ChangeSource:
    """The stream of a slot over a replication connection."""
    return translated(source, request, group, partial(ReplicationStream.of, source, request, group, patience))
