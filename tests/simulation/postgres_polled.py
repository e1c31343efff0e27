"""A slot of the scripted PostgreSQL as SQL gives it: bites of its changes, and moves of its position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simulation.postgres_stream import Encoder
from simulation.postgres_transactions import Committed
from simulation.waits import REAL, Waits
from wal2lake.clock import Clock
from wal2lake.decode import Messages
from wal2lake.errors import SlotLost
from wal2lake.position import Lsn
from wal2lake.source.ports import StreamRequest
from wal2lake.source.streaming.wire import Broken, Refused, Said

if TYPE_CHECKING:
    from simulation.postgres import ScriptedPostgres, Slot

ANSWER_SECONDS = 0.01
"""until a server has begun to answer"""


class ScriptedSlot:
    """Implements PolledSlot. What it is asked for happens at the first look at the answer, not when it is asked."""

    binary = False
    server_version = 180000

    def __init__(
        self, server: ScriptedPostgres, request: StreamRequest, per_read: int = 1 << 30, waits: Waits = REAL
    ) -> None:  # fmt: skip
        """`per_read`: messages that come at once."""
        self._server, self._request, self._per_read, self._waits = server, request, per_read, waits
        self._connection = server.connections
        self._session = server.new_session()
        self.encoder = Encoder(request.publications)
        self.skipped: str | None = None

    @property
    def clock(self) -> Clock:
        return self._waits.clock

    @property
    def slot(self) -> str:
        return self._request.slot

    def sends(self, done: Committed) -> bool:
        return self.encoder.sends(done)

    def confirmed(self) -> Lsn:
        found = self._require().slots.get(self.slot)
        if found is None:
            raise SlotLost(slot=self.slot, cause="does not exist", lsn=self._request.start)
        return found.confirmed

    def flushed(self) -> Lsn:
        return self._require().wal_end

    def peek(self, most: int) -> ScriptedBite:
        server = self._require()
        found = server.slots.get(self.slot)
        return ScriptedBite(self, most, (server.wal_end, None if found is None else found.confirmed), self._per_read)

    def advance(self, to: Lsn) -> ScriptedAdvance:
        self._require()
        return ScriptedAdvance(self, to)

    def wait(self, timeout: float, wake: Sequence[int], answers: bool) -> bool:
        return self._waits.readable(wake, min(timeout, ANSWER_SECONDS) if answers else timeout)

    def arrives(self, seconds: float) -> bool:
        self._waits.sleep(0.0)
        return True

    def cancel(self, timeout: float) -> None:
        """Answers are short."""

    def close(self, busy: bool) -> None:
        self._connection = -1

    def changes(self, most: int) -> Iterator[bytes]:
        """Whole transactions from the slot's position on, until there were so many changes."""
        server, start = self._require(), self._acquired().confirmed
        self.encoder = Encoder(self._request.publications)
        given = 0
        for done in [done for done in server.wal if done.commit_lsn >= start]:
            messages = list(self.encoder.encoded(done))
            self.skipped = self.encoder.lacked or self.skipped
            yield from messages
            given += len(messages)
            if given >= most:
                return

    def move(self, to: Lsn) -> None:
        server, found = self._require(), self._acquired()
        if to > server.wal_end:
            raise Refused(Said("22023", "the position is beyond the WAL"))
        server.acknowledged(self, to)
        found.confirmed = max(found.confirmed, to)

    def _acquired(self) -> Slot:
        found = self._server.slots.get(self.slot)
        if found is None:
            raise Refused(Said("42704", f"replication slot {self.slot} does not exist"))
        if found.lost:
            raise Refused(Said("55000", f"replication slot {self.slot} was invalidated ({found.lost})"))
        if found.reader not in (None, self._session):
            raise Refused(Said("55006", f"replication slot {self.slot} is active for PID {found.reader}"))
        return found

    def _require(self) -> ScriptedPostgres:
        if self._connection != self._server.connections or not self._server.reachable:
            raise Broken("the server closed the connection")
        return self._server


class ScriptedBite:
    """Implements Bite."""

    def __init__(self, slot: ScriptedSlot, most: int, standing: tuple[Lsn, Lsn | None], per_read: int) -> None:
        self._slot, self._most, self._standing, self._per_read = slot, most, standing, per_read
        self.over = False
        self.copied = 0
        self.standing: tuple[Lsn, Lsn | None] | None = None
        self._asked = False
        self._rows: list[bytes] | None = None
        self._come: list[bytes] = []

    @property
    def size(self) -> int:
        return sum(map(len, self._come))

    @property
    def pending(self) -> int:
        return len(self._come)

    def gather(self, most: int) -> None:
        self._slot.flushed()
        if not self._asked:
            self._asked = True
            return
        if self._rows is None:
            self.standing = self._standing
            self._rows = list(self._slot.changes(self._most))
        if self.size < most:
            come, self._rows = self._rows[: self._per_read], self._rows[self._per_read :]
            self._come += come
            self.copied += len(come)
            self.over = not self._rows

    def take(self) -> Messages:
        come, self._come = self._come, []
        return Messages.of(come)


class ScriptedAdvance:
    """Implements Answer."""

    def __init__(self, slot: ScriptedSlot, to: Lsn) -> None:
        self._slot, self._to = slot, to
        self._asked = self.over = False

    def gather(self, most: int) -> None:
        self._slot.flushed()
        if not self._asked:
            self._asked = True
            return
        if not self.over:
            self._slot.move(self._to)
            self.over = True
