"""The changes that triggers have put into buffers, as a stream: one drain after the other.

    look ─► drain at snapshot S, position P ─► durable, S the token ─► acknowledge(P): what S sees is deleted

A drain is one transaction for whoever reads it, so that it is in one manifest as a whole. After a crash the next stream
begins with the token of the last manifest: what that snapshot sees has been captured, whether or not it was deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from ...config import SourceConfig
from ...decode import RELATION, Messages
from ...errors import SlotLost, SourceBusy, SourceError
from ...position import Lsn
from ...visibility import PgSnapshot
from ..ports import Capabilities, StreamRequest
from ..sessions.closing import Closing
from ..sessions.connect import Connection
from .contract import Buffers, Drain
from .definition import Buffer
from .session import SqlBuffers

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
REFRESH_SECONDS = 1.0
DESCRIBE_SECONDS = 5.0
"""after which a table is described again, although its buffer is the same: who reads a description asks the catalog"""
LARGE_BYTES = 4 * 1024 * 1024
"""a drain of so many bytes is followed by another one at once; smaller ones would cost more than they bring"""
VACUUM_ROWS = 20_000
"""after so many rows were deleted from a buffer, their place is given back"""


class TriggerStream(Closing):
    """Implements ChangeSource."""

    awaits_acknowledgement = False

    def __init__(self, buffers: Buffers, lane: str, start: Lsn, token: str | None, binary: bool = False) -> None:
        """`buffers`: closed with the stream. `binary`: give values in binary form."""
        self.capabilities = Capabilities(binary=binary)
        self._buffers, self._lane, self._clock = buffers, lane, buffers.clock
        self.acknowledged = self.received = self.keepalive_lsn = start
        self._last = PgSnapshot.parse(token) if token is not None else None
        self._seen: str | None = None
        """the snapshot of the last look that found nothing new"""
        self._pending: dict[Lsn, Drain] = {}
        """drains that are not durable yet"""
        self._answers: dict[Lsn, str] = {}
        """what copies have asked for, by the position that it is durable at"""
        self._under_way: Iterator[Messages] | None = None
        self._drain: Drain | None = None
        self._looked_at = self._refreshed_at = -1.0
        self._drained_bytes = 0
        """of the drain that is being read"""
        self._described: dict[int, tuple[Buffer, bytes, float]] = {}
        """for each table the buffer and the description that were given last, and when"""
        self._deleted: dict[str, int] = {}
        try:
            self._begin_where_it_ended()
        except BaseException:
            buffers.close()
            raise

    @classmethod
    def of(
        cls, source: SourceConfig, group: str, request: StreamRequest, token: str | None,
        refresh: Callable[[Connection], object],
    ) -> Self:  # fmt: skip
        """Open the stream of a lane. `refresh`: has altered tables captured in their new columns."""
        buffers = SqlBuffers(source, group, request.slot, refresh)
        return cls(buffers, request.slot, request.start, token, request.binary)

    def _begin_where_it_ended(self) -> None:
        """Delete what is durable and was not deleted before a crash."""
        if not self._buffers.exist():
            raise SlotLost(slot=self._lane, cause="the triggers were removed", lsn=self.acknowledged)
        if self._last is not None:
            self._delete(self._buffers.present(), self._last)

    def token(self, lsn: Lsn) -> str | None:
        """The snapshot of the drain that ends at a position."""
        drain = self._pending.get(lsn)
        return str(drain.snapshot) if drain is not None else None

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        if self._under_way is None:
            self._await_look(timeout, wake)
            if self._before_look() > 0:
                return Messages.of([])
            self._look()
        if self._under_way is None:
            return Messages.of([])
        found = next(self._under_way, None)
        if found is not None:
            self._drained_bytes += found.size
            return found
        self._ended()
        return Messages.of([])

    def _await_look(self, timeout: float, wake: Sequence[int]) -> None:
        if (left := self._before_look()) > 0:
            self._buffers.wait(max(0.0, min(timeout, left)), wake)

    def _before_look(self) -> float:
        return self._looked_at + LOOK_SECONDS - self._clock.monotonic()

    def _look(self) -> None:
        """See whether anything has come, and begin a drain then."""
        self._looked_at = self._clock.monotonic()
        found = self._buffers.look()
        if found is None:
            raise SlotLost(slot=self._lane, cause="the triggers were removed", lsn=self.acknowledged)
        asked = found.asked
        if asked is not None and asked != found.answered and asked not in self._answers.values():
            self._serve(asked, found.exported or "", found.asked_position or found.position)
            return
        if self._buffers.snapshot() == self._seen:
            self._reached(found.position)
            return
        self._may_refresh()
        self._start(self._buffers.begin(self._last, found.position))

    def _start(self, drain: Drain) -> None:
        if drain.filled and drain.position <= self.keepalive_lsn:
            # It was committed without a sign in the WAL since: who waits for a standby becomes visible later.
            self._buffers.end()
            self._buffers.mark()
            return
        if drain.filled:
            self._drain = drain
            self._pending[drain.position] = drain
            self._drained_bytes = 0
            self._under_way = self._read(drain)
            return
        self._buffers.end()
        self._seen = str(drain.snapshot)
        self._reached(drain.position)

    def _read(self, drain: Drain) -> Iterator[Messages]:
        """The messages of a drain, without descriptions that were given before of the same buffer."""
        filled = iter(drain.filled)
        for messages in self._buffers.read(drain, self._last, self.capabilities.binary):
            if messages and messages.kinds[0] == RELATION:
                buffer, text, now = next(filled).buffer, messages[0], self._clock.monotonic()
                before = self._described.get(buffer.relid)
                if before is not None and before[:2] == (buffer, text) and now - before[2] < DESCRIBE_SECONDS:
                    continue
                self._described[buffer.relid] = buffer, text, now
            yield messages

    def _ended(self) -> None:
        """All of a drain was given."""
        drain, self._under_way, self._drain = self._drain, None, None
        assert drain is not None
        self._last, self._seen = drain.snapshot, str(drain.snapshot)
        if self._drained_bytes >= LARGE_BYTES:
            # There is more by now.
            self._looked_at = -1.0
        self._reached(drain.position)

    def _reached(self, position: Lsn) -> None:
        self.received = max(self.received, position)
        self.keepalive_lsn = max(self.keepalive_lsn, position)

    def _serve(self, asked: str, exported: str, position: Lsn) -> None:
        """Drain what the snapshot of a copy sees, so that the copy is at the position of that drain exactly."""
        try:
            drain = self._buffers.begin(self._last, position, exported)
        except SourceError as error:
            self._buffers.abandon()
            log.debug("the snapshot of a copy is gone: %s", error)
            self._buffers.answer(asked, False)
            return
        if position <= self.keepalive_lsn or (self._last is not None and not drain.snapshot.includes(self._last)):
            # A drain came in between; the copy takes another snapshot.
            self._buffers.end()
            self._buffers.answer(asked, False)
            return
        filled = bool(drain.filled)
        self._start(drain)
        if filled:
            self._answers[position] = asked
        elif self._pending:
            # What it sees was drained before, and would be drained at a later position if that were lost.
            self._answers[max(self._pending)] = asked
        else:
            self._buffers.answer(asked, True)

    def _may_refresh(self) -> None:
        now = self._clock.monotonic()
        if now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        try:
            self._buffers.follow()
            if not self._pending:
                self._buffers.tidy()
        except SourceBusy as error:
            log.debug("the triggers of group's lane %s are looked at again soon: %s", self._lane, error)

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        self._buffers.wait(timeout, wake)

    def ask(self) -> None:
        self._looked_at = -1.0

    def acknowledge(self, lsn: Lsn) -> None:
        if lsn <= self.acknowledged:
            return
        self.acknowledged = lsn
        done = [position for position in self._pending if position <= lsn]
        if not done:
            return
        drains = [self._pending.pop(position) for position in sorted(done)]
        present = {filled.buffer.name: filled.buffer for drain in drains for filled in drain.filled}
        self._delete(list(present.values()), drains[-1].snapshot)
        self._buffers.reached(drains[-1].position)
        for drain in drains:
            if (asked := self._answers.pop(drain.position, None)) is not None:
                self._buffers.answer(asked, True)

    def _delete(self, present: Sequence[Buffer], seen: PgSnapshot) -> None:
        """Delete what is durable."""
        for buffer in present:
            count = self._deleted[buffer.name] = self._deleted.get(buffer.name, 0) + self._buffers.delete(buffer, seen)
            if count >= VACUUM_ROWS:
                self._deleted[buffer.name] = 0
                self._buffers.vacuum(buffer)

    def finish(self, timeout: float = 2.0) -> None:
        """Every acknowledgement has been taken when it was made."""

    def close(self) -> None:
        self._buffers.close()
