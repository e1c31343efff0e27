"""Servers whose streams are tested: a real PostgreSQL and the scripted one, driven by the same statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import psycopg

from inline_decoder import InlineDecoder
from servers import Database
from simulation.postgres import ScriptedPostgres
from simulation.postgres_tables import TYPES
from simulation.postgres_transactions import Transaction
from simulation.statements import PUBLICATION, Statement
from waiting import wait_until
from wal2lake.config import SourceConfig
from wal2lake.decode import Relation, Target
from wal2lake.decode.messages import parse_commit
from wal2lake.errors import SlotInUse
from wal2lake.position import ZERO, Lsn
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.source import connect, mark
from wal2lake.source.catalog_reader import PostgresCatalog
from wal2lake.source.polling import open_polling
from wal2lake.source.ports import CatalogReader, ChangeSource, StreamRequest
from wal2lake.source.publishing import slot
from wal2lake.source.streaming.translated import open_stream
from wal2lake.source.triggers import BufferedStream, published
from wal2lake.types import lake_type

Plugin = Literal["pgoutput", "wal2json", "test_decoding"]
SLOT = "wal2lake_contract"
_LOCK_TIMEOUT = "SET lock_timeout = '2s'"


class Session(Protocol):
    """A transaction of a server, from its first statement to its end."""

    def execute(self, statement: Statement) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class Server(Protocol):
    """A server with the statements of the tests, one slot and streams of it."""

    @property
    def tells_names_only(self) -> bool:
        """Whether the stream has no descriptions of tables, and knows no publications when a row is written."""

    def session(self) -> Session: ...
    def run(self, *statements: Statement) -> None:
        """One transaction."""

    def create_slot(self) -> Lsn:
        """The slot of the streams; the position that it begins at."""

    def open(self, start: Lsn, per_read: int = 1 << 30) -> ChangeSource:
        """A stream, as soon as no other one has the slot. `per_read`: messages at once, where that can be chosen."""

    def mark(self) -> Lsn: ...
    def confirmed(self) -> Lsn:
        """What the slot says was acknowledged."""

    def catalog(self) -> CatalogReader: ...
    def oids(self) -> Mapping[str, int]:
        """Tables of schema public by name."""


@dataclass
class RealSession:
    connection: psycopg.Connection[Any]

    def execute(self, statement: Statement) -> None:
        self.connection.execute(statement.sql.encode())

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


@dataclass
class RealServer:
    database: Database
    plugin: Plugin = "pgoutput"
    config: SourceConfig = field(init=False)

    @property
    def tells_names_only(self) -> bool:
        return self.plugin != "pgoutput"

    def __post_init__(self) -> None:
        self.config = SourceConfig(dsn=self.database.dsn, streaming=False, plugin=self.plugin)

    def session(self) -> Session:
        connection = self.database.connect(autocommit=False)
        connection.execute(_LOCK_TIMEOUT)
        connection.commit()
        return RealSession(connection)

    def run(self, *statements: Statement) -> None:
        session = self.session()
        for statement in statements:
            session.execute(statement)
        session.commit()

    def create_slot(self) -> Lsn:
        with slot.create(self.config, SLOT, "g") as held:
            return held.snapshot.lsn

    def open(self, start: Lsn, per_read: int = 1 << 30) -> ChangeSource:
        opened: list[ChangeSource] = []

        def attempt() -> bool:
            try:
                opened.append(open_stream(self.config, StreamRequest(SLOT, (PUBLICATION,), start), "g"))
            except SlotInUse:
                return False
            return True

        wait_until(attempt, 20, "the slot to be free")
        return opened[0]

    def mark(self) -> Lsn:
        with connect(self.config) as conn:
            return mark(conn)

    def confirmed(self) -> Lsn:
        with connect(self.config) as conn:
            info = slot.info(conn, SLOT)
        assert info is not None and info.confirmed_flush_lsn is not None
        return info.confirmed_flush_lsn

    def catalog(self) -> CatalogReader:
        return PostgresCatalog(self.config, "g")

    def oids(self) -> Mapping[str, int]:
        rows = self.database.rows(
            "SELECT relname::text, oid::int8 FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            " AND relkind IN ('r', 'p')"
        )
        return dict(rows)


@dataclass
class PolledServer(RealServer):
    """The same server, whose slot is read through SQL."""

    def create_slot(self) -> Lsn:
        made = f"SELECT lsn::text FROM pg_create_logical_replication_slot('{SLOT}', '{self.plugin}')"
        return Lsn.parse(self.database.value(made))

    def open(self, start: Lsn, per_read: int = 1 << 30) -> ChangeSource:
        return open_polling(self.config, StreamRequest(SLOT, (PUBLICATION,), start), "g")


@dataclass
class FilledServer(RealServer):
    """The same server, with a table that is captured by triggers, of which the buffer is published."""

    def fill(self, table: str) -> None:
        place = published.Place("lane", PUBLICATION, f"{PUBLICATION}-append", None, streamed=False)
        with closing(self.catalog()) as catalog, connect(self.config) as conn:
            (schema,) = catalog.describe([self.oids()[table]]).values()
            assert published.begin(conn, place, schema, 5.0, lambda: False) is None

    def open(self, start: Lsn, per_read: int = 1 << 30) -> ChangeSource:
        opened: list[ChangeSource] = []

        def attempt() -> bool:
            publications = (PUBLICATION, f"{PUBLICATION}-append")
            try:
                stream = open_stream(self.config, StreamRequest(SLOT, publications, start), "g")
            except SlotInUse:
                return False
            opened.append(BufferedStream(stream, self.config, "g"))
            return True

        wait_until(attempt, 20, "the slot to be free")
        return opened[0]


@dataclass
class ScriptedSession:
    server: ScriptedPostgres
    transaction: Transaction | None = None

    def execute(self, statement: Statement) -> None:
        if self.transaction is None:
            self.transaction = self.server.begin()
        self.transaction.attempt(statement.script)

    def commit(self) -> None:
        if self.transaction is not None:
            self.transaction.commit()
        self.transaction = None

    def rollback(self) -> None:
        if self.transaction is not None:
            self.transaction.rollback()
        self.transaction = None


@dataclass
class ScriptedServer:
    model: ScriptedPostgres = field(default_factory=ScriptedPostgres)
    tells_names_only = False

    def session(self) -> Session:
        return ScriptedSession(self.model)

    def run(self, *statements: Statement) -> None:
        self.model.run(lambda tx: [statement.script(tx) for statement in statements])

    def create_slot(self) -> Lsn:
        with self.model.create_slot(SLOT) as held:
            return held.snapshot.lsn

    def open(self, start: Lsn, per_read: int = 1 << 30) -> ChangeSource:
        return self.model.stream(StreamRequest(SLOT, (PUBLICATION,), start), per_read)

    def mark(self) -> Lsn:
        return self.model.mark()

    def confirmed(self) -> Lsn:
        return self.model.slots[SLOT].confirmed

    def catalog(self) -> CatalogReader:
        return self.model.catalog()

    def oids(self) -> Mapping[str, int]:
        return {table.id.name: oid for oid, table in self.model.state.tables.items()}


def read_until(stream: ChangeSource, end: Lsn) -> list[bytes]:
    """All messages of transactions that committed below a position which the source has reached."""
    messages: list[bytes] = []
    stream.ask()

    def there() -> bool:
        messages.extend(stream.read(0.1))
        return max(stream.keepalive_lsn, stream.received) >= end

    wait_until(there, 20, f"the stream to reach {end}")
    return messages


def everything(server: Server, start: Lsn) -> list[bytes]:
    """What a new stream has from a position up to now."""
    end = server.mark()
    with server.open(start) as stream:
        return read_until(stream, end)


def kinds(messages: Iterable[bytes]) -> str:
    """One letter for each message, without the descriptions of tables, which may come again at any time."""
    return "".join(chr(message[25]) for message in messages if message[25:26] != b"R")


def ends(messages: Iterable[bytes]) -> list[Lsn]:
    """Where the transactions end."""
    return [Lsn(parse_commit(message).end_lsn) for message in messages if message[25:26] == b"C"]


Change = tuple[int, str, str, tuple[tuple[str, object], ...]]
"""its place in the transaction, table, kind, and its values"""


def decoded(messages: Iterable[bytes]) -> list[list[Change]]:
    """The changes of each transaction by the product's decoder; nothing in them differs between servers."""
    names: dict[int, str] = {}

    def resolve(relation: Relation) -> Target:
        names[relation.oid] = f"{relation.namespace}.{relation.name}"
        return Target(_schema(relation), 1)

    decoder = InlineDecoder(resolve, ZERO)
    found, waiting = [], []
    for message in messages:
        waiting.append(message)
        if message[25:26] == b"C":
            decoder.feed(waiting)
            waiting = []
            cut = decoder.cut()
            changes = [change for table in cut.tables for change in _rows(table.schema, table.batch, names)]
            changes += [
                (truncation.seq, names[oid], "T", ()) for oid, some in cut.truncations.items() for truncation in some
            ]
            changes += [(one.seq, names[oid], one.error, ()) for oid, some in cut.refusals.items() for one in some]
            found.append(sorted(changes, key=lambda change: change[:3]))
    assert not waiting, "the messages end in the middle of a transaction"
    return found


def _schema(relation: Relation) -> TableSchema:
    types = {one.type.oid: one.type for one in TYPES.values()}
    columns = tuple(
        Column(c.name, c.type_oid, c.typmod, types[c.type_oid].name, lake_type(c.type_oid, c.typmod, 0, types))
        for c in relation.columns
    )
    key = tuple(c.name for c in relation.columns if c.key and relation.identity is not ReplicaIdentity.FULL)
    return TableSchema(relation.oid, TableId(relation.namespace, relation.name), columns, key, relation.identity)


def _rows(schema: TableSchema, batch: Any, names: Mapping[int, str]) -> Iterable[Change]:
    meta = schema.meta
    told = {meta.op, meta.seq, meta.commit_lsn, meta.commit_ts, meta.xid, meta.relation}
    for row in batch.to_pylist():
        values = tuple((name, _hashable(value)) for name, value in row.items() if name not in told)
        yield row[meta.seq], names[schema.oid], row[meta.op], values


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
