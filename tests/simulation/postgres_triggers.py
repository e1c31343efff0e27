"""Triggers of the scripted PostgreSQL: how they are installed and removed, and sessions that drain what they fill."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from simulation.postgres_buffers import BufferRow, ScriptedBuffer, ScriptedLane, columns_of
from simulation.postgres_snapshots import HeldState
from simulation.postgres_stream import unreachable
from simulation.postgres_tables import Blocked, Lock, State
from simulation.waits import REAL, Waits
from stream_encoder import delete, insert
from wal2lake.clock import Clock
from wal2lake.decode import Messages
from wal2lake.errors import SourceBusy, SourceError
from wal2lake.position import Lsn
from wal2lake.schema import TableId
from wal2lake.source.model import ExportedSnapshot
from wal2lake.source.triggers import Condition, messages
from wal2lake.source.triggers.contract import Drain, Filled, Look, Request
from wal2lake.source.triggers.definition import Buffer
from wal2lake.visibility import PgSnapshot

if TYPE_CHECKING:
    from simulation.postgres import ScriptedPostgres


# ---- what is installed


def conditions(server: ScriptedPostgres, oids: Collection[int]) -> dict[int, Condition]:
    state, installed = server.state, server.triggers.installed
    return {
        oid: Condition.MISSING
        if oid not in installed or oid not in state.tables
        else Condition.INSTALLED
        if installed[oid].buffer.columns == columns_of(state.tables[oid])
        else Condition.OUTDATED
        for oid in oids
    }


def install(server: ScriptedPostgres, lane: str, oid: int) -> None:
    """Have a table captured in its present columns. Raises SourceBusy where it is locked."""
    table = server.state.tables[oid]
    if conditions(server, [oid])[oid] is Condition.INSTALLED:
        return
    with Locked(server, [oid]):
        mine = server.triggers.lanes.setdefault(lane, ScriptedLane()).buffers.setdefault(oid, [])
        if mine:
            mine[-1].buffer = replace(mine[-1].buffer, retired=server.settled())
        made = Buffer(oid, mine[-1].buffer.generation + 1 if mine else 0, columns_of(table), str(table.columns))
        mine.append(ScriptedBuffer(made))
        server.triggers.installed[oid] = mine[-1]


def remove(server: ScriptedPostgres, lane: str, keep: Collection[int] = ()) -> None:
    """Remove the triggers and the buffers of a lane's tables. Raises SourceBusy where one is locked."""
    found = server.triggers.lanes.get(lane)
    for oid in [oid for oid in found.buffers if oid not in keep] if found is not None else []:
        assert found is not None
        with Locked(server, [oid]):
            del found.buffers[oid]
            server.triggers.installed.pop(oid, None)


def drop_lane(server: ScriptedPostgres, lane: str) -> None:
    remove(server, lane)
    server.triggers.lanes.pop(lane, None)


class Locked:
    """Nobody else has the tables meanwhile, and nobody has rows in them that are not over."""

    def __init__(self, server: ScriptedPostgres, oids: Sequence[int]) -> None:
        self._transaction, self._oids = server.begin(), oids

    def __enter__(self) -> None:
        try:
            self._transaction.lock(self._oids, Lock.EXCLUSIVE)
        except Blocked as blocked:
            self._transaction.rollback()
            raise SourceBusy(
                operation="installing triggers on", object=f"table {self._oids[0]}", cause=str(blocked), remedy="wait"
            ) from blocked

    def __exit__(self, *_: object) -> None:
        self._transaction.rollback()


# ---- sessions


class ScriptedRequests:
    """Implements DrainRequests."""

    def __init__(self, server: ScriptedPostgres, lane: str) -> None:
        self._server, self._lane = server, lane

    def ask(self, number: str, snapshot: ExportedSnapshot) -> bool:
        found = self._found()
        if found is None or (found.asked is not None and found.answered != found.asked):
            return False
        found.asked, found.exported, found.asked_position = number, snapshot.name, snapshot.lsn
        found.answered, found.granted = None, False
        return True

    def answer(self) -> Request | None:
        found = self._found()
        return None if found is None else Request(found.asked, found.answered, found.granted)

    def withdraw(self, number: str) -> None:
        found = self._found()
        if found is not None and found.asked == number:
            found.asked = found.answered = None

    def _found(self) -> ScriptedLane | None:
        self._server.require_reachable()
        found = self._server.triggers.lanes.get(self._lane)
        return found if found is not None and found.there else None


class ScriptedBuffers:
    """Implements Buffers."""

    def __init__(self, server: ScriptedPostgres, lane: str, per_read: int = 1 << 30, waits: Waits = REAL) -> None:
        """`per_read`: messages that come at once."""
        server.require_reachable()
        self._server, self._lane, self._per_read, self._waits = server, lane, per_read, waits
        self._connection = server.connections
        self._rows: dict[str, list[BufferRow]] = {}
        """of the drain whose transaction is open"""
        self._state = State()
        """what it sees"""

    @property
    def clock(self) -> Clock:
        return self._waits.clock

    @property
    def lane(self) -> str:
        return self._lane

    def exist(self) -> bool:
        return bool(self._require().triggers.lanes)

    def present(self) -> Sequence[Buffer]:
        return [one.buffer for one in self._require().triggers.buffers(self._lane)]

    def look(self) -> Look | None:
        server = self._require()
        found = server.triggers.lanes.get(self._lane)
        if found is None or not found.there:
            return None
        return Look(server.wal_end, found.asked, found.exported, found.asked_position, found.answered)

    def snapshot(self) -> str:
        return str(self._require().snapshot())

    def mark(self) -> None:
        self._require().mark()

    def begin(self, last: PgSnapshot | None, position: Lsn, exported: str | None = None) -> Drain:
        server = self._require()
        snapshot, self._state = server.snapshot(), server.state
        if exported is not None:
            held = server.snapshots.get(exported)
            if not isinstance(held, HeldState):
                raise SourceError(operation="beginning a drain", cause="invalid snapshot identifier")
            snapshot, self._state = PgSnapshot.parse(held.seen), held.state
        self._rows, filled = {}, []
        for one in server.triggers.buffers(self._lane):
            rows = [row for row in one.rows if snapshot.sees(row.xid) and not (last is not None and last.sees(row.xid))]
            if rows:
                self._rows[one.buffer.name] = rows
                filled.append(Filled(one.buffer, any(row.op in "TX" for row in rows)))
        us = server.clock() if server.clock is not None else 0
        return Drain(snapshot, position, filled, us)

    def read(self, drain: Drain, last: PgSnapshot | None, binary: bool) -> Iterator[Messages]:
        server = self._require()
        server.seen_by[str(drain.snapshot)] = self._state
        yield Messages.of([messages.begin(drain.position - 1, drain.us, drain.snapshot.xmax)])
        for filled in drain.filled:
            buffer = filled.buffer
            table = self._state.tables.get(buffer.relid)
            id = table.id if table is not None else TableId("wal2lake_changes", str(buffer.relid))
            yield Messages.of([messages.relation(buffer.relid, id, buffer.columns)])
            found = [_message(buffer, row) for row in self._rows[buffer.name]]
            while found:
                self._require()
                come, found = found[: self._per_read], found[self._per_read :]
                yield Messages.of(come)
        yield Messages.of([messages.commit(drain.position - 1, drain.position, drain.us)])

    def end(self) -> None:
        self._require()

    def abandon(self) -> None:
        self._require()

    def delete(self, buffer: Buffer, seen: PgSnapshot) -> int:
        server = self._require()
        for one in server.triggers.buffers(self._lane):
            if one.buffer.name == buffer.name:
                gone = [row for row in one.rows if seen.sees(row.xid)]
                server.emptied(self._lane, frozenset(row.xid for row in gone))
                one.rows = [row for row in one.rows if row not in gone]
                return len(gone)
        return 0

    def vacuum(self, buffer: Buffer) -> None:
        self._require()

    def reached(self, position: Lsn) -> None:
        found = self._require().triggers.lanes.get(self._lane)
        if found is not None:
            found.position = position

    def answer(self, number: str, granted: bool) -> None:
        found = self._require().triggers.lanes.get(self._lane)
        if found is not None and found.asked == number:
            found.answered, found.granted = number, granted

    def follow(self) -> None:
        server = self._require()
        found = server.triggers.lanes.get(self._lane)
        for oid, condition in conditions(server, found.buffers if found is not None else ()).items():
            if condition is Condition.OUTDATED:
                install(server, self._lane, oid)

    def tidy(self) -> None:
        server = self._require()
        found, ended = server.triggers.lanes.get(self._lane), server.snapshot().xmin
        for oid, some in list(found.buffers.items()) if found is not None else []:
            dropped = oid not in server.state.tables
            left = [
                one for one in some
                if one.rows or not (dropped or (one.buffer.retired is not None and int(one.buffer.retired) < ended))
            ]  # fmt: skip
            some[:] = left
            if not left and dropped and found is not None:
                del found.buffers[oid]
                server.triggers.installed.pop(oid, None)

    def wait(self, timeout: float, wake: Sequence[int]) -> None:
        self._waits.readable(wake, timeout)

    def close(self) -> None:
        self._connection = -1

    def _require(self) -> ScriptedPostgres:
        if self._connection != self._server.connections or not self._server.reachable:
            raise unreachable("the server closed the connection")
        return self._server


def _message(buffer: Buffer, row: BufferRow) -> bytes:
    match row.op:
        case "I":
            return insert(buffer.relid, list(row.values))
        case "D":
            return delete(buffer.relid, row=list(row.values))
        case "T":
            return messages.truncate(buffer.relid)
        case _:
            return messages.copy_needed(buffer.relid)
