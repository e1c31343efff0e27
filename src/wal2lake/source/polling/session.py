"""A slot that is read through SQL: the statements, and the session that they are sent on."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence

import psycopg

from ... import quoting
from ...clock import SYSTEM_CLOCK
from ...config import PGOUTPUT, SourceConfig
from ...decode import plugin_options
from ...errors import SlotLost
from ...position import Lsn
from ..ports import StreamRequest
from ..publishing import slot
from ..sessions import session
from ..sessions.connect import connect, interrupt
from ..streaming.refusals import skipped
from ..streaming.stream import BINARY_SINCE, readable
from ..streaming.wire import Broken
from .exchange import PADDING, Exchange, said

_ANSWER_SECONDS = 60.0
_BYTES = 1 << 20
_WORK_MEM_MB = 256
"""for decoding a bite, unless the server has more: what does not fit is written to disk, which takes several times as
long; a stream is given such transactions while they run"""


class SqlBite(Exchange):
    """Implements Bite: the row of `_standing` comes first, then the rows of the COPY."""

    @property
    def standing(self) -> tuple[Lsn, Lsn | None] | None:
        if not self.rows:
            return None
        position, confirmed = self.rows[0]
        return Lsn.parse(position or "0/0"), None if confirmed is None else Lsn.parse(confirmed)


class SqlSlot:
    """Implements PolledSlot; nothing of it outlives a transaction of its session."""

    clock = SYSTEM_CLOCK

    def __init__(self, source: SourceConfig, request: StreamRequest, group: str, exact: bool = True) -> None:
        """With another plugin than pgoutput the messages are in its form. `exact`: request also what only newer
        versions of it know; SourceRefused is raised if the server's does not."""
        self._source, self._request = source, request
        self._skipped: str | None = None
        self._more_memory = False
        self._connection = connect(source, group)
        self._pgconn = self._connection.pgconn
        self._pgconn.notice_handler = self._notice
        self.server_version = self._pgconn.server_version
        self._ours = source.plugin == PGOUTPUT
        self.binary = self._ours and request.binary and self.server_version >= BINARY_SINCE
        self._options = self._pgoutput_options() if self._ours else plugin_options(source.plugin, exact)

    @property
    def skipped(self) -> str | None:
        return self._skipped

    def confirmed(self) -> Lsn | None:
        found = slot.info(self._connection, self._request.slot)
        if found is None:
            raise SlotLost(slot=self._request.slot, cause="does not exist", lsn=self._request.start)
        (megabytes,) = self._ask("SELECT pg_size_bytes(current_setting('logical_decoding_work_mem')) >> 20")
        self._more_memory = int(megabytes or 0) < _WORK_MEM_MB
        if not self._ours:
            self._try_options()
        self._pgconn.nonblocking = 1
        return found.confirmed_flush_lsn

    def flushed(self) -> Lsn:
        (written,) = self._ask("SELECT pg_catalog.pg_current_wal_flush_lsn()")
        return Lsn.parse(written or "0/0")

    def peek(self, most: int) -> SqlBite:
        # In one message: each answer that is waited for delays what is seen.
        return SqlBite(self._pgconn, f"{self._standing()}; {self._in_settings(self._changes(most))}")

    def advance(self, to: Lsn) -> Exchange:
        place = f"{quoting.literal(self._request.slot)}, {quoting.literal(str(to))}"
        return Exchange(self._pgconn, f"SELECT pg_catalog.pg_replication_slot_advance({place})")

    def wait(self, timeout: float, wake: Sequence[int], answers: bool) -> bool:
        return readable(wake, timeout, (self._pgconn.socket, select.POLLIN) if answers else None)

    def arrives(self, seconds: float) -> bool:
        return bool(select.select([self._pgconn.socket], [], [], seconds)[0])

    def cancel(self, timeout: float) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=timeout)

    def close(self, busy: bool) -> None:
        if busy:
            # A server process that decodes would not notice that nobody listens.
            interrupt(self._connection)
        self._connection.close()

    def _standing(self) -> str:
        """How far the WAL is flushed: a bite that begins after it holds all that committed below. And the slot."""
        return (
            "SELECT pg_catalog.pg_current_wal_flush_lsn(), (SELECT s.confirmed_flush_lsn"  # noqa: S608 - quoted
            f" FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {quoting.literal(self._request.slot)})"
        )

    def _changes(self, most: int) -> str:
        return f"COPY (SELECT lsn, {PADDING}, data FROM {self._peeked('NULL', most)}) TO STDOUT (FORMAT binary)"  # noqa: S608 - quoted

    def _peeked(self, until: str, most: int) -> str:
        listed = ", ".join(quoting.literal(word) for pair in self._options.items() for word in pair)
        # Plugins that write text can be read in binary form, too; pgoutput can be read in no other.
        return (
            f"pg_catalog.pg_logical_slot_peek_binary_changes({quoting.literal(self._request.slot)}, {until}, {most}, "
            f"VARIADIC ARRAY[{listed}]::text[])"
        )

    def _pgoutput_options(self) -> dict[str, str]:
        return {
            "proto_version": "1",
            "publication_names": ",".join(map(quoting.plain, self._request.publications)),
            **({"binary": "true"} if self.binary else {}),
        }

    def _try_options(self) -> None:
        """Begin a bite that ends with the first record of the WAL: the plugin refuses options that it does not know."""
        self._ask("SELECT count(*) FROM " + self._peeked("'0/1'", 1))  # noqa: S608 - quoted

    def _in_settings(self, statement: str) -> str:
        """A statement whose output depends on settings, with these in its own transaction."""
        settings = [f"SET LOCAL logical_decoding_work_mem = '{_WORK_MEM_MB}MB'"] if self._more_memory else []
        if self._source.pooler:
            settings.append(session.local(self._pgconn.server_version))
        return "; ".join(["BEGIN", *settings, statement, "COMMIT"])

    def _ask(self, statement: str) -> tuple[str | None, ...]:
        """The row of a question that is answered at once."""
        exchange = Exchange(self._pgconn, statement)
        deadline = self.clock.monotonic() + _ANSWER_SECONDS
        while not exchange.over:
            if (left := deadline - self.clock.monotonic()) <= 0:
                raise Broken(f"no answer for {_ANSWER_SECONDS:.0f} s")
            readable((), left, (self._pgconn.socket, select.POLLIN))
            exchange.gather(_BYTES)
        return exchange.rows[0]

    def _notice(self, result: object) -> None:
        told = skipped(said(result), self._request.publications)  # type: ignore[arg-type]  # a PGresult
        self._skipped = told or self._skipped
