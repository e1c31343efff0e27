"""What happens at the source, and what people ask of the mirror: drawn from a world's seed.

Each seed has a mix of its own: some kinds of statements and commands are left out, so that the others meet more often.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from simulation import statements
from simulation.postgres_tables import Blocked, Refused, ScriptedTable, State, Text
from simulation.postgres_transactions import Transaction
from simulation.statements import Statement, both
from wal2lake.schema import ReplicaIdentity

if TYPE_CHECKING:
    from simulation.world import World

TABLES = ("a0", "a1", "a2", "b0", "b1", "c0", "d0")
"""names that tables are made and renamed with; the first letter says which group means them, see `world.DEFAULT_GROUPS`"""
COLUMNS = ("n0", "n1", "n2", "n3")
ASIDE = "aside"
"""a name that a column has for a moment"""
MOST_TABLES = 10
IDS = 12
LONG = ("x" * 2500, "y" * 2100)


class Changes:
    """Inserts, updates and deletes on two tables."""

    strict = True

    def setup(self, world: World) -> None:
        def make(tx: Transaction) -> None:
            tx.ddl.create_table("a", {"id": "int4", "v": "text"}, ["id"])
            tx.ddl.create_table("b", {"id": "int4", "v": "text", "n": "numeric(10,2)"}, ["id"])
            for number in range(5):
                tx.insert("a", id=str(number), v="old")

        world.server.run(make)

    def step(self, world: World) -> None:
        def change(tx: Transaction) -> None:
            for _ in range(world.random.randint(1, 4)):
                table, id = world.random.choice(["a", "b"]), str(world.random.randrange(20))
                match world.random.randrange(4):
                    case 0 | 1:
                        if not tx.update(table, {"id": id}, v=str(world.random.random())):
                            tx.insert(table, id=id, v="new")
                    case 2:
                        tx.delete(table, {"id": id})
                    case _:
                        tx.update(table, {"id": id}, id=str(world.random.randrange(20)))

        with suppress(Blocked, Refused):
            world.server.run(change)

    def finish(self, world: World) -> None: ...


class Life:
    """Everything that may happen to tables: changes of rows and of definitions, in up to three sessions."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(f"workload {seed}")
        self._open: dict[int, Transaction] = {}
        self.said: list[str] = []
        """what was done, for people"""
        self._sessions = chance.choice([1, 1, 2, 3])
        self._most = chance.choice([1, 3, 8])
        """statements of a transaction"""
        self._ddl = chance.choice([0.0, 0.02, 0.1, 0.3])
        every: Sequence[tuple[float, Callable[[Transaction], Statement | None]]] = (
            (1, self._add_column), (1, self._drop_column), (1, self._rename_column), (0.5, self._swap_columns),
            (0.3, self._set_identity),
            (0.3, self._drop_primary_key), (1, self._add_primary_key), (1, self._rename_table), (0.5, self._drop_table),
            (1, self._create_table), (1, self._create_partition), (1.5, self._attach), (1.5, self._detach), (1.5, self._move),
        )  # fmt: skip
        self.strict = not self._ddl
        self._kinds = [one for one in every if chance.random() < 0.6] or list(every)

    # The world's side

    def setup(self, world: World) -> None:
        made = [
            statements.create_table("a0", {"id": "int4", "v": "text", "n": "numeric(10,2)"}, ["id"]),
            statements.create_table("a1", {"id": "int4", "v": "text"}, identity=ReplicaIdentity.FULL),
            statements.create_table("b0", {"id": "int4", "g": "int4", "v": "text"}, ["id", "g"]),
            statements.create_table("p", {"k": "int4", "v": "text"}, ["k"], partition_by="k"),
            statements.create_partition("p_0", "p", 0, 6),
            statements.create_partition("p_1", "p", 6, 12),
        ]
        self._do(world, made)
        if self.chance.random() < 0.5:
            self._do(world, [
                statements.create_table("q", {"k": "int4", "v": "text"}, ["k"], partition_by="k"),
                statements.create_partition("q_0", "q", 0, 6),
            ])  # fmt: skip
        for _ in range(self.chance.choice([0, 10])):
            self._transaction(world)

    def step(self, world: World) -> None:
        number = self.chance.randrange(self._sessions)
        if number not in self._open:
            if self.chance.random() < 0.7 or self._sessions == 1:
                self._transaction(world)
                return
            self._open[number] = world.server.begin()
        transaction = self._open[number]
        self._some(transaction, self.chance.randint(1, 3))
        if self.chance.random() < 0.3:
            self._end(number)

    def finish(self, world: World) -> None:
        for number in list(self._open):
            self._end(number)

    # Transactions

    def _do(self, world: World, made: Sequence[Statement]) -> None:
        for statement in made:
            world.server.run(statement.script)
            self.said.append(repr(statement))

    def _transaction(self, world: World) -> None:
        self._open[-1] = world.server.begin()
        self._some(self._open[-1], self.chance.randint(1, self._most))
        self._end(-1)

    def _some(self, transaction: Transaction, count: int) -> None:
        for _ in range(count):
            statement = self._statement(transaction)
            if statement is None:
                continue
            try:
                transaction.attempt(statement.script)
            except (Blocked, Refused):
                continue
            self.said.append(f"{transaction.xid}: {statement!r}")

    def _end(self, number: int) -> None:
        transaction = self._open.pop(number)
        if transaction.ended:
            return
        if self.chance.random() < 0.85:
            done = transaction.commit()
            self.said.append(f"{transaction.xid}: COMMIT at {done.commit_lsn if done is not None else 'no place'}")
        else:
            transaction.rollback()
            self.said.append(f"{transaction.xid}: ROLLBACK")

    def _statement(self, transaction: Transaction) -> Statement | None:
        if transaction.ended:
            return None
        tables = sorted(transaction.state.tables.values(), key=lambda table: table.oid)
        if not tables:
            return self._create_table(transaction)
        if self.chance.random() < self._ddl:
            weights = [weight for weight, _ in self._kinds]
            return self.chance.choices([make for _, make in self._kinds], weights)[0](transaction)
        return self._change(transaction.state, self.chance.choice(tables))

    # Rows

    def _change(self, state: State, table: ScriptedTable) -> Statement:
        name, rows = table.id.name, sorted(state.contents(table).elements(), key=str)
        values = self._values(table)
        kind = self.chance.random()
        if kind < 0.4 or not rows:
            return statements.insert(name, **values)
        if kind < 0.43:
            others = [one.id.name for one in state.tables.values() if one.parent is None and one.oid != table.oid]
            return statements.truncate(name, *self.chance.sample(others, min(len(others), self.chance.choice([0, 1]))))
        columns = [column.name for column in table.live]
        row = dict(zip(columns, self.chance.choice(rows), strict=True))
        if kind < 0.5 and len(rows) > 1:
            return self._swap(state, table, row, dict(zip(columns, self.chance.choice(rows), strict=True)))
        if kind < 0.62:
            return statements.delete(name, row)
        if kind < 0.7:
            return both(statements.delete(name, row), statements.insert(name, **{**values, **_some_of(row, table)}))
        changed = self.chance.sample(columns, self.chance.randint(1, len(columns)))
        return statements.update(name, row, **{column: values[column] for column in changed})

    def _swap(
        self, state: State, table: ScriptedTable, one: Mapping[str, Text], other: Mapping[str, Text]
    ) -> Statement:
        """Two rows exchange their keys."""
        key = table.names(table.primary_key)
        if not key or one == other or table.column(key[0]).type.type.name != "int4" or table.partitioned:
            return statements.update(table.id.name, one, **self._values(table))
        column, name = key[0], table.id.name
        middle = {**one, column: "-1"}
        moved = statements.update(name, other, **{column: one[column]})
        last = statements.update(name, middle, **{column: other[column]})
        return both(both(statements.update(name, one, **{column: "-1"}), moved), last)

    def _values(self, table: ScriptedTable) -> dict[str, Text]:
        return {column.name: self._value(column.type.type.name) for column in table.live}

    def _value(self, kind: str) -> Text:
        match kind:
            case "int4" | "int8":
                return str(self.chance.randrange(IDS))
            case "numeric":
                return self.chance.choice([None, "1.50", "-20.00", "0.00"])
            case _:
                return self.chance.choice([None, "", "a", "b'c", "é\n", *LONG])

    # Definitions

    def _any(self, transaction: Transaction, wanted: Callable[[ScriptedTable], bool] = lambda _: True) -> ScriptedTable:
        tables = sorted(transaction.state.tables.values(), key=lambda table: table.oid)
        return self.chance.choice([table for table in tables if wanted(table)] or tables)

    def _free(self, transaction: Transaction) -> str:
        taken = {table.id.name for table in transaction.state.tables.values()}
        return self.chance.choice([name for name in TABLES if name not in taken] or ["a0"])

    def _add_column(self, tx: Transaction) -> Statement:
        kind, default = self.chance.choice(["int4", "text"]), self.chance.choice([None, None, "7"])
        return statements.add_column(self._any(tx, _top).id.name, self.chance.choice(COLUMNS), kind, default)

    def _drop_column(self, tx: Transaction) -> Statement | None:
        table = self._any(tx, _top)
        if len(table.live) < 2:
            return None
        return statements.drop_column(table.id.name, self.chance.choice(table.live).name)

    def _rename_column(self, tx: Transaction) -> Statement:
        table = self._any(tx, _top)
        return statements.rename_column(
            table.id.name, self.chance.choice(table.live).name, self.chance.choice(COLUMNS)
        )  # fmt: skip

    def _swap_columns(self, tx: Transaction) -> Statement | None:
        """Two columns exchange their names, often ones of the same type."""
        table = self._any(tx, lambda one: _top(one) and len(one.live) > 1)
        name, columns = table.id.name, list(table.live)
        one = self.chance.choice(columns)
        alike = [column for column in columns if column != one and column.type == one.type]
        others = alike or [column for column in columns if column != one]
        if not others:
            return None
        other = self.chance.choice(others)
        aside = statements.rename_column(name, one.name, ASIDE)
        renamed = statements.rename_column(name, other.name, one.name)
        return both(both(aside, renamed), statements.rename_column(name, ASIDE, other.name))

    def _set_identity(self, tx: Transaction) -> Statement:
        return statements.set_identity(
            self._any(tx).id.name, self.chance.choice([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL])
        )

    def _drop_primary_key(self, tx: Transaction) -> Statement:
        return statements.drop_primary_key(self._any(tx, lambda one: _top(one) and bool(one.primary_key)).id.name)

    def _add_primary_key(self, tx: Transaction) -> Statement:
        table = self._any(tx, lambda one: _top(one) and not one.primary_key)
        numbers = [column.name for column in table.live if column.type.type.name == "int4"]
        return statements.add_primary_key(table.id.name, self.chance.choice(numbers or [table.live[0].name]))

    def _rename_table(self, tx: Transaction) -> Statement:
        return statements.rename_table(self._any(tx, _top).id.name, self._free(tx))

    def _drop_table(self, tx: Transaction) -> Statement:
        return statements.drop_table(self._any(tx).id.name)

    def _create_table(self, tx: Transaction) -> Statement | None:
        if len(tx.state.tables) >= MOST_TABLES:
            return None
        key = self.chance.choice([["k"], ["k"], []])
        identity = ReplicaIdentity.DEFAULT if key else ReplicaIdentity.FULL
        return statements.create_table(self._free(tx), {"k": "int4", "v": "text"}, key, identity)

    def _create_partition(self, tx: Transaction) -> Statement | None:
        root = self._any(tx, lambda one: one.partitioned)
        if not root.partitioned or len(tx.state.tables) >= MOST_TABLES:
            return None
        low = 6 * self.chance.randrange(4)
        return statements.create_partition(f"p_{self.chance.randrange(6)}", root.id.name, low, low + 6)

    def _attach(self, tx: Transaction) -> Statement | None:
        """Attach a table that has the columns, within the bounds that its rows ask for."""
        root = self._any(tx, lambda one: one.partitioned)
        shape = {column.name: column.type for column in root.live}
        tables = [one for one in tx.state.tables.values() if _top(one) and not one.partitioned]
        fitting = [one for one in tables if {column.name: column.type for column in one.live} == shape]
        if not root.partitioned or not fitting:
            return None
        table = self.chance.choice(sorted(fitting, key=lambda one: one.oid))
        (column,) = root.names((root.partition_column,))
        place = [each.name for each in table.live].index(column)
        rows = tx.state.contents(table)
        low = min((int(row[place] or 0) // 6 * 6 for row in rows), default=6 * self.chance.randrange(4))
        return statements.attach(root.id.name, table.id.name, low, low + self.chance.choice([6, 12]))

    def _detach(self, tx: Transaction) -> Statement | None:
        table = self._any(tx, lambda one: one.parent is not None)
        parent = tx.state.tables.get(table.parent or 0)
        return statements.detach(parent.id.name, table.id.name) if parent is not None else None

    def _move(self, tx: Transaction) -> Statement | None:
        """A partition leaves its table for another one, or comes back with other bounds."""
        leaf = self._any(tx, lambda one: one.parent is not None)
        before = tx.state.tables.get(leaf.parent or 0)
        if before is None or leaf.span is None:
            return None
        after = self._any(tx, lambda one: one.partitioned and one.oid != before.oid)
        low = self.chance.choice([leaf.span.low, leaf.span.low, 6 * self.chance.randrange(4)])
        attached = statements.attach(after.id.name, leaf.id.name, low, low + self.chance.choice([6, 12]))
        return both(statements.detach(before.id.name, leaf.id.name), attached)


def _top(table: ScriptedTable) -> bool:
    return table.parent is None


def _some_of(row: Mapping[str, Text], table: ScriptedTable) -> dict[str, Text]:
    """Its key, so that a row with the same one follows."""
    return {name: row[name] for name in table.names(table.primary_key)}
