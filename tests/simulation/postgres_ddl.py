"""Statements of the scripted PostgreSQL that change definitions: tables, columns, keys, partitions, publications."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from wal2lake.schema import ReplicaIdentity, TableId

from .postgres_tables import (
    LONGEST_KEY,
    TYPES,
    Blocked,
    Lock,
    Publication,
    Refused,
    ScriptedColumn,
    ScriptedTable,
    Span,
    Text,
)

if TYPE_CHECKING:
    from .postgres_transactions import Transaction


class Definitions:
    """The DDL of one transaction. Every statement locks the tables that it changes against everybody else."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._server = transaction.server

    # Tables

    def create_table(
        self, name: str, columns: Mapping[str, str], primary_key: Sequence[str] = (),
        identity: ReplicaIdentity = ReplicaIdentity.DEFAULT, partition_by: str | None = None,
    ) -> ScriptedTable:  # fmt: skip
        """A table from `{column: type}`, as CREATE TABLE and ALTER TABLE … REPLICA IDENTITY make it."""
        id = TableId.parse(name)
        self._require_free(id)
        made = tuple(
            ScriptedColumn(column, TYPES[kind], number, not_null=column in primary_key)
            for number, (column, kind) in enumerate(columns.items(), 1)
        )
        oid = self._server.next_oid()
        table = ScriptedTable(oid, id, made, oid, identity)
        if partition_by is not None:
            table = replace(table, partition_column=table.column(partition_by).attnum)
        if primary_key:
            table = replace(table, primary_key=table.numbers(tuple(primary_key)), key_index=self._server.next_oid())
        self._define(table)
        return table

    def drop_table(self, name: str) -> None:
        """The table and its partitions."""
        table = self._transaction.table(name)
        gone = [*self._transaction.state.below(table)]
        parents = [table.parent] if table.parent is not None else []
        self._transaction.lock([*parents, *(one.oid for one in gone)], Lock.EXCLUSIVE)
        for one in gone:
            self._transaction.undefine(one.oid)

    def rename_table(self, name: str, new: str) -> None:
        table, id = self._transaction.table(name), TableId.parse(new)
        self._require_free(id)
        self._change(table, lambda one: replace(one, id=id))

    def set_identity(self, name: str, identity: ReplicaIdentity, index: Sequence[str] = ()) -> None:
        """ALTER TABLE … REPLICA IDENTITY. `index`: the columns of a unique index, which is made for it."""
        table = self._transaction.table(name)
        numbers = table.numbers(tuple(index))
        if any(not table.columns[attnum - 1].not_null for attnum in numbers):
            raise Refused("the column is marked as nullable")
        self._require_unique(table, numbers)
        self._change(table, lambda one: replace(one, identity=identity, identity_index=numbers))

    # Columns, of a partitioned table in all its partitions

    def add_column(self, name: str, column: str, kind: str, default: Text = None) -> None:
        table = self._transaction.table(name)
        self._require_top(table)
        if table.has(column):
            raise Refused(f"column {column} exists")

        def changed(one: ScriptedTable) -> ScriptedTable:
            missing = None if one.partitioned else default
            made = ScriptedColumn(column, TYPES[kind], len(one.columns) + 1, missing=missing)
            return one.with_columns((*one.columns, made))

        self._change_tree(table, changed)

    def drop_column(self, name: str, column: str) -> None:
        """A key that has the column goes with it."""
        table = self._transaction.table(name)
        self._require_top(table)
        if any(
            one.partitioned and one.names((one.partition_column,)) == (column,)
            for one in self._transaction.state.below(table)
        ):
            raise Refused(f"column {column} is part of the partition key")

        def changed(one: ScriptedTable) -> ScriptedTable:
            gone = one.column(column).attnum
            without = one.with_columns(
                tuple(replace(c, dropped=True, not_null=False) if c.attnum == gone else c for c in one.columns)
            )
            if gone in one.primary_key:
                without = replace(without, primary_key=(), key_index=0)
            return replace(without, identity_index=()) if gone in one.identity_index else without

        self._change_tree(table, changed)

    def rename_column(self, name: str, column: str, new: str) -> None:
        table = self._transaction.table(name)
        self._require_top(table)
        if table.has(new):
            raise Refused(f"column {new} exists")

        def changed(one: ScriptedTable) -> ScriptedTable:
            attnum = one.column(column).attnum
            return one.with_columns(tuple(replace(c, name=new) if c.attnum == attnum else c for c in one.columns))

        self._change_tree(table, changed)

    # Keys

    def add_primary_key(self, name: str, *columns: str) -> None:
        table = self._transaction.table(name)
        self._require_top(table)
        for one in self._transaction.state.below(table):
            if one.primary_key:
                raise Refused("multiple primary keys are not allowed")
            if one.partitioned and not set(one.names((one.partition_column,))) <= set(columns):
                raise Refused("the key must include all partitioning columns")
            self._require_unique(one, one.numbers(columns))

        self._change_tree(table, lambda one: self._with_key(one, columns))

    def drop_primary_key(self, name: str) -> None:
        table = self._transaction.table(name)
        self._require_top(table)
        if not table.primary_key:
            raise Refused("there is no primary key")
        self._change_tree(table, lambda one: replace(one, primary_key=(), key_index=0))

    # Partitions

    def create_partition(
        self, name: str, parent: str, low: int, high: int, partition_by: str | None = None
    ) -> ScriptedTable:
        """CREATE TABLE … PARTITION OF … FOR VALUES FROM … TO …"""
        above, id = self._transaction.table(parent), TableId.parse(name)
        self._require_free(id)
        self._require_apart(above, Span(low, high))
        self._transaction.lock([one.oid for one in self._transaction.state.lineage(above)][:1], Lock.EXCLUSIVE)
        columns = tuple(replace(column, attnum=number) for number, column in enumerate(above.live, 1))
        oid = self._server.next_oid()
        table = ScriptedTable(oid, id, columns, oid, parent=above.oid, span=Span(low, high), made=True)
        if partition_by is not None:
            table = replace(table, partition_column=table.column(partition_by).attnum)
        table = replace(table, since=self._transaction.assign())
        if above.primary_key:
            table = self._with_key(table, above.names(above.primary_key))
        self._define(table)
        return table

    def attach(self, parent: str, name: str, low: int, high: int) -> None:
        above, table = self._transaction.table(parent), self._transaction.table(name)
        span = Span(low, high)
        self._require_apart(above, span)
        shapes = [{c.name: c.type for c in one.live} for one in (above, table)]
        if shapes[0] != shapes[1] or table.parent is not None or table.oid == above.oid:
            raise Refused("the tables do not fit each other")
        if any(above.column(c.name).not_null and not c.not_null for c in table.live):
            raise Refused("column must be marked NOT NULL")
        (column,) = above.names((above.partition_column,))
        if not all(span.holds(value) for value in self._values(table, column)):
            raise Refused("partition constraint is violated by some row")
        key = above.names(above.primary_key)
        if key and table.primary_key and set(table.names(table.primary_key)) != set(key):
            raise Refused("multiple primary keys are not allowed")
        self._transaction.lock([one.oid for one in self._transaction.state.below(table)], Lock.EXCLUSIVE)
        self._transaction.lock([above.oid], Lock.DEFINING)
        xid = self._transaction.assign()
        if key and not table.primary_key:
            self._require_unique(table, table.numbers(key))
            table = self._with_key(table, key)
        self._define(replace(table, parent=above.oid, span=span, since=xid, made=False))

    def detach(self, parent: str, name: str) -> None:
        above, table = self._transaction.table(parent), self._transaction.table(name)
        if table.parent != above.oid:
            raise Refused("it is not a partition of that table")
        self._transaction.lock([above.oid], Lock.EXCLUSIVE)
        self._change(table, lambda one: replace(one, parent=None, span=None, since=0, made=False))

    # Publications

    def create_publication(self, name: str, *tables: str, append: bool = False) -> None:
        if name in self._transaction.state.publications:
            raise Refused(f"publication {name} exists")
        oids = frozenset(self._transaction.table(table).oid for table in tables)
        self.set_publication(Publication(name, oids, append))

    def set_publication(self, publication: Publication) -> None:
        """Create it, or have it hold these tables."""
        before = self._transaction.state.publications.get(publication.name)
        altered = publication.tables ^ (before.tables if before is not None else frozenset())
        if any(other.alters(publication.name) for other in self._server.others(self._transaction)):
            raise Blocked(f"publication {publication.name} is being altered")
        self._transaction.lock(altered, Lock.DEFINING)
        self._transaction.assign()
        self._transaction.publication(publication)

    def drop_publication(self, name: str) -> None:
        others = self._server.others(self._transaction)
        tables = self._transaction.state.publications[name].tables
        if any(other.alters(name) or other.drops(tables) for other in others):
            raise Blocked(f"publication {name} is being altered")
        self._transaction.assign()
        self._transaction.forget_publication(name)

    # What they have in common

    def _define(self, table: ScriptedTable) -> None:
        self._transaction.assign()
        self._transaction.lock([table.oid], Lock.EXCLUSIVE)
        self._transaction.define(table)

    def _change(self, table: ScriptedTable, change: Callable[[ScriptedTable], ScriptedTable]) -> None:
        self._transaction.lock([table.oid], Lock.EXCLUSIVE)
        self._define(change(table))

    def _change_tree(self, table: ScriptedTable, change: Callable[[ScriptedTable], ScriptedTable]) -> None:
        tree = [*self._transaction.state.below(table)]
        self._transaction.lock([one.oid for one in tree], Lock.EXCLUSIVE)
        for one in tree:
            self._define(change(one))

    def _with_key(self, table: ScriptedTable, names: Sequence[str]) -> ScriptedTable:
        key = table.numbers(tuple(names))
        columns = tuple(replace(c, not_null=c.not_null or c.attnum in key) for c in table.columns)
        return replace(table, columns=columns, primary_key=key, key_index=self._server.next_oid())

    def _values(self, table: ScriptedTable, column: str) -> list[Text]:
        state = self._transaction.state
        return [
            heap.value(row, heap.column(column))
            for heap in state.heaps(table)
            for row in state.rows.get(heap.oid, {}).values()
        ]

    def _require_unique(self, table: ScriptedTable, key: tuple[int, ...]) -> None:
        if not key:
            return
        state = self._transaction.state
        found = [
            tuple(table.value(row, table.columns[attnum - 1]) for attnum in key)
            for row in state.rows.get(table.oid, {}).values()
        ]
        if len(set(found)) < len(found):
            raise Refused("could not create unique index")
        if any(len(value or "") > LONGEST_KEY for values in found for value in values):
            raise Refused("index row size exceeds btree maximum")
        if any(None in values for values in found):
            raise Refused("column contains null values")

    def _require_free(self, id: TableId) -> None:
        if self._transaction.state.find(id) is not None:
            raise Refused(f"relation {id} exists")
        # A name that another transaction has made, dropped or changed is its own until it ends.
        taken = [one.oid for one in self._server.state.tables.values() if one.id == id]
        self._transaction.lock(taken, Lock.EXCLUSIVE)
        if any(other.defines(id) for other in self._server.others(self._transaction)):
            raise Blocked(f"relation {id} is being made")

    def _require_top(self, table: ScriptedTable) -> None:
        if table.parent is not None:
            raise Refused("it is inherited: the table that it is a partition of has to be altered")

    def _require_apart(self, parent: ScriptedTable, span: Span) -> None:
        if not parent.partitioned or span.low >= span.high:
            raise Refused("no such partition is possible")
        siblings = [one for one in self._transaction.state.tables.values() if one.parent == parent.oid]
        if any(one.span is not None and one.span.low < span.high and span.low < one.span.high for one in siblings):
            raise Refused("partition would overlap another")
