"""A PostgreSQL server as a model in memory: tables, transactions, WAL, publications, slots and exported snapshots.

    transactions   `begin()`, or `run(lambda tx: …)` for one that commits; several may be open at once
    the stream     `stream(request)`: real pgoutput bytes, as a ChangeSource
    the catalog    `catalog()`, `control()`, and `source(config, group)` as a SourceDatabase
    the oracle     `contents(table, position)`: the rows at any commit position, as a multiset

It is used by one thread, does no I/O, has no clock of its own and draws no random numbers.

Not modelled: row filters and column lists, generated columns, LIST, HASH and DEFAULT partitions, unlogged and foreign
tables, transactions that are streamed while they run, values in binary form. A change counts as published if its table
was when the change was made; of one that was made while the publication was being altered, servers differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from wal2lake.config import Config, GroupConfig
from wal2lake.errors import SlotInUse, SlotLost, SourceBusy, SourceError
from wal2lake.position import Lsn
from wal2lake.source.model import ExportedSnapshot
from wal2lake.source.ports import CaptureSource, SourceDatabase, StreamRequest
from wal2lake.source.publishing.slot import SlotInfo
from wal2lake.source.sessions.server import ServerFacts

from .postgres_catalog import ScriptedCatalog, ScriptedControl
from .postgres_source import ScriptedSource
from .postgres_stream import ScriptedStream, Wait, unreachable
from .postgres_tables import State, Text
from .postgres_transactions import Committed, Transaction

T = TypeVar("T")

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
    """what is committed"""
    wal: list[Committed] = field(default_factory=list)
    wal_end: Lsn = FIRST_LSN
    slots: dict[str, Slot] = field(default_factory=dict)
    snapshots: dict[str, HeldSnapshot] = field(default_factory=dict)
    known_positions: dict[str, Lsn] = field(default_factory=dict)
    """what a state store in this database was told, by group"""
    connections: int = 0
    """raised by `disconnect`: sessions that were opened before it are gone"""
    reachable: bool = True
    grown: Callable[[], object] = lambda: None
    """called when the WAL has grown"""
    acknowledged: Callable[[ScriptedStream, Lsn], object] = lambda stream, lsn: None
    """called when a stream acknowledges, before its slot moves"""
    silent: frozenset[int] = frozenset()
    """sessions whose streams are half open"""
    broken: frozenset[int] = frozenset()
    """those of them whose clients have noticed it"""
    counted: Counter[int] = field(default_factory=Counter)
    """updated and deleted rows, by heap"""
    _open: list[Transaction] = field(default_factory=list)
    _next_oid: int = FIRST_OID
    _next_xid: int = 700
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

    def end(self, transaction: Transaction, state: State | None) -> Committed | None:
        """Called by a transaction: with the state that it leaves if it commits and has written."""
        self._open.remove(transaction)
        if state is None:
            return None
        commit_lsn = self.wal_end
        end_lsn = self.write_wal(48)
        time_us = self.clock() if self.clock is not None else (len(self.wal) + 1) * 1_000_000
        self.state = state
        done = Committed(transaction.xid, commit_lsn, end_lsn, time_us, tuple(transaction.changes), state)
        self.wal.append(done)
        self.counted.update(change.relations[0].oid for change in done.changes if change.kind in "UD")
        return done

    def others(self, transaction: Transaction) -> list[Transaction]:
        """The other open transactions."""
        return [one for one in self._open if one is not transaction]

    def is_written(self, heap: int) -> bool:
        """Whether an open transaction has rows in a heap."""
        return any(one.has_rows_in(heap) for one in self._open)

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

    def settled(self) -> str:
        """A moment, for `passed`: a transaction number of its own, above those of all that run."""
        return str(self.next_xid())

    def passed(self, moment: str) -> bool:
        """Whether every transaction that ran at a moment has ended."""
        return all(not one.xid or one.xid >= int(moment) for one in self._open)

    # The oracle

    def state_at(self, position: Lsn | None = None) -> State:
        """All tables and rows after the transactions with a commit LSN below a position; None: all that committed."""
        if position is None:
            return self.state
        before = [done for done in self.wal if done.commit_lsn < position]
        return before[-1].state if before else State()

    def contents(self, name: str, position: Lsn | None = None) -> Counter[tuple[Text, ...]]:
        """The rows of a table at a position, with their multiplicity, in the order of its columns then."""
        state = self.state_at(position)
        table = next(one for one in state.tables.values() if str(one.id) in (name, f"public.{name}"))
        return state.contents(table)

    # Slots and snapshots

    def create_slot(self, name: str, temporary: bool = False) -> HeldSnapshot:
        """A slot and the snapshot that its stream begins after. Refused while transactions are open that have written:
        a real server waits for them.
        """
        self.require_reachable()
        if name in self.slots:
            raise SourceError(operation=f"creating replication slot {name}", cause="it exists")
        writing = [one.xid for one in self._open if one.xid]
        if writing:
            raise SourceBusy(
                operation="creating", object=f"replication slot {name}", cause=f"transaction {writing[0]} is open",
                remedy="wait for that transaction's end",
            )  # fmt: skip
        at = self.write_wal(56)
        self.slots[name] = Slot(name, at, temporary, self.new_session() if temporary else None)
        snapshot = ExportedSnapshot(f"scripted-{at}-{len(self.snapshots)}", at)

        def release() -> None:
            self.snapshots.pop(snapshot.name, None)
            if temporary:
                self.slots.pop(name, None)

        held = HeldSnapshot(snapshot, self.state, release)
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

    def catalog(self) -> ScriptedCatalog:
        return ScriptedCatalog(self)

    def control(self) -> ScriptedControl:
        return ScriptedControl(self)

    def capture_source(self, per_read: int = 1 << 30, wait: Wait | None = None) -> CaptureSource:
        return CaptureSource(lambda request: self.stream(request, per_read, wait), self.catalog, self.control)

    def source(self, config: Config, group: GroupConfig) -> SourceDatabase:
        return ScriptedSource(self, config, group)

    def disconnect(self) -> None:
        """End all sessions, as a crash of the server does: open transactions, streams and snapshots are gone."""
        self.connections += 1
        for transaction in list(self._open):
            transaction.rollback()
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
            version=self.version, version_text=f"{self.version / 10000:g}", wal_level="logical",
            system_identifier=self.system_identifier, timeline=1, in_recovery=False, database=self.database,
            database_oid=self.database_oid, encoding="UTF8", slots_used=len(self.slots), slots_max=100,
            senders_used=sum(slot.reader is not None for slot in self.slots.values()), senders_max=100,
            max_slot_wal_keep_mb=-1, wal_sender_timeout_ms=60_000, role="wal2lake", superuser=False,
            may_replicate=True, may_create_in_database=True, wal_end=self.wal_end,
        )  # fmt: skip
