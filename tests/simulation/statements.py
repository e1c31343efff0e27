"""Statements in two forms, SQL for a real server and a call for the model, and random histories made of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wal2lake.quoting import literal, plain
from wal2lake.schema import ReplicaIdentity

from .postgres import ScriptedPostgres
from .postgres_tables import Blocked, Refused, ScriptedTable, State, Text
from .postgres_transactions import Transaction

IDENTITIES = {ReplicaIdentity.DEFAULT: "DEFAULT", ReplicaIdentity.FULL: "FULL", ReplicaIdentity.NOTHING: "NOTHING"}
PUBLICATION = "p"


@dataclass(frozen=True)
class Statement:
    sql: str
    script: Callable[[Transaction], object]

    def __repr__(self) -> str:
        return self.sql if len(self.sql) < 200 else f"{self.sql[:200]}…"


def _value(value: Text) -> str:
    return "NULL" if value is None else literal(value)


def _where(where: Mapping[str, Text]) -> str:
    terms = [f"{plain(name)} IS NULL" if v is None else f"{plain(name)} = {literal(v)}" for name, v in where.items()]
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def both(first: Statement, second: Statement) -> Statement:
    def script(transaction: Transaction) -> None:
        first.script(transaction)
        second.script(transaction)

    return Statement(f"{first.sql}; {second.sql}", script)


def insert(table: str, **values: Text) -> Statement:
    names, cells = ", ".join(map(plain, values)), ", ".join(map(_value, values.values()))
    return Statement(f"INSERT INTO {table} ({names}) VALUES ({cells})", lambda tx: tx.insert(table, **values))


def update(table: str, where: Mapping[str, Text], **values: Text) -> Statement:
    changes = ", ".join(f"{plain(name)} = {_value(value)}" for name, value in values.items())
    return Statement(
        f"UPDATE {table} SET {changes}{_where(where)}",
        lambda tx: tx.update(table, where, **values),
    )


def delete(table: str, where: Mapping[str, Text]) -> Statement:
    return Statement(f"DELETE FROM {table}{_where(where)}", lambda tx: tx.delete(table, where))


def truncate(*tables: str) -> Statement:
    return Statement(f"TRUNCATE {', '.join(tables)}", lambda tx: tx.truncate(*tables))


def create_table(
    table: str, columns: Mapping[str, str], primary_key: Sequence[str] = (), identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    partition_by: str | None = None,
) -> Statement:  # fmt: skip
    """Texts are stored outside of their row as soon as they are long."""
    parts = [f"{plain(name)} {kind}" for name, kind in columns.items()]
    if primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(plain, primary_key))})")
    sql = f"CREATE TABLE {table} ({', '.join(parts)})"
    sql += f" PARTITION BY RANGE ({plain(partition_by)})" if partition_by is not None else ""
    sql += "".join(_external(table, name) for name, kind in columns.items() if kind == "text")
    sql += f"; ALTER TABLE {table} REPLICA IDENTITY {IDENTITIES[identity]}"
    return Statement(sql, lambda tx: tx.ddl.create_table(table, columns, primary_key, identity, partition_by))


def _external(table: str, column: str) -> str:
    return f"; ALTER TABLE {table} ALTER {plain(column)} SET STORAGE EXTERNAL"


def drop_table(table: str) -> Statement:
    return Statement(f"DROP TABLE {table}", lambda tx: tx.ddl.drop_table(table))


def rename_table(table: str, new: str) -> Statement:
    return Statement(f"ALTER TABLE {table} RENAME TO {new}", lambda tx: tx.ddl.rename_table(table, new))


def set_identity(table: str, identity: ReplicaIdentity) -> Statement:
    sql = f"ALTER TABLE {table} REPLICA IDENTITY {IDENTITIES[identity]}"
    return Statement(sql, lambda tx: tx.ddl.set_identity(table, identity))


def add_column(table: str, column: str, kind: str, default: Text = None) -> Statement:
    sql = f"ALTER TABLE {table} ADD {plain(column)} {kind}"
    sql += f" DEFAULT {literal(default)}; ALTER TABLE {table} ALTER {plain(column)} DROP DEFAULT" if default else ""
    sql += _external(table, column) if kind == "text" else ""
    return Statement(sql, lambda tx: tx.ddl.add_column(table, column, kind, default))


def drop_column(table: str, column: str) -> Statement:
    return Statement(f"ALTER TABLE {table} DROP {plain(column)}", lambda tx: tx.ddl.drop_column(table, column))


def rename_column(table: str, column: str, new: str) -> Statement:
    sql = f"ALTER TABLE {table} RENAME {plain(column)} TO {plain(new)}"
    return Statement(sql, lambda tx: tx.ddl.rename_column(table, column, new))


def add_primary_key(table: str, *columns: str) -> Statement:
    sql = f"ALTER TABLE {table} ADD CONSTRAINT {table}_pkey PRIMARY KEY ({', '.join(map(plain, columns))})"
    return Statement(sql, lambda tx: tx.ddl.add_primary_key(table, *columns))


def drop_primary_key(table: str) -> Statement:
    # The key keeps its name when the table is renamed.
    find = f"SELECT conname FROM pg_constraint WHERE conrelid = {literal(table)}::regclass AND contype = 'p'"
    sql = f"DO $$BEGIN EXECUTE format('ALTER TABLE {table} DROP CONSTRAINT %I', ({find})); END$$"
    return Statement(sql, lambda tx: tx.ddl.drop_primary_key(table))


def create_partition(table: str, parent: str, low: int, high: int, partition_by: str | None = None) -> Statement:
    sql = f"CREATE TABLE {table} PARTITION OF {parent} FOR VALUES FROM ({low}) TO ({high})"
    sql += f" PARTITION BY RANGE ({plain(partition_by)})" if partition_by is not None else ""
    return Statement(sql, lambda tx: tx.ddl.create_partition(table, parent, low, high, partition_by))


def attach(parent: str, table: str, low: int, high: int) -> Statement:
    sql = f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES FROM ({low}) TO ({high})"
    return Statement(sql, lambda tx: tx.ddl.attach(parent, table, low, high))


def detach(parent: str, table: str) -> Statement:
    return Statement(f"ALTER TABLE {parent} DETACH PARTITION {table}", lambda tx: tx.ddl.detach(parent, table))


def create_publication(name: str, *tables: str, append: bool = False) -> Statement:
    sql = f"CREATE PUBLICATION {plain(name)}" + (f" FOR TABLE {', '.join(tables)}" if tables else "")
    sql += " WITH (publish = 'insert, truncate')" if append else ""
    return Statement(sql, lambda tx: tx.ddl.create_publication(name, *tables, append=append))


def publish(name: str, table: str) -> Statement:
    """Add a table to a publication."""

    def script(tx: Transaction) -> None:
        publication = tx.state.publications[name]
        oid = tx.table(table).oid
        if oid in publication.tables:
            raise Refused(f"{table} is published")
        tx.ddl.set_publication(
            type(publication)(name, publication.tables | {oid}, publication.append, publication.mark)
        )

    return Statement(f"ALTER PUBLICATION {plain(name)} ADD TABLE {table}", script)


@dataclass(frozen=True)
class Step:
    """What one of several sessions does: a statement, or the end of its transaction."""

    session: int
    statement: Statement | None
    commits: bool = False
    waits: bool = False
    """the commit waits for a synchronous standby"""
    answers: bool = False
    """the standby answers: the commit of this session has ended"""


SETUP = (
    create_table("plain", {"id": "int4", "v": "text", "n": "numeric(10,2)"}, ["id"]),
    create_table("whole", {"a": "int4", "b": "text"}, identity=ReplicaIdentity.FULL),
    create_table("parted", {"k": "int4", "v": "text"}, ["k"], partition_by="k"),
    create_partition("parted_0", "parted", 0, 10),
    create_partition("parted_1", "parted", 10, 20),
    create_table("other", {"k": "int4", "v": "text"}, ["k"], partition_by="k"),
    create_partition("other_0", "other", 0, 10),
    create_table("loose", {"k": "int4", "v": "text"}, ["k"]),
    create_publication(PUBLICATION, "plain", "whole", "parted", "other", "loose"),
)


def random_history(
    seed: int, steps: int, sessions: int = 2, ddl: float = 0.3, standby: bool = False
) -> Iterator[tuple[Step, ScriptedPostgres]]:
    """Steps that a server takes as they come, after SETUP, each with the model that has taken it.

    `ddl`: how many statements change definitions. `standby`: some commits wait for a synchronous standby.
    """
    chance, model = random.Random(seed), ScriptedPostgres()
    model.run(lambda tx: [statement.script(tx) for statement in SETUP])
    yield Step(0, None), model
    open: dict[int, Transaction] = {}
    waiting: dict[int, Transaction] = {}
    for _ in range(steps):
        number = chance.randrange(sessions)
        if number in waiting:
            if chance.random() < 0.3:
                model.show(waiting.pop(number))
                yield Step(number, None, answers=True), model
            continue
        if ddl and not open and chance.random() < 0.1:
            yield from _published(model, number, chance)
            continue
        if number in open and chance.random() < 0.3:
            commits = chance.random() < 0.85
            transaction = open.pop(number)
            waits = standby and commits and bool(transaction.xid) and chance.random() < 0.4
            transaction.commit(waits) if commits else transaction.rollback()
            if waits:
                waiting[number] = transaction
            yield Step(number, None, commits, waits), model
            continue
        transaction = open.setdefault(number, model.begin()) if number not in open else open[number]
        statement = _random_statement(chance, transaction, ddl)
        try:
            transaction.attempt(statement.script)
        except (Blocked, Refused):
            continue
        yield Step(number, statement), model
    for number, transaction in waiting.items():
        model.show(transaction)
        yield Step(number, None, answers=True), model
    for number, transaction in open.items():
        transaction.commit()
        yield Step(number, None, commits=True), model


def _published(model: ScriptedPostgres, session: int, chance: random.Random) -> Iterator[tuple[Step, ScriptedPostgres]]:
    """Publish a table while no other transaction is open: what becomes of their changes depends on the server."""
    statement = publish(PUBLICATION, chance.choice(sorted(table.id.name for table in model.state.tables.values())))
    try:
        model.run(statement.script)
    except Refused:
        return
    yield Step(session, statement), model
    yield Step(session, None, commits=True), model


def _random_statement(chance: random.Random, transaction: Transaction, ddl: float) -> Statement:
    table = chance.choice(sorted(transaction.state.tables.values(), key=lambda table: table.oid))
    return (
        _random_ddl(chance, transaction.state, table)
        if chance.random() < ddl
        else _random_change(chance, transaction, table)
    )


def _random_change(chance: random.Random, transaction: Transaction, table: ScriptedTable) -> Statement:
    name = table.id.name
    values = {column.name: _random_value(chance, column.type.type.name) for column in table.live}
    kind = chance.random()
    if kind < 0.5:
        return insert(name, **values)
    if kind < 0.53:
        return truncate(name)
    rows = sorted(transaction.state.contents(table).elements(), key=str)
    if not rows:
        return insert(name, **values)
    row = dict(zip([column.name for column in table.live], chance.choice(rows), strict=True))
    # Whole rows: of several that differ, only PostgreSQL knows the order.
    if kind < 0.65:
        return delete(name, row)
    changed = chance.sample(sorted(values), chance.randint(1, len(values)))
    return update(name, row, **{column: values[column] for column in changed})


def _random_value(chance: random.Random, kind: str) -> Text:
    match kind:
        case "int4" | "int8":
            return str(chance.randrange(20))
        case "numeric":
            return chance.choice([None, "1.50", "-20.00", "0.00"])
        case _:
            return chance.choice([None, "", "a", "b'c", "é\n", "x" * 3000, "y" * 4000])


def _random_ddl(chance: random.Random, state: State, table: ScriptedTable) -> Statement:
    name, column = table.id.name, chance.choice(table.live).name
    fresh = f"n{chance.randrange(6)}"
    tables = sorted(state.tables.values(), key=lambda one: one.oid)
    root = chance.choice([one for one in tables if one.partitioned] or [table])
    leaf = chance.choice([one for one in tables if one.parent] or [table])
    parent = state.tables.get(leaf.parent or 0, root)
    low = 10 * chance.randrange(4)
    made: list[Callable[[], Statement]] = [
        lambda: add_column(name, fresh, chance.choice(["int4", "text"]), chance.choice([None, "7"])),
        lambda: drop_column(name, column) if len(table.live) > 1 else truncate(name),
        lambda: rename_column(name, column, fresh),
        lambda: set_identity(name, chance.choice([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL])),
        lambda: drop_primary_key(name),
        lambda: add_primary_key(name, next((one.name for one in table.live if one.type.type.name == "int4"), column)),
        lambda: rename_table(name, f"t{chance.randrange(4)}"),
        lambda: create_table(f"t{chance.randrange(4)}", {"k": "int4", "v": "text"}, ["k"]),
        lambda: create_partition(f"parted_{chance.randrange(6)}", root.id.name, low, low + 10),
        lambda: _random_attach(chance, state, root, tables),
        lambda: _random_attach(chance, state, root, tables),
        lambda: detach(parent.id.name, leaf.id.name),
        lambda: both(detach(parent.id.name, leaf.id.name), attach(root.id.name, leaf.id.name, low, low + 20)),
        lambda: drop_table(name) if chance.random() < 0.2 else detach(root.id.name, name),
    ]
    return chance.choice(made)()


def _random_attach(
    chance: random.Random, state: State, root: ScriptedTable, tables: Sequence[ScriptedTable]
) -> Statement:
    """Attach a table that has the columns, within the bounds that its rows ask for."""
    names = {column.name for column in root.live}
    fitting = [one for one in tables if one.parent is None and {column.name for column in one.live} == names]
    table = chance.choice([one for one in fitting if not one.partitioned] or [root])
    low = 10 * chance.randrange(4)
    if root.partitioned and table is not root:
        place = [column.name for column in table.live].index(root.names((root.partition_column,))[0])
        low = min((int(row[place] or 0) // 10 * 10 for row in state.contents(table)), default=low)
    return attach(root.id.name, table.id.name, low, low + chance.choice([10, 20]))
