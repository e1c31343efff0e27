"""The ChangeSource of a slot that is read through SQL: peeked at in bites, advanced when a bite is durable.

    look      has the WAL grown? the price of one function call, many times a second
    bite      pg_logical_slot_peek_binary_changes through COPY: whole transactions, read as they come
    advance   pg_replication_slot_advance to what was acknowledged; the next bite begins there

Peeking takes nothing away, so what was not acknowledged comes again. A bite that gave something is therefore followed
by another one only when all of it is acknowledged.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator, Sequence
from functools import partial

import psycopg

from ... import quoting
from ...config import PGOUTPUT, SourceConfig
from ...decode import Messages, plugin_options
from ...errors import ConnectionFailed, SlotLost
from ...position import Lsn
from ..ports import Capabilities, ChangeSource, StreamRequest
from ..publishing import slot
from ..sessions import session
from ..sessions.closing import Closing
from ..sessions.connect import connect, interrupt
from ..streaming.refusals import broken, refused, skipped
from ..streaming.stream import BINARY_SINCE, DATA_START, readable
from ..streaming.translated import translated
from ..streaming.wire import Broken, Refused
from .exchange import PADDING, Exchange, said

_BYTES_AT_ONCE = 4 * 1024 * 1024
_IDLE_SECONDS = 0.12
"""between two looks while nothing changes, if less is configured: a change is seen within 0.2 s"""
_SHARE = 4.0
"""after a bite without anything for us, so many times its duration is waited"""
_FOREIGN_SECONDS = 0.8
"""between two bites at most, however long they take: positions move once a second"""
_ANSWER_SECONDS = 60.0
_WORK_MEM_MB = 256
"""for decoding a bite, unless the server has more: what does not fit is written to disk, which takes several times as
long; a stream is given such transactions while they run"""
_LINGER_SECONDS = 0.05
_PAUSE_SECONDS = 0.01
_FINISH_LOOK_SECONDS = 0.1


class PollingStream(Closing):
    """Implements ChangeSource with an ordinary session; nothing of it outlives a transaction of that."""

    awaits_acknowledgement = False

    def __init__(self, source: SourceConfig, request: StreamRequest, group: str, exact: bool = True) -> None:
        """With another plugin than pgoutput the messages are in its form. `exact`: request also what only newer
        versions of it know; SourceRefused is raised if the server's does not."""
        self._source, self._slot, self._publications = source, request.slot, request.publications
        self.acknowledged = self.received = self.keepalive_lsn = request.start
        self._lost: str | None = None
        self._given = request.start
        """where the last transaction ends that was given"""
        self._read_to: Lsn | None = None
        """where the last message of the bite that is being read belongs: at its end, the end of a transaction"""
        self._looked = self._biting_to = Lsn(0)
        """the end of the WAL when it was last seen that nothing is left, and when the bite began"""
        self._bite: Exchange | None = None
        self._advance: tuple[Exchange, Lsn] | None = None
        self._bite_began = 0.0
        self._next_look = 0.0
        self._interval = source.poll_interval
        self._asked = False
        self._connection = connect(source, group)
        try:
            self._pgconn = self._connection.pgconn
            self._pgconn.notice_handler = self._notice
            self.server_version = self._pgconn.server_version
            ours = source.plugin == PGOUTPUT
            binary = ours and request.binary and self.server_version >= BINARY_SINCE
            self.capabilities = Capabilities(binary=binary, exclusive=False)
            self._options = self._pgoutput_options() if ours else plugin_options(source.plugin, exact)
            found = slot.info(self._connection, self._slot)
            if found is None:
                raise SlotLost(slot=self._slot, cause="does not exist", lsn=request.start)
            self._confirmed = found.confirmed_flush_lsn or request.start
            (megabytes,) = self._ask("SELECT pg_size_bytes(current_setting('logical_decoding_work_mem')) >> 20")
            self._more_memory = int(megabytes or 0) < _WORK_MEM_MB
            if not ours:
                self._try_options()
        except BaseException:
            self._connection.close()
            raise
        self._pgconn.nonblocking = 1

    # ---- ChangeSource

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        deadline = time.monotonic() + timeout
        while True:
            if self._work():
                return self._taken()
            left = deadline - time.monotonic()
            if left <= 0 or self._wait(left, wake):
                return Messages.of([])

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        deadline = time.monotonic() + timeout
        while True:
            if self._bite is None:
                self._keep_advancing()
            left = deadline - time.monotonic()
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
        deadline = time.monotonic() + timeout
        try:
            if self._bite is not None:
                # What is left of it comes again. The rest of the answer is passed over.
                with contextlib.suppress(psycopg.Error):
                    self._connection.cancel_safe(timeout=timeout)
                while not self._bite.over and time.monotonic() < deadline:
                    self._wait(_FINISH_LOOK_SECONDS, ())
                    with contextlib.suppress(Refused):
                        self._bite.gather(_BYTES_AT_ONCE)
                    self._bite.take()
                self._bite = None
            while time.monotonic() < deadline and self._keep_advancing():
                self._wait(_FINISH_LOOK_SECONDS, ())
        except (Broken, Refused, ConnectionFailed, SlotLost):
            return  # the connection is gone; the next stream begins at what is durable

    def close(self) -> None:
        if self._bite is not None or self._advance is not None:
            # A server process that decodes would not notice that nobody listens.
            interrupt(self._connection)
        self._connection.close()

    # ---- one step

    def _work(self) -> bool:
        """Go on with whatever is under way, or begin what is next; whether there is something to tell of."""
        if self._bite is None and (self._keep_advancing() or not self._begin_bite()):
            return False
        assert self._bite is not None
        self._gather_much(self._bite)
        return self._bite.over or self._bite.pending > 0

    def _gather_much(self, bite: Exchange) -> None:
        """Take in what has come, and what comes within moments: rows are worked on many at a time."""
        until = time.monotonic() + _LINGER_SECONDS
        self._gather(bite)
        while bite.pending and not bite.over and bite.size < _BYTES_AT_ONCE and time.monotonic() < until:
            if not select.select([self._pgconn.socket], [], [], _PAUSE_SECONDS)[0]:
                return
            self._gather(bite)

    def _taken(self) -> Messages:
        """What has come of the bite, and the end of it, if that has come."""
        assert self._bite is not None
        if self._bite.rows:
            self._biting_to = self._require_slot(*self._bite.rows.pop())
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
        now = time.monotonic()
        if self._lost:
            raise SlotLost(slot=self._slot, cause=self._lost, lsn=self.acknowledged)
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
        now = time.monotonic()
        if self._given > self.acknowledged or (now < self._next_look and not self._asked):
            return False
        (written,) = self._ask("SELECT pg_catalog.pg_current_wal_flush_lsn()")
        if Lsn.parse(written or "0/0") == self._looked:
            self._asked = False
            self._interval = max(self._source.poll_interval, _IDLE_SECONDS)
            self._next_look = now + self._interval
            return False
        self._asked = False
        self._bite_began = now
        with self._explained():
            # In one message: each answer that is waited for delays what is seen.
            self._bite = Exchange(self._pgconn, f"{self._standing()}; {self._in_settings(self._peek())}")
        return True

    def _standing(self) -> str:
        """How far the WAL is flushed: a bite that begins after it holds all that committed below. And the slot."""
        return (
            "SELECT pg_catalog.pg_current_wal_flush_lsn(), (SELECT s.confirmed_flush_lsn"  # noqa: S608 - quoted
            f" FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {quoting.literal(self._slot)})"
        )

    def _require_slot(self, position: str | None = None, confirmed: str | None = None) -> Lsn:
        """Where the bite reaches to. Raises SlotLost unless the slot is where it was left."""
        if position is None or confirmed is None:
            raise SlotLost(slot=self._slot, cause="does not exist", lsn=self.acknowledged)
        if Lsn.parse(confirmed) != self._confirmed:
            cause = f"was moved or re-created by another program (to {confirmed})"
            raise SlotLost(slot=self._slot, cause=cause, lsn=self.acknowledged)
        return Lsn.parse(position)

    def _peek(self) -> str:
        changes = self._peeked("NULL", self._source.poll_max_changes)
        return f"COPY (SELECT lsn, {PADDING}, data FROM {changes}) TO STDOUT (FORMAT binary)"  # noqa: S608 - quoted

    def _peeked(self, until: str, most: int) -> str:
        listed = ", ".join(quoting.literal(word) for pair in self._options.items() for word in pair)
        # Plugins that write text can be read in binary form, too; pgoutput can be read in no other.
        return (
            f"pg_catalog.pg_logical_slot_peek_binary_changes({quoting.literal(self._slot)}, {until}, {most}, "
            f"VARIADIC ARRAY[{listed}]::text[])"
        )

    def _pgoutput_options(self) -> dict[str, str]:
        return {
            "proto_version": "1",
            "publication_names": ",".join(map(quoting.plain, self._publications)),
            **({"binary": "true"} if self.capabilities.binary else {}),
        }

    def _try_options(self) -> None:
        """Begin a bite that ends with the first record of the WAL: the plugin refuses options that it does not know."""
        self._ask("SELECT count(*) FROM " + self._peeked("'0/1'", 1))  # noqa: S608 - quoted

    def _keep_advancing(self) -> bool:
        """Bring the slot to what is acknowledged; whether that is under way."""
        if self._advance is None and self.acknowledged > self._confirmed:
            place = f"{quoting.literal(self._slot)}, {quoting.literal(str(self.acknowledged))}"
            with self._explained():
                statement = f"SELECT pg_catalog.pg_replication_slot_advance({place})"
                self._advance = Exchange(self._pgconn, statement), self.acknowledged
        if self._advance is None:
            return False
        advance, to = self._advance
        self._gather(advance)
        if advance.over:
            self._advance, self._confirmed = None, to
        return self._advance is not None

    # ---- the connection

    def _in_settings(self, statement: str) -> str:
        """A statement whose output depends on settings, with these in its own transaction."""
        settings = [f"SET LOCAL logical_decoding_work_mem = '{_WORK_MEM_MB}MB'"] if self._more_memory else []
        if self._source.pooler:
            settings.append(session.local(self._pgconn.server_version))
        return "; ".join(["BEGIN", *settings, statement, "COMMIT"])

    def _ask(self, statement: str) -> tuple[str | None, ...]:
        """The row of a question that is answered at once."""
        with self._explained():
            exchange = Exchange(self._pgconn, statement)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not exchange.over:
            if (left := deadline - time.monotonic()) <= 0:
                raise broken(self._source, f"no answer for {_ANSWER_SECONDS:.0f} s")
            readable((), left, (self._pgconn.socket, select.POLLIN))
            self._gather(exchange)
        return exchange.rows[0]

    def _gather(self, exchange: Exchange) -> None:
        with self._explained():
            exchange.gather(_BYTES_AT_ONCE)

    def _wait(self, timeout: float, wake: Sequence[int], reading: bool = True, looking: bool = True) -> bool:
        """Wait for what is under way, or for the next look; whether a `wake` is readable."""
        under_way = reading and (self._bite is not None or self._advance is not None)
        if looking and not under_way and self._given <= self.acknowledged:
            timeout = min(timeout, max(0.0, self._next_look - time.monotonic()))
        return readable(wake, timeout, (self._pgconn.socket, select.POLLIN) if under_way else None)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Broken as error:
            raise broken(self._source, str(error)) from error
        except Refused as error:
            raise refused(self._source, self._slot, self.acknowledged, error.said) from error

    def _notice(self, result: object) -> None:
        self._lost = skipped(said(result), self._publications) or self._lost  # type: ignore[arg-type]  # a PGresult


def open_polling(source: SourceConfig, request: StreamRequest, group: str) -> ChangeSource:
    """A slot that is read through SQL."""
    return translated(source, request, group, partial(PollingStream, source, request, group))
