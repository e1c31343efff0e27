"""The changes that triggers have put into buffers, as a stream: one drain after the other.

    look ─► drain at snapshot S, position P ─► durable, S the token ─► acknowledge(P): what S sees is deleted

A drain is one transaction for whoever reads it, so that it is in one manifest as a whole. After a crash the next stream
begins with the token of the last manifest: what that snapshot sees has been captured, whether or not it was deleted.
"""

# ruff: noqa: S608 - every name in these texts is ours or quoted
from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Iterator, Sequence

from ...config import SourceConfig
from ...decode import Messages
from ...errors import SlotLost, SourceBusy, SourceError
from ...position import Lsn
from ...visibility import PgSnapshot
from ..ports import Capabilities
from ..sessions.closing import Closing
from ..sessions.connect import Connection, connect, explained, query
from . import draining, installing, removing
from .definition import Buffer

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
REFRESH_SECONDS = 1.0
VACUUM_ROWS = 20_000
"""after so many rows were deleted from a buffer, their place is given back"""


class TriggerStream(Closing):
    """Implements ChangeSource."""

    awaits_acknowledgement = False

    def __init__(
        self, source: SourceConfig, group: str, lane: str, start: Lsn, token: str | None,
        refresh: Callable[[Connection], object], binary: bool = False,
    ) -> None:  # fmt: skip
        """`refresh`: has altered tables captured in their new columns. `binary`: give values in binary form."""
        self.capabilities = Capabilities(binary=binary)
        self._lane, self._refresh = lane, refresh
        self.acknowledged = self.received = self.keepalive_lsn = start
        self._last = PgSnapshot.parse(token) if token is not None else None
        self._seen: str | None = None
        """the snapshot of the last look that found nothing new"""
        self._pending: dict[Lsn, draining.Drain] = {}
        """drains that are not durable yet"""
        self._answers: dict[Lsn, str] = {}
        """what copies have asked for, by the position that it is durable at"""
        self._under_way: Iterator[Messages] | None = None
        self._drain: draining.Drain | None = None
        self._looked_at = self._refreshed_at = -1.0
        self._deleted: dict[str, int] = {}
        self._conn = connect(source, group)
        self._side = connect(source, group)
        self._begin_where_it_ended()

    def _begin_where_it_ended(self) -> None:
        """Delete what is durable and was not deleted before a crash."""
        if not installing.exists(self._side):
            raise SlotLost(slot=self._lane, cause="the triggers were removed", lsn=self.acknowledged)
        if self._last is not None:
            present = [buffer for some in installing.buffers(self._side, self._lane).values() for buffer in some]
            self._delete(present, self._last)

    def token(self, lsn: Lsn) -> str | None:
        """The snapshot of the drain that ends at a position."""
        drain = self._pending.get(lsn)
        return str(drain.snapshot) if drain is not None else None

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        if self._under_way is None:
            self._await_look(timeout, wake)
            if time.monotonic() - self._looked_at < LOOK_SECONDS:
                return Messages.of([])
            self._look()
        if self._under_way is None:
            return Messages.of([])
        found = next(self._under_way, None)
        if found is not None:
            return found
        self._ended()
        return Messages.of([])

    def _await_look(self, timeout: float, wake: Sequence[int]) -> None:
        left = self._looked_at + LOOK_SECONDS - time.monotonic()
        if left > 0:
            select.select(wake, [], [], max(0.0, min(timeout, left)))

    def _look(self) -> None:
        """See whether anything has come, and begin a drain then."""
        self._looked_at = time.monotonic()
        with explained("looking at", f"lane {self._lane}"):
            row = self._conn.execute(query("trigger_look"), {"lane": self._lane}).fetchone()
        if row is None:
            raise SlotLost(slot=self._lane, cause="the triggers were removed", lsn=self.acknowledged)
        position = Lsn.parse(row[0])
        asked, exported, asked_position, answered = row[1:]
        requested = asked is not None and asked != answered and asked not in self._answers.values()
        if requested:
            self._serve(asked, exported, Lsn.parse(asked_position))
            return
        with explained("looking at", "the running transactions"):
            snapshot = self._conn.execute("SELECT pg_current_snapshot()::text").fetchone()
        if snapshot is not None and snapshot[0] == self._seen:
            self._reached(position)
            return
        self._may_refresh()
        self._start(draining.begin(self._conn, self._lane, self._last, position))

    def _start(self, drain: draining.Drain) -> None:
        if drain.filled and drain.position <= self.keepalive_lsn:
            # It was committed without a sign in the WAL since: who waits for a standby becomes visible later.
            self._end_transaction()
            with explained("writing", "a mark"):
                self._conn.execute("SELECT pg_logical_emit_message(true, 'wal2lake', 'drain')")
            return
        if drain.filled:
            self._drain = drain
            self._pending[drain.position] = drain
            self._under_way = draining.read(self._conn, drain, self._last, self.capabilities.binary)
            return
        self._end_transaction()
        self._seen = str(drain.snapshot)
        self._reached(drain.position)

    def _end_transaction(self) -> None:
        with explained("ending", "a drain"):
            self._conn.execute("COMMIT")

    def _ended(self) -> None:
        """All of a drain was given."""
        drain, self._under_way, self._drain = self._drain, None, None
        assert drain is not None
        self._last, self._seen = drain.snapshot, str(drain.snapshot)
        # There may be more by now.
        self._looked_at = -1.0
        self._reached(drain.position)

    def _reached(self, position: Lsn) -> None:
        self.received = max(self.received, position)
        self.keepalive_lsn = max(self.keepalive_lsn, position)

    def _serve(self, asked: str, exported: str, position: Lsn) -> None:
        """Drain what the snapshot of a copy sees, so that the copy is at the position of that drain exactly."""
        try:
            drain = draining.begin(self._conn, self._lane, self._last, position, exported)
        except SourceError as error:
            self._rollback()
            log.debug("the snapshot of a copy is gone: %s", error)
            self._answer(asked, False)
            return
        if position <= self.keepalive_lsn or (self._last is not None and not drain.snapshot.includes(self._last)):
            # A drain came in between; the copy takes another snapshot.
            self._end_transaction()
            self._answer(asked, False)
            return
        filled = bool(drain.filled)
        self._start(drain)
        if filled:
            self._answers[position] = asked
        else:
            self._answer(asked, True)

    def _rollback(self) -> None:
        with explained("ending", "a drain"):
            self._conn.execute("ROLLBACK")

    def _answer(self, asked: str, granted: bool) -> None:
        with explained("answering", "a copy"):
            self._side.execute(
                "UPDATE wal2lake_changes.lanes SET answered = %s, granted = %s WHERE lane = %s AND asked = %s",
                [asked, granted, self._lane, asked],
            )

    def _may_refresh(self) -> None:
        now = time.monotonic()
        if now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        try:
            self._refresh(self._side)
            if not self._pending:
                removing.tidy(self._side, self._lane)
        except SourceBusy as error:
            log.debug("the triggers of group's lane %s are looked at again soon: %s", self._lane, error)

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        select.select(wake, [], [], timeout)

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
        with explained("writing", f"lane {self._lane}"):
            self._side.execute(
                "UPDATE wal2lake_changes.lanes SET position = %s WHERE lane = %s",
                [str(drains[-1].position), self._lane],
            )
        for drain in drains:
            if (asked := self._answers.pop(drain.position, None)) is not None:
                self._answer(asked, True)

    def _delete(self, present: Sequence[Buffer], seen: PgSnapshot) -> None:
        """Delete what is durable."""
        for buffer in present:
            with explained("emptying", buffer.name):
                deleted = self._side.execute(
                    f"DELETE FROM {buffer.name} WHERE pg_visible_in_snapshot(xid, '{seen}')".encode()
                ).rowcount
                count = self._deleted[buffer.name] = self._deleted.get(buffer.name, 0) + deleted
                if count >= VACUUM_ROWS:
                    self._deleted[buffer.name] = 0
                    self._side.execute(f"VACUUM {buffer.name}".encode())

    def finish(self, timeout: float = 2.0) -> None:
        """Every acknowledgement has been taken when it was made."""

    def close(self) -> None:
        self._conn.close()
        self._side.close()
