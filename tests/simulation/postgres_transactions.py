"""Transactions of the scripted PostgreSQL: rows, locks, and the changes that come of them in the WAL.

A transaction sees what is committed and what it did itself. Whatever a real one would wait for is refused with Blocked,
so that nothing ever waits; whatever a real one would be refused raises Refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from wal2lake.decode import Relation
from wal2lake.schema import ReplicaIdentity, TableId

from .postgres_buffers import BufferRow, ScriptedBuffer
from .postgres_ddl import Definitions
from .postgres_tables import (
    LONGEST_KEY,
    TOASTED_LENGTH,
    Blocked,
    Lock,
    Publication,
    Refused,
    Row,
    ScriptedTable,
    State,
    Text,
)

if TYPE_CHECKING:
    from .postgres import ScriptedPostgres

T = TypeVar("T")

UNCHANGED = object()
"""in a new row: a value outside of the row that an update left alone"""


@dataclass(frozen=True)
class Change:
    """What the WAL has of one changed row, or of a TRUNCATE."""

    kind: str
    """one of I, U, D, T"""
    relations: tuple[Relation, ...]
    """as they were; several of a TRUNCATE"""
    lines: tuple[tuple[int, ...], ...]
    """of each relation: its oid, and those of the tables that it was a partition of"""
    publications: Mapping[str, Publication]
    """as they were"""
    definitions: tuple[tuple[ScriptedTable, ...], ...]
    """of each relation: its own, and those of the tables that it was a partition of"""
    old: tuple[Text, ...] | None = None
    whole: bool = False
    """`old` is the whole row, not the key alone"""
    new: tuple[object, ...] | None = None
    lsn: int = 0
    """of its own record: transactions that run together have theirs in between each other's"""


@dataclass(frozen=True)
class Committed:
    """A transaction in the WAL."""

    xid: int
    commit_lsn: int
    end_lsn: int
    time_us: int
    """since 2000-01-01 UTC"""
    changes: tuple[Change, ...]
    state: State
    """after it"""
    over: Callable[[State], State]
    """what it makes of a state that lacks it"""


class Transaction:
    """One open transaction. After `commit` or `rollback` it is of no use."""

    def __init__(self, server: ScriptedPostgres) -> None:
        self.server = server
        self.xid = 0
        """0 until it writes"""
        self._tables: dict[int, ScriptedTable | None] = {}
        self._names: set[TableId] = set()
        """of tables that it has defined, which others can't take until it ends"""
        self._rows: dict[int, dict[int, Row | None]] = {}
        self._versions: dict[int, list[Row]] = {}
        """every version of a row that it has written or ended, by heap: others wait for their keys"""
        self._publications: dict[str, Publication | None] = {}
        self.changes: list[Change] = []
        self._captured: list[tuple[ScriptedBuffer, BufferRow]] = []
        """what its statements have put into buffers"""
        self._locks: dict[int, Lock] = {}
        """tables that it holds"""
        self._row_locks: set[int] = set()
        self.ended = False
        self.ddl = Definitions(self)

    # What it sees

    @property
    def state(self) -> State:
        return self.over(self.server.state)

    def over(self, committed: State) -> State:
        """What it makes of a state."""
        if not (self._tables or self._rows or self._publications):
            return committed
        tables = {oid: table for oid, table in {**committed.tables, **self._tables}.items() if table is not None}
        rows = dict(committed.rows)
        for heap, own in self._rows.items():
            merged: dict[int, Row | None] = {**rows.get(heap, {}), **own}
            rows[heap] = {number: row for number, row in merged.items() if row is not None}
        publications = {**committed.publications, **self._publications}
        return State(
            tables,
            {oid: found for oid, found in rows.items() if oid in tables},
            # A table that is dropped leaves its publications, which others may drop or alter meanwhile.
            {
                name: one if one.tables <= tables.keys() else replace(one, tables=one.tables & tables.keys())
                for name, one in publications.items()
                if one is not None
            },
        )

    def table(self, name: str | TableId) -> ScriptedTable:
        id = TableId.parse(name) if isinstance(name, str) else name
        found = self.state.find(id)
        if found is None:
            raise Refused(f"relation {id} does not exist")
        return found

    def has_rows_in(self, heap: int) -> bool:
        """Whether it has changed rows of a heap."""
        return bool(self._rows.get(heap))

    # Rows

    def insert(self, name: str, **values: Text) -> None:
        table = self.table(name)
        for column in values:
            if not table.has(column):
                raise Refused(f"column {column} does not exist")
        self._lock_tree(table)
        leaf = self._route(table, values)
        self._insert(leaf, values)

    def update(self, name: str, where: Mapping[str, Text], **values: Text) -> int:
        """Update the rows with these values; how many."""
        self._lock_tree(self.table(name))
        found = self._matching(self.table(name), where)
        for heap, number, row in found:
            self._require_identity(heap)
            self._lock_row(number)
            self._update(self.table(name), heap, number, row, values)
        return len(found)

    def delete(self, name: str, where: Mapping[str, Text]) -> int:
        """Delete the rows with these values; how many."""
        self._lock_tree(self.table(name))
        found = self._matching(self.table(name), where)
        for heap, number, row in found:
            self._require_identity(heap)
            self._lock_row(number)
            self._delete(heap, number, row)
        return len(found)

    def truncate(self, *names: str) -> None:
        emptied = [one for name in names for one in self.state.below(self.table(name))]
        self.lock([table.oid for table in emptied], Lock.EXCLUSIVE)
        heaps = [table for table in emptied if not table.partitioned]
        for table in heaps:
            self._rows.setdefault(table.oid, {}).update(dict.fromkeys(self.state.rows.get(table.oid, {})))
            self.define(replace(table, file=self.server.next_oid()))
        for table in emptied:
            self._capture(table, "T", None)
        if heaps:
            self._write("T", heaps)

    def _insert(self, leaf: ScriptedTable, values: Mapping[str, Text]) -> None:
        row = {column.attnum: values.get(column.name) for column in leaf.live}
        self._require_fit(leaf, row)
        number = self.server.next_row()
        self._set_row(leaf, number, row, [row])
        self._row_locks.add(number)
        self._capture(leaf, "I", row)
        self._write("I", [leaf], new=leaf.values(row))

    def _update(
        self, table: ScriptedTable, heap: ScriptedTable, number: int, row: Row, values: Mapping[str, Text]
    ) -> None:
        changed = {**{column.name: heap.value(row, column) for column in heap.live}, **values}
        leaf = self._route(table, changed)
        if leaf.oid != heap.oid:
            # The row moves to another partition.
            self._delete(heap, number, row)
            self._insert(leaf, changed)
            return
        new = {column.attnum: changed[column.name] for column in heap.live}
        self._require_fit(heap, new, except_row=number)
        self._set_row(heap, number, new, [row, new])
        self._capture(heap, "D", row)
        self._capture(heap, "I", new)
        sent = tuple(
            UNCHANGED
            if column.name not in values and len(heap.value(row, column) or "") > TOASTED_LENGTH
            else new[column.attnum]
            for column in heap.live
        )
        whole = heap.identity is ReplicaIdentity.FULL
        old = heap.values(row) if whole else self._key(heap, row) if self._tells_key(heap, row, new) else None
        self._write("U", [heap], old=old, whole=whole, new=sent)

    def _delete(self, heap: ScriptedTable, number: int, row: Row) -> None:
        self._set_row(heap, number, None, [row])
        self._capture(heap, "D", row)
        whole = heap.identity is ReplicaIdentity.FULL
        if whole or heap.identifying:
            self._write("D", [heap], old=heap.values(row) if whole else self._key(heap, row), whole=whole)

    def _set_row(self, heap: ScriptedTable, number: int, row: Row | None, versions: list[Row]) -> None:
        self._rows.setdefault(heap.oid, {})[number] = row
        self._versions.setdefault(heap.oid, []).extend(versions)

    @staticmethod
    def _tells_key(heap: ScriptedTable, row: Row, new: Row) -> bool:
        """Whether an update's record has the old key: it changed, or is stored outside of the row, so `new` lacks it."""
        before = {number: heap.value(row, heap.columns[number - 1]) for number in heap.identifying}
        return any(value != new[number] or len(value or "") > TOASTED_LENGTH for number, value in before.items())

    @staticmethod
    def _key(heap: ScriptedTable, row: Row) -> tuple[Text, ...]:
        keys = heap.identifying
        return tuple(heap.value(row, column) if column.attnum in keys else None for column in heap.live)

    def _matching(self, table: ScriptedTable, where: Mapping[str, Text]) -> list[tuple[ScriptedTable, int, Row]]:
        state = self.state
        return [
            (heap, number, row)
            for heap in state.heaps(table)
            for number, row in state.rows.get(heap.oid, {}).items()
            if all(heap.value(row, heap.column(name)) == value for name, value in where.items())
        ]

    def _route(self, table: ScriptedTable, values: Mapping[str, Text]) -> ScriptedTable:
        """The heap that a row belongs to."""
        state = self.state
        while table.partitioned:
            (column,) = table.names((table.partition_column,))
            parts = [one for one in state.tables.values() if one.parent == table.oid]
            fitting = [one for one in parts if one.span is not None and one.span.holds(values.get(column))]
            if not fitting:
                raise Refused("no partition of relation found for row")
            (table,) = fitting
        above = [*state.lineage(table)]
        for parent, partition in zip(above[1:], above, strict=False):
            (column,) = parent.names((parent.partition_column,))
            if partition.span is None or not partition.span.holds(values.get(column)):
                raise Refused("new row violates partition constraint")
        return table

    def _require_fit(self, heap: ScriptedTable, row: Row, except_row: int = 0) -> None:
        for column in heap.live:
            if column.not_null and row.get(column.attnum) is None:
                raise Refused(f"null value in column {column.name}")
        for key in {heap.primary_key, heap.identity_index} - {()}:
            wanted = [row.get(attnum) for attnum in key]
            if any(len(value or "") > LONGEST_KEY for value in wanted):
                raise Refused("index row size exceeds btree maximum")

            def same(other: Row, key: tuple[int, ...] = key, wanted: list[Text] = wanted) -> bool:
                return [heap.value(other, heap.columns[attnum - 1]) for attnum in key] == wanted

            state = self.state
            if any(number != except_row and same(other) for number, other in state.rows.get(heap.oid, {}).items()):
                raise Refused("duplicate key value violates unique constraint")
            for other in self.server.others(self):
                if any(map(same, other._versions.get(heap.oid, ()))):
                    raise Blocked("another transaction has that key")

    def _require_identity(self, heap: ScriptedTable) -> None:
        """PostgreSQL refuses updates and deletes that a publication could not tell the rows of."""
        if heap.identity is ReplicaIdentity.FULL or heap.identifying:
            return
        line = tuple(one.oid for one in self.state.lineage(heap))
        if any(one.holds(line) and not one.append for one in self.state.publications.values()):
            raise Refused("it does not have a replica identity and publishes updates")

    # Triggers

    def _capture(self, heap: ScriptedTable, op: str, row: Row | None) -> None:
        """Triggers put a row into the buffer of its table, or a mark."""
        triggers = self.server.triggers
        if triggers.installed and (captured := triggers.captured(self.state, heap, op, row)) is not None:
            self._captured.append(captured)
            self.assign()

    def fill(self) -> None:
        """It commits: its rows are in the buffers."""
        for buffer, row in self._captured:
            buffer.rows.append(replace(row, xid=self.xid))

    # Definitions, for its DDL

    def defines(self, id: TableId) -> bool:
        """Whether it has made, or renamed to it, a table of a name, which may have another name by then."""
        return id in self._names

    def alters(self, publication: str) -> bool:
        return publication in self._publications

    def drops(self, oids: Collection[int]) -> bool:
        return any(oid in oids for oid, table in self._tables.items() if table is None)

    def define(self, table: ScriptedTable) -> None:
        self._tables[table.oid] = table
        self._names.add(table.id)

    def undefine(self, oid: int) -> None:
        self.assign()
        self._tables[oid] = None

    def publication(self, publication: Publication) -> None:
        self._publications[publication.name] = publication

    def forget_publication(self, name: str) -> None:
        self._publications[name] = None

    # Locks and the WAL

    def lock(self, oids: Collection[int], lock: Lock) -> None:
        self.require_open()
        for oid in oids:
            for other in self.server.others(self):
                if oid in other._locks and lock.conflicts(other._locks[oid]):
                    raise Blocked(f"relation {oid} is locked")
        for oid in oids:
            self._locks[oid] = max(lock, self._locks.get(oid, lock))

    def _lock_tree(self, table: ScriptedTable) -> None:
        """Whoever reads or writes rows locks the table, its partitions, and what its bounds are checked against."""
        state = self.state
        self.lock([one.oid for one in state.below(state.root(table))], Lock.SHARED)

    def _lock_row(self, number: int) -> None:
        if any(number in other._row_locks for other in self.server.others(self)):
            raise Blocked("another transaction has changed that row")
        self._row_locks.add(number)

    def assign(self) -> int:
        if not self.xid:
            self.xid = self.server.next_xid()
        return self.xid

    def _write(
        self, kind: str, tables: list[ScriptedTable], old: tuple[Text, ...] | None = None, whole: bool = False,
        new: tuple[object, ...] | None = None,
    ) -> None:  # fmt: skip
        self.assign()
        state = self.state
        now = [state.tables[table.oid] for table in tables]
        definitions = tuple(tuple(state.lineage(table)) for table in now)
        lines = tuple(tuple(one.oid for one in line) for line in definitions)
        relations = tuple(table.relation() for table in now)
        lsn = self.server.wal_end
        self.changes.append(Change(kind, relations, lines, state.publications, definitions, old, whole, new, lsn))
        self.server.write_wal(64 + sum(len(text or "") for text in old or ()))

    # Its end

    def attempt(self, statement: Callable[[Transaction], T]) -> T:
        """Run a statement that leaves nothing behind if it is refused, as if it had not been run."""
        xid = self.xid
        before = (
            dict(self._tables), {heap: dict(rows) for heap, rows in self._rows.items()}, dict(self._publications),
            list(self.changes), list(self._captured), dict(self._locks), set(self._row_locks),
            {heap: list(rows) for heap, rows in self._versions.items()},
        )  # fmt: skip
        try:
            return statement(self)
        except (Blocked, Refused):
            self.xid = xid
            self._tables, self._rows, self._publications, self.changes, self._captured = before[:5]
            self._locks, self._row_locks, self._versions = before[5:]
            raise

    def commit(self, waits: bool = False) -> Committed | None:
        """Its place in the WAL; None if it has written nothing.

        `waits`: for a synchronous standby. Until `ScriptedPostgres.show` nobody sees it, and it keeps its locks.
        """
        self.require_open()
        self.ended = True
        if self.xid:
            return self.server.log(self, waits)
        self.server.forget(self)
        return None

    def rollback(self) -> None:
        self.require_open()
        self.ended = True
        self.server.forget(self)

    def require_open(self) -> None:
        if self.ended:
            raise RuntimeError("the transaction has ended")
