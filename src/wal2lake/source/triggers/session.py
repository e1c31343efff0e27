"""The buffers of a lane on PostgreSQL: the statements of the stream that drains them."""

# ruff: noqa: S608 - every name in these texts is ours or quoted
from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence

from ...clock import SYSTEM_CLOCK
from ...config import SourceConfig
from ...decode import Messages
from ...position import Lsn
from ...visibility import PgSnapshot
from ..sessions.connect import Connection, connect, explained, query
from . import draining, installing, removing
from .contract import Drain, Look
from .definition import Buffer


class SqlBuffers:
    """Implements Buffers."""

    clock = SYSTEM_CLOCK

    def __init__(self, source: SourceConfig, group: str, lane: str, follow: Callable[[Connection], object]) -> None:
        self._lane, self._follow = lane, follow
        self._conn = connect(source, group)
        try:
            self._side = connect(source, group)
        except BaseException:
            self._conn.close()
            raise

    def exist(self) -> bool:
        return installing.exists(self._side)

    def present(self) -> Sequence[Buffer]:
        return [buffer for some in installing.buffers(self._side, self._lane).values() for buffer in some]

    def look(self) -> Look | None:
        with explained("looking at", f"lane {self._lane}"):
            row = self._conn.execute(query("trigger_look"), {"lane": self._lane}).fetchone()
        if row is None:
            return None
        position, asked, exported, asked_position, answered = row
        return Look(
            Lsn.parse(position), asked, exported, Lsn.parse(asked_position) if asked_position else None, answered
        )

    def snapshot(self) -> str:
        with explained("looking at", "the running transactions"):
            row = self._conn.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])

    def mark(self) -> None:
        with explained("writing", "a mark"):
            self._conn.execute("SELECT pg_logical_emit_message(true, 'wal2lake', 'drain')")

    def begin(self, last: PgSnapshot | None, position: Lsn, exported: str | None = None) -> Drain:
        return draining.begin(self._conn, self._lane, last, position, exported)

    def read(self, drain: Drain, last: PgSnapshot | None, binary: bool) -> Iterator[Messages]:
        return draining.read(self._conn, drain, last, binary)

    def end(self) -> None:
        with explained("ending", "a drain"):
            self._conn.execute("COMMIT")

    def abandon(self) -> None:
        with explained("ending", "a drain"):
            self._conn.execute("ROLLBACK")

    def delete(self, buffer: Buffer, seen: PgSnapshot) -> int:
        with explained("emptying", buffer.name):
            return self._side.execute(
                f"DELETE FROM {buffer.name} WHERE pg_visible_in_snapshot(xid, '{seen}')".encode()
            ).rowcount

    def vacuum(self, buffer: Buffer) -> None:
        with explained("emptying", buffer.name):
            self._side.execute(f"VACUUM {buffer.name}".encode())

    def reached(self, position: Lsn) -> None:
        with explained("writing", f"lane {self._lane}"):
            self._side.execute(
                "UPDATE wal2lake_changes.lanes SET position = %s WHERE lane = %s", [str(position), self._lane]
            )

    def answer(self, number: str, granted: bool) -> None:
        with explained("answering", "a copy"):
            self._side.execute(
                "UPDATE wal2lake_changes.lanes SET answered = %s, granted = %s WHERE lane = %s AND asked = %s",
                [number, granted, self._lane, number],
            )

    def follow(self) -> None:
        self._follow(self._side)

    def tidy(self) -> None:
        removing.tidy(self._side, self._lane)

    def wait(self, timeout: float, wake: Sequence[int]) -> None:
        select.select(wake, [], [], timeout)

    def close(self) -> None:
        self._conn.close()
        self._side.close()
