"""A PostgreSQL server as a model in memory: tables, transactions, WAL, publications, slots, snapshots and triggers.

    transactions   `begin()`, or `run(lambda tx: …)` for one that commits; several may be open at once
    the stream     `stream(request)`: real pgoutput bytes, as a ChangeSource
    its lanes      `polled(request)`, `buffers(lane)`: what the product's own polling and drains ask of a session
    the catalog    `catalog()`, `control()`, and `source(config, group)` as a SourceDatabase
    the oracle     `contents(table, position)`: the rows at any commit position, as a multiset

It is used by one thread, does no I/O, has no clock of its own and draws no random numbers.

Not modelled: row filters and column lists, generated columns, LIST, HASH and DEFAULT partitions, unlogged and foreign
tables, transactions that are streamed while they run, values in binary form. A change counts as published if its table
was when the change was made; of one that was made while the publication was being altered, servers differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from wal2lake.config import Config, GroupConfig
from wal2lake.errors import SlotInUse, SlotLost, SourceBusy, SourceError, SourceRefused
from wal2lake.position import Lsn
from wal2lake.source.model import ExportedSnapshot
from wal2lake.source.ports import CaptureSource, SourceDatabase, StreamRequest
from wal2lake.source.publishing.slot import SlotInfo, slot_name
from wal2lake.source.sessions.server import ServerFacts
from wal2lake.visibility import PgSnapshot, Visibility

from .postgres_buffers import Triggers
from .postgres_catalog import ScriptedCatalog, ScriptedControl
from .postgres_polled import ScriptedSlot
from .postgres_snapshots import HeldState
from .postgres_source import ScriptedSource
from .postgres_stream import ScriptedStream, Wait, unreachable
from .postgres_tables import State, Text
from .postgres_transactions import Committed, Transaction
from .postgres_trigger_source import ScriptedTriggerControl, ScriptedTriggerSource, WholeRowsCatalog
from .postgres_triggers import ScriptedBuffers
from .waits import REAL, Waits

T = TypeVar("T")


class SlotReader(Protocol):
    """Whoever moves a slot."""

    @property
    def slot(self) -> str: ...
    def sends(self, done: Committed) -> bool:
        """Whether it gives anything of a transaction."""


FIRST_OID = 16384
FIRST_LSN = Lsn(0x100_0000)
SERVER_VERSION = 180000


@dataclass
class Slot:
    """A logical replication slot."""

    name: str
    confirmed: Lsn
    temporary: bool = False
    reader: int | None = None
    """the number of the session that reads it"""
    lost: str | None = None


@dataclass
class HeldSnapshot:
    """An exported snapshot; the temporary slot that was made with it goes with it."""

    snapshot: ExportedSnapshot
    state: State
    release: Callable[[], object]
    alive: bool = True

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self.release()

    def __enter__(self) -> HeldSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class ScriptedPostgres:
    database: str = "shop"
    system_identifier: str = "7000000000000000001"
    database_oid: int = 16000
    version: int = SERVER_VERSION
    clock: Callable[[], int] | None = None
    """microseconds since 2000-01-01 UTC; without it each commit is one second after the one before"""
    state: State = field(default_factory=State)
    """what everybody sees"""
    logged: State = field(default_factory=State)
    """the same with what has written its commit record and waits for a synchronous standby"""
    wal: list[Committed] = field(default_factory=list)
    wal_end: Lsn = FIRST_LSN
    slots: dict[str, Slot] = field(default_factory=dict)
    wal_level: str = "logical"
    slots_max: int = 100
    snapshots: dict[str, HeldSnapshot | HeldState] = field(default_factory=dict)
    known_positions: dict[str, Lsn] = field(default_factory=dict)
    """what a state store in this database was told, by group"""
    triggers: Triggers = field(default_factory=Triggers)
    copies_saw: dict[str, dict[Lsn, State]] = field(default_factory=dict)
    """what copies saw, by lane and by their positions"""
    seen_by: dict[str, State] = field(default_factory=dict)
    """what drains saw, by their snapshots"""
    emptied: Callable[[str, frozenset[int]], object] = lambda lane, xids: None
    """called before rows of these transactions are deleted from buffers of a lane"""
    connections: int = 0
    """raised by `disconnect`: sessions that were opened before it are gone"""
    reachable: bool = True
    grown: Callable[[], object] = lambda: None
    """called when the WAL has grown"""
    acknowledged: Callable[[SlotReader, Lsn], object] = lambda stream, lsn: None
    """called when a stream acknowledges, before its slot moves"""
    silent: frozenset[int] = frozenset()
    """sessions whose streams are half open"""
    broken: frozenset[int] = frozenset()
    """those of them whose clients have noticed it"""
    counted: Counter[int] = field(default_factory=Counter)
    """updated and deleted rows, by heap"""
    _open: list[Transaction] = field(default_factory=list)
    _waiting: list[Transaction] = field(default_factory=list)
    """for a synchronous standby"""
    _next_oid: int = FIRST_OID
    _next_xid: int = 700
    _completed: int = 700
    """the highest transaction that has ended and can be seen, if it has committed"""
    _next_row: int = 1
    _next_session: int = 1

    # Transactions

    def begin(self) -> Transaction:
        transaction = Transaction(self)
        self._open.append(transaction)
        return transaction

    def run(self, statements: Callable[[Transaction], T]) -> T:
        """One transaction that commits; it is rolled back if a statement is refused."""
        transaction = self.begin()
        try:
            result = statements(transaction)
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()
        return result

    def forget(self, transaction: Transaction) -> None:
        """Called by a transaction that has not written, or is rolled back."""
        self._open.remove(transaction)
        self._completed = max(self._completed, transaction.xid)

    def log(self, transaction: Transaction, waits: bool) -> Committed:
        """Called by a transaction that commits: write its record. `waits`: it is seen later, by `show`."""
        self._open.remove(transaction)
        commit_lsn = self.wal_end
        self.logged = transaction.over(self.logged)
        end_lsn = self.write_wal(48)
        time_us = self.clock() if self.clock is not None else (len(self.wal) + 1) * 1_000_000
        done = Committed(
            transaction.xid, commit_lsn, end_lsn, time_us, tuple(transaction.changes), self.logged, transaction.over
        )  # fmt: skip
        self.wal.append(done)
        transaction.fill()
        self.counted.update(change.relations[0].oid for change in done.changes if change.kind in "UD")
        self._waiting.append(transaction)
        if not waits:
            self.show(transaction)
        return done

    @property
    def waiting(self) -> Sequence[Transaction]:
        """Transactions that wait for a synchronous standby."""
        return tuple(self._waiting)

    def show(self, transaction: Transaction) -> None:
        """The standby has answered: everybody sees the transaction."""
        self._waiting.remove(transaction)
        self.state = transaction.over(self.state)
        self._completed = max(self._completed, transaction.xid)
        if not self._waiting:
            self.logged = self.state

    @property
    def running(self) -> list[int]:
        """The numbers of transactions that are not over for everybody."""
        return sorted(one.xid for one in self.holding if one.xid)

    def snapshot(self) -> PgSnapshot:
        """The present one, as `pg_current_snapshot()` says."""
        xmax = self._completed + 1
        running = frozenset(xid for xid in self.running if xid < xmax)
        return PgSnapshot(min(running, default=xmax), xmax, running)

    def export(self) -> HeldState:
        """The present snapshot for others, until it is closed."""
        name = f"exported-{self.new_session()}"
        held = HeldState(name, str(self.snapshot()), self.state, lambda: self.snapshots.pop(name, None))
        self.snapshots[name] = held
        return held

    @property
    def holding(self) -> list[Transaction]:
        """The transactions that hold locks: those that are open, and those that wait for a standby."""
        return [*self._open, *self._waiting]

    def others(self, transaction: Transaction) -> list[Transaction]:
        return [one for one in self.holding if one is not transaction]

    def is_written(self, heap: int) -> bool:
        """Whether a transaction that is not over has rows in a heap."""
        return any(one.has_rows_in(heap) for one in self.holding)

    def mark(self) -> Lsn:
        """Write an empty transaction; a position that the stream will reach."""
        self.require_reachable()

        def message(transaction: Transaction) -> None:
            transaction.assign()

        self.run(message)
        return self.wal_end

    def write_wal(self, size: int) -> Lsn:
        self.wal_end = Lsn(self.wal_end + size)
        self.grown()
        return self.wal_end

    def next_oid(self) -> int:
        self._next_oid += 1
        return self._next_oid

    def next_xid(self) -> int:
        self._next_xid += 1
        return self._next_xid

    def next_row(self) -> int:
        self._next_row += 1
        return self._next_row

    @property
    def upcoming(self) -> int:
        """The number of the next transaction that writes."""
        return self._next_xid + 1

    def settled(self) -> str:
        """A moment, for `passed`: a transaction number of its own, above those of all that run."""
        moment = self.next_xid()
        self._completed = max(self._completed, moment)
        return str(moment)

    def passed(self, moment: str) -> bool:
        """Whether every transaction that ran at a moment has ended and can be seen."""
        return self.snapshot().xmin >= int(moment)

    # The oracle

    def state_at(self, position: Lsn | None = None, seen: Visibility | None = None) -> State:
        """All tables and rows after the transactions with a commit LSN below a position; None: all that is visible.

        `seen`: and after those beyond it that a snapshot sees.
        """
        if position is None:
            return self.state
        before = [done for done in self.wal if done.commit_lsn < position]
        state = before[-1].state if before else State()
        for done in self.wal[len(before) :] if seen is not None else ():
            if seen is not None and seen.sees(done.commit_lsn, done.xid):
                state = done.over(state)
        return state

    def contents(self, name: str, position: Lsn | None = None) -> Counter[tuple[Text, ...]]:
        """The rows of a table at a position, with their multiplicity, in the order of its columns then."""
        state = self.state_at(position)
        table = next(one for one in state.tables.values() if str(one.id) in (name, f"public.{name}"))
        return state.contents(table)

    # Slots and snapshots

    def create_slot(self, name: str, temporary: bool = False, since: int | None = None) -> HeldSnapshot:
        """A slot and the snapshot that its stream begins after. Refused while transactions are open that have written
        and began before `since`: a real server waits for those that run when it begins to make a slot. Whoever began
        later and has a commit record by now is part of the snapshot, whether others see it or not.
        """
        self.require_reachable()
        if self.wal_level != "logical":
            raise SourceRefused(
                operation="creating", object=f"replication slot {name}", cause="wal_level is not logical",
                remedy="ALTER SYSTEM SET wal_level = logical; -- then restart PostgreSQL",
            )  # fmt: skip
        if len(self.slots) >= self.slots_max:
            raise SourceRefused(
                operation="creating", object=f"replication slot {name}", cause="all replication slots are in use",
                remedy="ALTER SYSTEM SET max_replication_slots = 20; -- restart PostgreSQL; or drop unused slots",
            )  # fmt: skip
        if name in self.slots:
            raise SourceError(operation=f"creating replication slot {name}", cause="it exists")
        blocking = [xid for xid in self.running if since is None or xid < since]
        if blocking:
            raise SourceBusy(
                operation="creating", object=f"replication slot {name}", cause=f"transaction {blocking[0]} is open",
                remedy="wait for that transaction's end",
            )  # fmt: skip
        at = self.write_wal(56)
        self.slots[name] = Slot(name, at, temporary, self.new_session() if temporary else None)
        snapshot = ExportedSnapshot(f"scripted-{at}-{len(self.snapshots)}", at)

        def release() -> None:
            self.snapshots.pop(snapshot.name, None)
            if temporary:
                self.slots.pop(name, None)

        held = HeldSnapshot(snapshot, self.logged, release)
        self.snapshots[snapshot.name] = held
        return held

    def snapshot_contents(self, snapshot: str, oid: int) -> Counter[tuple[Text, ...]]:
        """What a copy reads of a table at an exported snapshot."""
        state = self.snapshots[snapshot].state
        return state.contents(state.tables[oid])

    def drop_slot(self, name: str) -> bool:
        self.require_reachable()
        slot = self.slots.get(name)
        if slot is not None and slot.reader is not None:
            raise SlotInUse(slot=name, holder=f"session {slot.reader}", pid=slot.reader)
        return self.slots.pop(name, None) is not None

    def lose_slot(self, name: str, cause: str = "wal_removed") -> None:
        """Invalidate a slot, as a server does whose WAL became too large."""
        self.slots[name].lost = cause
        self.slots[name].reader = None

    def slot_info(self, name: str) -> SlotInfo | None:
        self.require_reachable()
        slot = self.slots.get(name)
        if slot is None:
            return None
        status = "lost" if slot.lost else "reserved"
        return SlotInfo(
            name, "pgoutput", self.database, slot.temporary, slot.reader, slot.confirmed, slot.confirmed, status,
            slot.lost, max(0, self.wal_end - slot.confirmed), f"session {slot.reader}" if slot.reader else None,
        )  # fmt: skip

    def read_slot(self, name: str, session: int) -> Slot:
        """Take a slot for a stream. Raises SlotLost if it is gone, SlotInUse if another session reads it."""
        slot = self.slots.get(name)
        if slot is None or slot.lost:
            cause = f"was invalidated ({slot.lost})" if slot is not None else "does not exist"
            raise SlotLost(slot=name, cause=cause, lsn=slot.confirmed if slot is not None else Lsn(0))
        if slot.reader not in (None, session):
            raise SlotInUse(slot=name, holder=f"session {slot.reader}", pid=slot.reader)
        slot.reader = session
        return slot

    # Sessions

    def stream(self, request: StreamRequest, per_read: int = 1 << 30, wait: Wait | None = None) -> ScriptedStream:
        """Open a stream that gives at most so many messages at once. `wait`: how it waits when there are none."""
        return ScriptedStream(self, request, per_read, wait)

    def polled(self, request: StreamRequest, per_read: int = 1 << 30, waits: Waits = REAL) -> ScriptedSlot:
        """A slot that is read through SQL."""
        return ScriptedSlot(self, request, per_read, waits)

    def catalog(self, triggers: bool = False) -> ScriptedCatalog:
        """`triggers`: for what triggers have captured."""
        return WholeRowsCatalog(self) if triggers else ScriptedCatalog(self)

    def control(self, lane: str | None = None) -> ScriptedControl:
        """`lane`: the group, if triggers capture it."""
        return ScriptedControl(self) if lane is None else ScriptedTriggerControl(self, slot_name(lane, self.database))

    def capture_source(self, per_read: int = 1 << 30, wait: Wait | None = None) -> CaptureSource:
        return CaptureSource(lambda request: self.stream(request, per_read, wait), self.catalog, self.control)

    def source(self, config: Config, group: GroupConfig, waits: Waits | None = None) -> SourceDatabase:
        """`waits`: where a real one waits; without it SourceBusy is raised at once."""
        return (ScriptedTriggerSource if group.triggers else ScriptedSource)(self, config, group, waits)

    def buffers(self, lane: str, per_read: int = 1 << 30, waits: Waits = REAL) -> ScriptedBuffers:
        """The buffers of a lane, for the one stream that drains them."""
        return ScriptedBuffers(self, lane, per_read, waits)

    def change_wal_level(self, level: str) -> None:
        """With a restart. A server that has logical slots does not start with a lower level, so they are dropped."""
        self.disconnect()
        self.wal_level = level
        if level != "logical":
            self.slots.clear()

    def disconnect(self) -> None:
        """End all sessions, as a crash of the server does: open transactions, streams and snapshots are gone."""
        self.connections += 1
        for transaction in list(self._open):
            transaction.rollback()
        for transaction in list(self._waiting):
            # Its record is there, and recovery finds it.
            self.show(transaction)
        for held in list(self.snapshots.values()):
            held.close()
        for slot in self.slots.values():
            slot.reader = None

    def silence(self) -> frozenset[int]:
        """Nothing that streams which are open are sent, or send, arrives from here on; the sessions of those."""
        silent = frozenset(slot.reader for slot in self.slots.values() if slot.reader is not None)
        self.silent |= silent
        return silent

    def break_streams(self, sessions: frozenset[int]) -> None:
        """The clients notice that nothing has arrived for long."""
        self.broken |= sessions

    def free_slots(self, sessions: frozenset[int]) -> None:
        """The server notices that, too."""
        for slot in self.slots.values():
            if slot.reader in sessions:
                slot.reader = None

    def new_session(self) -> int:
        self.require_reachable()
        self._next_session += 1
        return self._next_session

    def require_reachable(self) -> None:
        if not self.reachable:
            raise unreachable("connection refused")

    def facts(self) -> ServerFacts:
        self.require_reachable()
        return ServerFacts(
            version=self.version, version_text=f"{self.version / 10000:g}", wal_level=self.wal_level,
            system_identifier=self.system_identifier, timeline=1, in_recovery=False, database=self.database,
            database_oid=self.database_oid, encoding="UTF8", slots_used=len(self.slots), slots_max=self.slots_max,
            senders_used=sum(slot.reader is not None for slot in self.slots.values()), senders_max=100,
            max_slot_wal_keep_mb=-1, wal_sender_timeout_ms=60_000, role="wal2lake", superuser=False,
            may_replicate=True, may_create_in_database=True, wal_end=self.wal_end,
        )  # fmt: skip
