"""The ChangeSource of a slot that is read through SQL: peeked at in bites, advanced when a bite is durable.

    look      has the WAL grown? the price of one function call, many times a second
    bite      pg_logical_slot_peek_binary_changes through COPY: whole transactions, read as they come
    advance   pg_replication_slot_advance to what was acknowledged; the next bite begins there

Peeking takes nothing away, so what was not acknowledged comes again. A bite that gave something is therefore followed
by another one only when all of it is acknowledged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from ...config import SourceConfig
from ...decode import Messages
from ...errors import ConnectionFailed, SlotLost
from ...position import Lsn
from ..ports import Capabilities, ChangeSource, StreamRequest
from ..sessions.closing import Closing
from ..streaming.refusals import broken, refused
from ..streaming.stream import DATA_START
from ..streaming.translated import translated
from ..streaming.wire import Broken, Refused
from .contract import Answer, Bite, PolledSlot
from .session import SqlSlot

_BYTES_AT_ONCE = 4 * 1024 * 1024
_IDLE_SECONDS = 0.12
"""between two looks while nothing changes, if less is configured: a change is seen within 0.2 s"""
_SHARE = 4.0
"""after a bite without anything for us, so many times its duration is waited"""
_FOREIGN_SECONDS = 0.8
"""between two bites at most, however long they take: positions move once a second"""
_LINGER_SECONDS = 0.05
_PAUSE_SECONDS = 0.01
_FINISH_LOOK_SECONDS = 0.1


class PollingStream(Closing):
    """Implements ChangeSource with an ordinary session; nothing of it outlives a transaction of that."""

    awaits_acknowledgement = False

    def __init__(self, source: SourceConfig, request: StreamRequest, session: PolledSlot) -> None:
        """`session`: of the requested slot; it is closed with the stream."""
        self._source, self._slot, self._session = source, request.slot, session
        self._clock = session.clock
        self.acknowledged = self.received = self.keepalive_lsn = request.start
        self._given = request.start
        """where the last transaction ends that was given"""
        self._read_to: Lsn | None = None
        """where the last message of the bite that is being read belongs: at its end, the end of a transaction"""
        self._looked = self._biting_to = Lsn(0)
        """the end of the WAL when it was last seen that nothing is left, and when the bite began"""
        self._bite: Bite | None = None
        self._advance: tuple[Answer, Lsn] | None = None
        self._bite_began = 0.0
        self._next_look = 0.0
        self._interval = source.poll_interval
        self._asked = False
        self.capabilities = Capabilities(binary=session.binary, exclusive=False)
        self.server_version = session.server_version
        try:
            with self._explained():
                self._confirmed = session.confirmed() or request.start
        except BaseException:
            session.close(busy=False)
            raise

    # ---- ChangeSource

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        deadline = self._clock.monotonic() + timeout
        while True:
            if self._work():
                return self._taken()
            left = deadline - self._clock.monotonic()
            if left <= 0 or self._wait(left, wake):
                return Messages.of([])

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        deadline = self._clock.monotonic() + timeout
        while True:
            if self._bite is None:
                self._keep_advancing()
            left = deadline - self._clock.monotonic()
            if left <= 0 or self._wait(left, wake, reading=self._advance is not None, looking=False):
                return

    def ask(self) -> None:
        self._asked, self._next_look = True, 0.0
        self.awaits_acknowledgement = self._given > self.acknowledged

    def acknowledge(self, lsn: Lsn) -> None:
        if lsn > self.acknowledged:
            self.acknowledged = lsn
            self.received = max(self.received, lsn)
            if self._given <= lsn:
                self.awaits_acknowledgement = False

    def finish(self, timeout: float = 2.0) -> None:
        deadline = self._clock.monotonic() + timeout
        try:
            if self._bite is not None:
                # What is left of it comes again. The rest of the answer is passed over.
                self._session.cancel(timeout)
                while not self._bite.over and self._clock.monotonic() < deadline:
                    self._wait(_FINISH_LOOK_SECONDS, ())
                    with contextlib.suppress(Refused):
                        self._bite.gather(_BYTES_AT_ONCE)
                    self._bite.take()
                self._bite = None
            while self._clock.monotonic() < deadline and self._keep_advancing():
                self._wait(_FINISH_LOOK_SECONDS, ())
        except (Broken, Refused, ConnectionFailed, SlotLost):
            return  # the connection is gone; the next stream begins at what is durable

    def close(self) -> None:
        self._session.close(busy=self._bite is not None or self._advance is not None)

    # ---- one step

    def _work(self) -> bool:
        """Go on with whatever is under way, or begin what is next; whether there is something to tell of."""
        if self._bite is None and (self._keep_advancing() or not self._begin_bite()):
            return False
        assert self._bite is not None
        self._gather_much(self._bite)
        return self._bite.over or self._bite.pending > 0

    def _gather_much(self, bite: Bite) -> None:
        """Take in what has come, and what comes within moments: rows are worked on many at a time."""
        until = self._clock.monotonic() + _LINGER_SECONDS
        self._gather(bite)
        while bite.pending and not bite.over and bite.size < _BYTES_AT_ONCE and self._clock.monotonic() < until:
            if not self._session.arrives(_PAUSE_SECONDS):
                return
            self._gather(bite)

    def _taken(self) -> Messages:
        """What has come of the bite, and the end of it, if that has come."""
        assert self._bite is not None
        if self._bite.standing is not None:
            self._biting_to = self._require_slot(*self._bite.standing)
        messages = self._bite.take()
        if messages:
            (start,) = DATA_START.unpack_from(messages.data.data, int(messages.start[-1]))
            self._read_to = Lsn(start)
            self.received = max(self.received, self._read_to)
        if self._bite.over:
            self._end_bite(self._bite.copied)
        return messages

    def _end_bite(self, rows: int) -> None:
        self._bite = None
        now = self._clock.monotonic()
        if (lost := self._session.skipped) is not None:
            raise SlotLost(slot=self._slot, cause=lost, lsn=self.acknowledged)
        if self._read_to is not None:
            self._given = max(self._given, self._read_to)
        full = rows >= self._source.poll_max_changes
        if full:
            # Transactions are counted at their ends: there may be more.
            self.keepalive_lsn = max(self.keepalive_lsn, self._given)
            self.awaits_acknowledgement, self._next_look = self._given > self.acknowledged, 0.0
        else:
            self._looked = self._biting_to
            self.keepalive_lsn = max(self.keepalive_lsn, self._biting_to, self._given)
            pause = 0.0 if rows else min(_SHARE * (now - self._bite_began), _FOREIGN_SECONDS)
            self._interval = self._source.poll_interval
            self._next_look = max(self._bite_began + self._interval, now + pause)
        self.received = max(self.received, self.keepalive_lsn)
        self._read_to = None

    def _begin_bite(self) -> bool:
        """Look whether there is something, and ask for it; False if it is not the time."""
        now = self._clock.monotonic()
        if self._given > self.acknowledged or (now < self._next_look and not self._asked):
            return False
        with self._explained():
            written = self._session.flushed()
        if written == self._looked:
            self._asked = False
            self._interval = max(self._source.poll_interval, _IDLE_SECONDS)
            self._next_look = now + self._interval
            return False
        self._asked = False
        self._bite_began = now
        with self._explained():
            self._bite = self._session.peek(self._source.poll_max_changes)
        return True

    def _require_slot(self, position: Lsn, confirmed: Lsn | None) -> Lsn:
        """Where the bite reaches to. Raises SlotLost unless the slot is where it was left."""
        if confirmed is None:
            raise SlotLost(slot=self._slot, cause="does not exist", lsn=self.acknowledged)
        if confirmed != self._confirmed:
            cause = f"was moved or re-created by another program (to {confirmed})"
            raise SlotLost(slot=self._slot, cause=cause, lsn=self.acknowledged)
        return position

    def _keep_advancing(self) -> bool:
        """Bring the slot to what is acknowledged; whether that is under way."""
        if self._advance is None and self.acknowledged > self._confirmed:
            with self._explained():
                self._advance = self._session.advance(self.acknowledged), self.acknowledged
        if self._advance is None:
            return False
        advance, to = self._advance
        self._gather(advance)
        if advance.over:
            self._advance, self._confirmed = None, to
        return self._advance is not None

    # ---- the session

    def _gather(self, answer: Answer) -> None:
        with self._explained():
            answer.gather(_BYTES_AT_ONCE)

    def _wait(self, timeout: float, wake: Sequence[int], reading: bool = True, looking: bool = True) -> bool:
        """Wait for what is under way, or for the next look; whether a `wake` is readable."""
        under_way = reading and (self._bite is not None or self._advance is not None)
        if looking and not under_way and self._given <= self.acknowledged:
            timeout = min(timeout, max(0.0, self._next_look - self._clock.monotonic()))
        return self._session.wait(timeout, wake, under_way)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Broken as error:
            raise broken(self._source, str(error)) from error
        except Refused as error:
            raise refused(self._source, self._slot, self.acknowledged, error.said) from error


def open_polling(source: SourceConfig, request: StreamRequest, group: str) -> ChangeSource:
    """A slot that is read through SQL."""
    return translated(source, request, group, partial(_through_sql, source, request, group))


def _through_sql(source: SourceConfig, request: StreamRequest, group: str, exact: bool = True) -> PollingStream:
    return PollingStream(source, request, SqlSlot(source, request, group, exact))
