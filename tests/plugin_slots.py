"""A database whose changes are read twice through SQL, from a slot of pgoutput and from one of another plugin."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from inline_decoder import Cut, InlineDecoder
from servers import Database
from wal2lake.config import SourceConfig
from wal2lake.decode import Messages, Relation, Target, Translator, parse_commit, plugin_options
from wal2lake.position import ZERO, Lsn
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.source import connect
from wal2lake.source.streaming.named_relations import NamedRelations
from wal2lake.types import PgType, delimiter, lake_type

PUBLICATION = "p"
OTHER = ("test_decoding", "wal2json")
_TYPES = (
    "SELECT oid::int8, typname::text, typtype::text, (CASE WHEN typcategory = 'A' THEN typelem ELSE 0 END)::int8,"
    " typbasetype::int8, typtypmod, typndims, typdelim::text FROM pg_type"
)


@dataclass(frozen=True)
class Transaction:
    """What a stream told of a transaction: comparable with what another one did."""

    end_lsn: int
    commit_us: int
    xid: int
    changes: tuple[tuple[Any, ...], ...]


class PluginSlots:
    """`history` reads what was done since the slots were made, or since it was read last."""

    def __init__(self, database: Database, plugin: Literal["wal2json", "test_decoding"]) -> None:
        self.database, self.plugin = database, plugin
        self.config = SourceConfig(dsn=database.dsn, plugin=plugin)
        self.reader = connect(self.config)
        self.exact = False
        self.slots = {name: f"{name}_{database.name}" for name in ("pgoutput", plugin)}
        self.commits: dict[str, list[tuple[int, int]]] = {name: [] for name in self.slots}
        """where commit records begin and end"""
        self.relations = NamedRelations(self.config, "g", self.slots[plugin], [PUBLICATION])

    def open(self) -> None:
        for plugin, slot in self.slots.items():
            self.database.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (slot, plugin))
        self.exact = self._is_exact()
        self.begin()

    def begin(self) -> None:
        """A new stream: nothing is known of what came before."""
        mark = self.relations.mark()
        assert mark is not None
        version = self.reader.info.server_version
        self.translator = Translator(self.plugin, version, [mark], blocks=False, exact=self.exact)
        self.decoders = {name: InlineDecoder(self.resolve, ZERO) for name in self.slots}

    def _is_exact(self) -> bool:
        """Whether the server's version of the plugin knows all that it may be asked for."""
        try:
            self._read(self.plugin, plugin_options(self.plugin, exact=True), "peek_changes")
        except psycopg.errors.InvalidParameterValue:
            return False
        return True

    def histories(self) -> tuple[list[Transaction], list[Transaction]]:
        """What was done as pgoutput tells it, and as the other plugin does."""
        return self.told("pgoutput"), self.told(self.plugin)

    def told(self, plugin: str) -> list[Transaction]:
        if plugin == "pgoutput":
            options = {"proto_version": "1", "publication_names": PUBLICATION}
            return self._transactions(plugin, self._read(plugin, options, "get_binary_changes"))
        options = plugin_options(plugin, self.exact)
        return self._transactions(plugin, self.translated(self._read(plugin, options, "get_changes")))

    def translated(self, messages: Messages) -> Messages:
        self.translator.feed(messages)
        found = list(self.translator.translate())
        while asked := self.translator.asked:
            self.translator.read(self.relations.read(asked, self.translator.asks_all))
            found += self.translator.translate()
        assert self.translator.settled
        return Messages.of(found)

    def _read(self, plugin: str, options: dict[str, str], how: str) -> Messages:
        rows = self.reader.execute(
            f"SELECT lsn::text, data FROM pg_logical_slot_{how}(%s, NULL, NULL, VARIADIC %s::text[])".encode(),
            (self.slots[plugin], [text for pair in options.items() for text in pair]),
        ).fetchall()
        return Messages.of(
            struct.pack(">cqqq", b"w", Lsn.parse(lsn), Lsn.parse(lsn), 0)
            + (data.encode() if isinstance(data, str) else data)
            for lsn, data in rows
        )

    def _transactions(self, plugin: str, messages: Iterable[bytes]) -> list[Transaction]:
        decoder, found, waiting = self.decoders[plugin], [], list[bytes]()
        for message in messages:
            waiting.append(message)
            if message[25:26] != b"C":
                continue
            decoder.feed(waiting)
            cut, commit = decoder.cut(), parse_commit(message)
            begins = _begin(waiting)
            waiting = []
            changes = self._changes(cut)
            if changes:
                self.commits[plugin].append((commit.commit_lsn, commit.end_lsn))
                assert begins[0] == commit.commit_lsn
                found.append(Transaction(commit.end_lsn, commit.commit_us, begins[1], tuple(changes)))
        assert not waiting
        return found

    def _changes(self, cut: Cut) -> list[tuple[Any, ...]]:
        changes: list[tuple[Any, ...]] = []
        for table in cut.tables:
            meta = table.schema.meta
            for row in table.batch.to_pylist():
                values = {name: repr(value) for name, value in row.items() if name != meta.commit_lsn}
                changes.append((table.schema.oid, row[meta.seq], *sorted(values.items())))
        for oid, truncations in cut.truncations.items():
            changes += [(oid, one.seq, "TRUNCATE") for one in truncations]
        for oid, refusals in cut.refusals.items():
            changes += [(oid, one.seq, one.error, dict(one.fields).get("cause")) for one in refusals]
        return sorted(changes, key=lambda change: tuple(map(str, change)))

    def resolve(self, relation: Relation) -> Target:
        types = {oid: PgType(oid, *facts) for oid, *facts in self.reader.execute(_TYPES.encode())}
        columns = tuple(
            Column(
                c.name, c.type_oid, c.typmod, types[c.type_oid].name, lake_type(c.type_oid, c.typmod, 0, types),
                delimiter=delimiter(c.type_oid, types),
            )
            for c in relation.columns
        )  # fmt: skip
        key = tuple(c.name for c in relation.columns if c.key and relation.identity is not ReplicaIdentity.FULL)
        id = TableId(relation.namespace, relation.name)
        return Target(TableSchema(relation.oid, id, columns, key, relation.identity), 1)

    def close(self) -> None:
        self.relations.close()
        self.reader.close()


def _begin(messages: Sequence[bytes]) -> tuple[int, int]:
    """Commit LSN and xid of the Begin message among some."""
    (message,) = (one for one in messages if one[25:26] == b"B")
    commit_lsn, _, xid = struct.unpack_from(">qqI", message, 26)
    return commit_lsn, xid
