"""The source database as a group's run sees it: one session, opened when needed and again when lost."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, LiteralString, TypeVar

from ..config import Config, GroupConfig, settings_of
from ..errors import ConfigError, ConnectionFailed, SourceBusy, ValueRefused, Wal2LakeError
from ..installation import Installation
from ..position import Lsn
from ..schema import TableId, TableSchema
from . import catalog, copy_plan, copying, matching, publication, selection, slot
from .connect import Connection, bounded, connect, explained, interrupt, mark, query, server_facts, wal_written
from .facts import changes_counted, refused_heaps
from .locking import PATIENT, Patience, blocked, retried
from .model import CopySource
from .slot import HeldSnapshot, SlotInfo

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""how long a question about the catalog may take"""
LOCKED_SECONDS = 5.0
"""how long locks of other sessions are waited for before that is told"""


@dataclass(frozen=True)
class SourceIdentity:
    """What tells one database of one cluster from every other."""

    system_identifier: str
    database_oid: int
    database: str


@dataclass(frozen=True)
class Standing:
    """How far the source itself says that a group has read."""

    active: bool
    received_lsn: Lsn | None
    acknowledged_lsn: Lsn | None
    lag_bytes: int
    retained_wal_bytes: int


class Source:
    def __init__(self, config: Config, group: GroupConfig) -> None:
        self._config, self._group = config, group
        self._settings = config.tables_of(group)
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._sessions: set[Connection] = set()
        """those that are open now"""
        self._interrupted = threading.Event()
        self._identity: SourceIdentity | None = None
        self._told: set[str] = set()
        self._bounds = catalog.KnownBounds()

    def identity(self) -> SourceIdentity:
        if self._identity is None:
            facts = self._ask(server_facts)
            self._identity = SourceIdentity(facts.system_identifier, facts.database_oid, facts.database)
        return self._identity

    @property
    def slot_name(self) -> str:
        """The slot that the group's change log is from, or that it will be."""
        return self.installation.slot(self._group.name) or slot.slot_name(self._group.name, self.identity().database)

    @property
    def installation(self) -> Installation:
        return Installation.of(self._config.changelog_path)

    def table_id(self, oid: int) -> str:
        """The name that a lake table remembers its source by."""
        identity = self.identity()
        return f"{identity.system_identifier}/{identity.database_oid}/{oid}"

    def oid_of(self, table_id: str) -> int | None:
        """The oid in a name that `table_id` gave for a table of this database; None for any other database's."""
        *database, oid = table_id.split("/")
        mine = self.table_id(0).split("/")[:-1]
        return int(oid) if database == mine and oid.isdigit() else None

    def names(self) -> dict[int, TableId]:
        """Every table of the database by oid, with the name that it has now."""
        return {relation.oid: relation.id for relation in self._ask(matching.relations)}

    def discover(self) -> tuple[TableSchema, ...]:
        """The tables that the group's names and patterns mean now."""
        matched = self.match()
        if matched.problems:
            raise matched.problems[0]
        return self.describe([table.oid for table in matched.tables])

    def match(self) -> matching.Matched:
        """What the group's names and patterns mean now; a name that means nothing is told of, not an error."""
        matched = self._ask(lambda c: selection.look(c, self._group))
        for warning in matched.warnings:
            if warning not in self._told:
                self._told.add(warning)
                log.warning("group %s: %s", self._group.name, warning)
        return matched

    @property
    def withholds(self) -> bool:
        """Whether a setting keeps something out of the lake."""
        return any(settings.withholds for settings in self._settings.values())

    def unnamed(self) -> dict[str, ConfigError]:
        """Settings that keep something out of a table that is not there, by its name."""
        return self._ask(lambda c: selection.unnamed(matching.relations(c), self._settings))

    def unmasked(self, last: TableSchema | None, schema: TableSchema) -> ConfigError | None:
        """Why a table must not be mirrored as it is described now: it was masked or filtered under another name."""
        try:
            selection.require_masks(self._settings, last, schema)
        except ConfigError as error:
            return error
        return None

    def describe(self, oids: Sequence[int]) -> tuple[TableSchema, ...]:
        """Tables as the catalog has them; those that it has not are left out."""
        schemas = self._ask(lambda c: catalog.describe(c, list(oids), self._settings, self._bounds))
        return tuple(schemas[oid] for oid in oids if oid in schemas)

    def existing(self, oids: Collection[int]) -> frozenset[int]:
        """Those that the catalog has."""
        return frozenset(self._ask(lambda c: catalog.tables(c, list(oids)))) if oids else frozenset()

    def relation(self, id: TableId) -> matching.FoundTable:
        """The table of a name, if the group can mirror it or its leaves; else an error that says why not."""
        return matching.named(self._tree(), self._group.name, id)

    def units(self) -> Mapping[int, tuple[int, ...]]:
        """What is no table of its own in this group, by oid: partitions, or partitioned tables with their leaves."""
        return self._tree().units()

    def _tree(self) -> matching.Tree:
        return matching.Tree(self._ask(matching.relations), self._group.leafwise)

    def settled(self) -> str:
        """A moment of the server, for `passed`."""
        return str(self._ask(lambda c: _one(c, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")))

    def passed(self, moment: str) -> bool:
        """Whether every transaction that ran at a moment has ended."""
        return bool(
            self._ask(lambda c: _one(c, "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::text::xid8", [moment]))
        )

    def publish(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        """Make the group's publications hold exactly these tables. One that the group names is somebody else's.

        Tables that PostgreSQL refuses, or on which it would refuse the application's updates, are left out and
        returned with the reason. Raises SourceBusy, and says who holds the lock, if they are locked for long.
        """
        refused: dict[int, Wal2LakeError] = {}
        if self._group.publication is not None:
            return refused
        appending = [schema for schema in schemas if self.append_only(schema)]
        rest = [schema for schema in schemas if schema not in appending]
        main, append = self._publications
        mark = self.installation.mark

        def attempt(connection: Connection) -> None:
            refused.clear()
            # In one transaction: a table that goes from one to the other is always in one of them.
            with connection.transaction():
                publication.ensure(connection, main, *_parts(rest), mark=mark, refused=refused)
                if appending or publication.exists(connection, append):
                    parts = _parts(appending)
                    publication.ensure(connection, append, *parts, append=True, mark=mark, refused=refused)

        try:
            retried(lambda: self._ask(attempt), LOCKED_SECONDS, self._interrupted.is_set)
        except SourceBusy as error:
            raise self._ask(partial(blocked, tables=[schema.oid for schema in schemas], error=error)) from error
        return refused

    @property
    def must_renew(self) -> bool:
        """Whether tables that were added to a publication while a slot exists have to be added twice."""
        return self._group.publication is None and publication.must_renew(self._ask(lambda c: c.info.server_version))

    def renew(self, schemas: Sequence[TableSchema]) -> None:
        """Publish tables again that are published. Raises SourceBusy if they are locked."""
        main, append = self._publications
        for name, some in (
            (main, [schema for schema in schemas if not self.append_only(schema)]),
            (append, [schema for schema in schemas if self.append_only(schema)]),
        ):
            if some:
                self._ask(lambda c, name=name, some=some: publication.renew(c, name, *_parts(some)))  # type: ignore[misc]

    def append_only(self, schema: TableSchema) -> bool:
        return settings_of(self._settings, schema.id, schema.settings_from).append_only

    def updates_refused(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """Those on which PostgreSQL refuses updates and deletes while they are published; it waits for no lock."""
        tables = [schema.oid for schema in schemas if not self.append_only(schema)]
        if self._group.publication is not None or not tables:
            return frozenset()
        return frozenset(self._ask(lambda c: refused_heaps(c, tables, self._publications[0])))

    def unpublished(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """Those that the publication lacks which is to have them: what was done to them is not in the stream."""
        if self._group.publication is not None or not schemas:
            return frozenset()
        main, append = (self._ask(partial(publication.tables_of, name=name)) for name in self._publications)
        return frozenset(
            schema.oid for schema in schemas if schema.oid not in (append if self.append_only(schema) else main)
        )

    def appends(self) -> bool:
        """Whether the group has a publication of append-only tables."""
        return self._group.publication is None and self._ask(partial(publication.exists, name=self._publications[1]))

    def changes_counted(self, oids: Sequence[int]) -> dict[int, dict[int, int]]:
        """Updates and deletes that PostgreSQL has counted, for each table by its heaps."""
        return self._ask(partial(changes_counted, oids=oids))

    def drop_publication(self) -> None:
        """Drop the group's own publications. One that it names stays."""
        for name in self._publications:
            if name != self._group.publication:
                self._ask(partial(publication.drop, name=name, mark=self.installation.mark))

    @property
    def _publications(self) -> tuple[str, str]:
        return publication.publication_name(self._group.name), publication.append_name(self._group.name)

    def slot(self) -> SlotInfo | None:
        name = self.slot_name
        return self._ask(lambda c: slot.info(c, name))

    def create_slot(self, patience: Patience = PATIENT) -> HeldSnapshot:
        """The group's own slot, with the snapshot that its stream begins after."""
        source = self._config.source
        return slot.create(source, self.slot_name, self._group.name, failover=source.failover, patience=patience)

    def open_snapshot(self, patience: Patience = PATIENT) -> HeldSnapshot:
        """A consistent point for copies while the group's slot is streaming."""
        name = f"wal2lake_copy_{secrets.token_hex(8)}"
        return slot.create(self._config.source, name, self._group.name, temporary=True, patience=patience)

    def drop_slot(self) -> None:
        name = self.slot_name
        self._ask(lambda c: slot.drop(c, name))

    def copy_source(self, schema: TableSchema) -> CopySource:
        return self._ask(lambda c: copy_plan.copy_source(c, self._config.source, schema))

    @contextmanager
    def held_still(self, schema: TableSchema, snapshot: str) -> Iterator[CopySource]:
        """All that a copy at a snapshot needs; the table's columns stay as they are until the block ends."""
        with self.described_at(schema, snapshot) as described:
            yield self.copy_source(described)

    @contextmanager
    def described_at(self, schema: TableSchema, snapshot: str) -> Iterator[TableSchema]:
        """The table as it is at a snapshot and until the block ends. Its `heaps` are those that a copy reads."""
        stopped = self._interrupted.is_set
        with copying.held_still(self._session, schema, snapshot, self._settings, stopped, self._bounds) as described:
            yield described

    def find_unfit(self, schema: TableSchema) -> ValueRefused | None:
        # It may read the whole table, so it has a session of its own.
        with self._session() as connection:
            return copy_plan.find_unfit(connection, schema)

    def mark(self) -> Lsn:
        """A position after everything that is committed now, which the stream is sure to reach."""
        return self._ask(mark)

    def written(self) -> Lsn:
        """A position after everything that is committed now."""
        return self._ask(wal_written)

    def standing(self) -> Standing:
        name = self.slot_name

        def look(connection: Connection) -> Standing:
            with explained("reading", f"slot {name}"):
                row = connection.execute(query("standing"), {"slot": name}).fetchone()
            if row is None:
                return Standing(False, None, None, 0, 0)
            active, received, acknowledged, lag, retained = row
            return Standing(active, _lsn(received), _lsn(acknowledged), int(lag), int(retained))

        return self._ask(look)

    def interrupt(self) -> None:
        """End what the source is being asked, and ask nothing more: the group is about to end. From any thread."""
        self._interrupted.set()
        for connection in list(self._sessions):
            interrupt(connection)

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._sessions.discard(self._connection)
            self._connection = None

    def _connect(self) -> Connection:
        if self._interrupted.is_set():
            raise ConnectionFailed(server="the source", cause="the run is about to end")
        connection = connect(self._config.source, self._group.name)
        self._sessions.add(connection)
        return connection

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """A session of its own, for what takes longer than a question."""
        with self._connect() as connection:
            try:
                yield connection
            finally:
                self._sessions.discard(connection)

    def _ask(self, question: Callable[[Connection], T]) -> T:
        with self._lock:
            if self._connection is None or self._connection.closed or self._interrupted.is_set():
                self._hang_up()
                self._connection = self._connect()
            try:
                with bounded(self._connection, PATIENCE_SECONDS):
                    return question(self._connection)
            except ConnectionFailed:
                self._hang_up()
                raise


def _parts(schemas: Sequence[TableSchema]) -> tuple[list[tuple[int, TableId]], list[TableSchema]]:
    """Tables that are published whole, and those of which rows or columns are left out."""
    narrowed = [schema for schema in schemas if schema.where is not None or schema.only]
    return [(schema.oid, schema.id) for schema in schemas if schema not in narrowed], narrowed


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)


def _one(connection: Connection, question: LiteralString, values: Sequence[Any] = ()) -> Any:
    with explained("reading", "the running transactions"):
        row = connection.execute(question, values).fetchone()
    return row[0] if row is not None else None
