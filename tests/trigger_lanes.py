"""Tables that are captured by triggers, driven without the rest of the mirror: what is drained, added to what was
there, must be what the source has at the drain's own snapshot.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from servers import Database
from simulation.postgres import ScriptedPostgres
from wal2lake.config import Config
from wal2lake.position import Lsn
from wal2lake.source import Connection, SourceDatabase, TriggerSource, connect, follow_columns
from wal2lake.source.ports import StreamRequest
from wal2lake.source.triggers import TriggerStream

GROUP = "g"
Row = tuple[str | None, ...]


def config_of(database: Database, directory: Path, tables: Iterable[str] = ("public.*",)) -> Config:
    return Config(
        source={"dsn": database.dsn}, lake={"path": str(directory)},
        groups=[{"name": GROUP, "tables": list(tables), "capture": "trigger", "flush_interval": 0.1}],
    )  # fmt: skip


class Lane:
    """A lane with a stream, and the rows of each table as the drains leave them."""

    def __init__(self, database: Database, directory: Path, tables: Iterable[str] = ("public.*",)) -> None:
        self.database = database
        self.config = config_of(database, directory, tables)
        self.source: SourceDatabase = TriggerSource(self.config, self.config.groups[0])
        self._reset()

    def _reset(self) -> None:
        self.rows: dict[int, Counter[Row]] = {}
        self.marks: list[int] = []
        """tables that have to be re-copied"""
        self.token: str | None = None
        self.found: list[bytes] = []
        """the messages of the last drain"""
        self.position = Lsn(0)
        self._at: list[tuple[Lsn, dict[int, Counter[Row]]]] = []

    def begin(self) -> None:
        schemas = self.source.discover()
        assert self.source.publish(schemas) == {}
        with self.source.create_slot() as taken, connect(self.config.source) as conn, conn.transaction():
            self.position, self.token = taken.snapshot.lsn, taken.snapshot.token
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute(f"SET TRANSACTION SNAPSHOT '{taken.snapshot.name}'".encode())
            for schema in schemas:
                self.rows[schema.oid] = contents(conn, str(schema.oid))
        self._at.append((self.position, {oid: Counter(rows) for oid, rows in self.rows.items()}))

    def open(self, binary: bool = False) -> TriggerStream:
        group = self.config.groups[0]

        def refresh(conn: Connection) -> None:
            follow_columns(conn, self.source.slot_name, self.config.tables_of(group))

        request = StreamRequest(self.source.slot_name, (), self.position, binary=binary)
        return TriggerStream.of(self.config.source, GROUP, request, self.token, refresh)

    def drain(self, stream: TriggerStream, acknowledge: bool = True, apply: bool = True) -> bool:
        """One drain, if anything has come; then all that the rows say is what its snapshot sees.

        Without `apply` its messages are only kept.
        """
        stream.ask()
        found: list[bytes] = list(stream.read(0))
        if not found:
            return False
        while found[-1][25:26] != b"C":
            found.extend(stream.read(1))
        stream.read(0)
        self.found = found
        if apply:
            self._apply(found)
        _, _, end, _ = struct.unpack(">Bqqq", found[-1][26:51])
        assert end > self.position
        self._at.append((Lsn(end), {oid: Counter(rows) for oid, rows in self.rows.items()}))
        del self._at[:-200]
        token = stream.token(Lsn(end))
        assert token is not None
        if acknowledge:
            self.position, self.token = Lsn(end), token
            stream.acknowledge(Lsn(end))
        return True

    def _apply(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            kind, body = message[25:26], message[26:]
            if kind in (b"I", b"D"):
                (oid,) = struct.unpack(">I", body[:4])
                row = values(body[5:])
                self.rows.setdefault(oid, Counter())
                self.rows[oid][row] += 1 if kind == b"I" else -1
            elif kind == b"X":
                self.marks.append(struct.unpack(">I", body[:4])[0])
            elif kind == b"T":
                _, _, oid = struct.unpack(">IBI", body)
                self.rows[oid] = Counter()

    def close(self) -> None:
        self.source.close()

    def expected(self, table: str) -> Counter[Row]:
        with connect(self.config.source) as conn:
            return contents(conn, str(self.database.value(f"SELECT '{table}'::regclass::oid::int8")))

    def at(self, position: Lsn, table: str) -> Counter[Row]:
        """What the last drain at or below a position has left."""
        oid = self.database.value(f"SELECT '{table}'::regclass::oid::int8")
        return +[rows for end, rows in self._at if end <= position][-1][oid]

    def check(self, *tables: str) -> None:
        """No row is there less than not at all, which a drain in the middle of a transaction would leave."""
        for table in tables:
            self.held(table)

    def held(self, table: str) -> Counter[Row]:
        oid = self.database.value(f"SELECT '{table}'::regclass::oid::int8")
        found = self.rows.get(oid, Counter())
        assert all(count >= 0 for count in found.values())
        return +found


def values(data: bytes) -> Row:
    (count,) = struct.unpack(">H", data[:2])
    at = 2
    found: list[str | None] = []
    for _ in range(count):
        if data[at : at + 1] == b"n":
            found.append(None)
            at += 1
            continue
        assert data[at : at + 1] == b"t"
        (length,) = struct.unpack(">I", data[at + 1 : at + 5])
        found.append(data[at + 5 : at + 5 + length].decode())
        at += 5 + length
    assert at == len(data)
    return tuple(found)


def contents(conn: object, oid: str) -> Counter[Row]:
    """The rows of a table as PostgreSQL's text."""
    (name,) = conn.execute("SELECT %s::oid::regclass::text", [oid]).fetchone()  # type: ignore[attr-defined]
    with conn.cursor(binary=False) as cursor:  # type: ignore[attr-defined]
        result = cursor.execute(f"SELECT * FROM {name}".encode()).pgresult
        return Counter(
            tuple(
                None if (value := result.get_value(row, column)) is None else value.decode()
                for column in range(result.nfields)
            )
            for row in range(result.ntuples)
        )


class ScriptedLane(Lane):
    """The same on the scripted server."""

    def __init__(self, model: ScriptedPostgres, config: Config) -> None:
        self.model, self.config = model, config
        self.source = model.source(config, config.groups[0])
        self._reset()

    def begin(self) -> None:
        schemas = self.source.discover()
        assert self.source.publish(schemas) == {}
        with self.source.create_slot() as taken:
            self.position, self.token = taken.snapshot.lsn, taken.snapshot.token
            for schema in schemas:
                self.rows[schema.oid] = self.model.snapshot_contents(taken.snapshot.name, schema.oid)

    def open(self, binary: bool = False) -> TriggerStream:
        assert not binary
        lane = self.source.slot_name
        return TriggerStream(self.model.buffers(lane), lane, self.position, self.token)
