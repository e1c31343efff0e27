"""The source database for a group's run: one session, opened on first use and again when lost."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, LiteralString, TypeVar

from ..config import Config, GroupConfig, GroupTables, settings_of
from ..errors import ConfigError, ConnectionFailed, SourceBusy, ValueRefused, Wal2LakeError
from ..installation import Installation
from ..position import Lsn
from ..schema import TableId, TableSchema
from .copies import copy_plan, copying, session_snapshot
from .copies.snapshot_session import SnapshotSession
from .crossing import Crossing
from .model import CopySource, SourceIdentity, Standing
from .ports import OpenSnapshot
from .publishing import Identified, conditions, publication, replica_identity, slot
from .publishing.slot import SlotInfo
from .sessions.connect import Connection, alive, bounded, connect, explained, interrupt
from .sessions.locking import PATIENT, Patience, blocked, retried
from .sessions.server import mark, server_facts, wal_written
from .tables import catalog, matching, selection
from .tables.facts import changes_counted, refused_heaps
from .triggers import drop_lane, drop_place, may_install

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""limit of a query on the catalog"""
LOCKED_SECONDS = 5.0
"""seconds to wait for locks of other sessions before SourceBusy is raised"""


class Source:
    """Implements SourceDatabase."""

    def __init__(self, config: Config, group: GroupConfig) -> None:
        self._config, self._group = config, group
        self._settings = config.tables_of(group)
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._sessions: set[Connection] = set()
        """those that are open at the moment"""
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
        """The slot of the group's change log, or the one that it will have."""
        return self.installation.slot(self._group.name) or slot.slot_name(self._group.name, self.identity().database)

    @property
    def installation(self) -> Installation:
        return Installation.of(self._config.changelog_path)

    def table_id(self, oid: int) -> str:
        """The identifier of the source table that is stored in its lake table."""
        identity = self.identity()
        return f"{identity.system_identifier}/{identity.database_oid}/{oid}"

    def oid_of(self, table_id: str) -> int | None:
        """The oid in an identifier that `table_id` made for a table of this database; None for other databases."""
        *database, oid = table_id.split("/")
        mine = self.table_id(0).split("/")[:-1]
        return int(oid) if database == mine and oid.isdigit() else None

    def names(self) -> dict[int, TableId]:
        """The name of every table of the database, by oid."""
        return {relation.oid: relation.id for relation in self._ask(matching.relations)}

    def discover(self) -> tuple[TableSchema, ...]:
        """The tables that match the group's names and patterns."""
        matched = self.match()
        if matched.problems:
            raise matched.problems[0]
        return self.describe([table.oid for table in matched.tables])

    def match(self) -> matching.Matched:
        """The matches of the group's names and patterns; a name without a match is a warning, not an error."""
        matched = self._ask(lambda c: selection.look(c, self._group))
        for warning in matched.warnings:
            if warning not in self._told:
                self._told.add(warning)
                log.warning("group %s: %s", self._group.name, warning)
        return matched

    @property
    def withholds(self) -> bool:
        """Whether a setting keeps rows, columns or values out of the lake."""
        return any(settings.withholds for settings in self._settings.values())

    def unnamed(self) -> dict[str, ConfigError]:
        """Settings that keep something out of the lake, of tables that do not exist, by name."""
        return self._ask(lambda c: selection.unnamed(matching.relations(c), self._settings))

    def unmasked(self, last: TableSchema | None, schema: TableSchema) -> ConfigError | None:
        """Why a table must not be mirrored as described: it was masked or filtered under another name."""
        try:
            selection.require_masks(self._settings, last, schema)
        except ConfigError as error:
            return error
        return None

    def describe(self, oids: Sequence[int]) -> tuple[TableSchema, ...]:
        """Schemas of the tables that exist."""
        schemas = self._ask(lambda c: catalog.describe(c, list(oids), self._settings, self._bounds))
        return tuple(schemas[oid] for oid in oids if oid in schemas)

    def describe_each(self, oids: Sequence[int]) -> tuple[tuple[TableSchema, ...], dict[int, ConfigError]]:
        """The same, and the errors of settings that do not fit; such tables are described without settings."""
        try:
            return self.describe(oids), {}
        except ConfigError:
            pass
        schemas: list[TableSchema] = []
        errors: dict[int, ConfigError] = {}
        for oid in oids:
            try:
                schemas += self.describe([oid])
            except ConfigError as error:
                errors[oid] = error
                bare = partial(catalog.describe, oids=[oid], overrides=GroupTables({}, self._group))
                schemas += self._ask(bare).values()
        return tuple(schemas), errors

    def existing(self, oids: Collection[int]) -> frozenset[int]:
        """The tables that exist."""
        return frozenset(self._ask(lambda c: catalog.tables(c, list(oids)))) if oids else frozenset()

    def relation(self, id: TableId) -> matching.FoundTable:
        """The table of a name, if the group can mirror it or its leaves; otherwise raises with the reason."""
        return matching.named(self._tree(), self._group.name, id)

    def units(self) -> Mapping[int, tuple[int, ...]]:
        """Relations that are not tables of their own in this group, by oid: partitions, or roots with their leaves."""
        return self._tree().units()

    def _tree(self) -> matching.Tree:
        return matching.Tree(self._ask(matching.relations), self._group.leafwise)

    def settled(self) -> str:
        """A moment of the server, for `passed`."""
        # An xid of its own: running writers may have xids above the xmax of a snapshot.
        return str(self._ask(lambda c: _one(c, "SELECT pg_current_xact_id()::text")))

    def passed(self, moment: str) -> bool:
        """Whether every transaction that was open at a moment has ended."""
        return bool(
            self._ask(lambda c: _one(c, "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::text::xid8", [moment]))
        )

    def publish(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        """Make the group's publications contain exactly these tables. A named publication is not changed.

        Tables that PostgreSQL refuses, or whose updates it would refuse, are left out and returned with the reason.
        Raises SourceBusy, with the holder of the lock, if tables are locked for long.
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
            # In one transaction, so that a table that moves between the publications is always in one of them.
            with connection.transaction():
                publication.ensure(connection, main, *publication.parts(rest), mark=mark, refused=refused)
                if appending or publication.exists(connection, append):
                    parts = publication.parts(appending)
                    publication.ensure(connection, append, *parts, append=True, mark=mark, refused=refused)

        try:
            retried(lambda: self._ask(attempt), LOCKED_SECONDS, self._interrupted.is_set)
        except SourceBusy as error:
            raise self._ask(partial(blocked, tables=[schema.oid for schema in schemas], error=error)) from error
        return refused

    @property
    def must_renew(self) -> bool:
        """Whether tables that are added to a publication while a slot exists must be added twice."""
        return self._group.publication is None and publication.must_renew(self._ask(lambda c: c.info.server_version))

    def renew(self, schemas: Sequence[TableSchema]) -> None:
        """Publish published tables again. Raises SourceBusy if they are locked."""
        main, append = self._publications
        for name, some in (
            (main, [schema for schema in schemas if not self.append_only(schema)]),
            (append, [schema for schema in schemas if self.append_only(schema)]),
        ):
            if some:
                self._ask(lambda c, name=name, some=some: publication.renew(c, name, *publication.parts(some)))  # type: ignore[misc]

    def append_only(self, schema: TableSchema) -> bool:
        return settings_of(self._settings, schema.id, schema.settings_from).append_only

    def identify(self, oids: Collection[int]) -> Identified:
        """Set the replica identities of tables whose settings say so, where the role owns them."""
        return self._ask(lambda c: replica_identity.identify(c, oids, self._settings, self._interrupted.is_set))

    def updates_refused(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables whose updates and deletes PostgreSQL refuses while they are published; waits for no lock."""
        tables = [schema.oid for schema in schemas if not self.append_only(schema)]
        if self._group.publication is not None or not tables:
            return frozenset()
        return frozenset(self._ask(lambda c: refused_heaps(c, tables, self._publications[0])))

    def unpublished(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables that are missing in their publication, so that changes of them are not in the stream."""
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
        """Updates and deletes in PostgreSQL's statistics, for each table by heap."""
        return self._ask(partial(changes_counted, oids=oids))

    def drop_publication(self) -> None:
        """Drop the group's own publications, not a named one; and its triggers, of whichever time they are."""
        self._drop_lane()
        self.drop_publications()

    def drop_place(self) -> None:
        self._ask(drop_place)

    def drop_publications(self) -> None:
        for name in self._publications:
            if name != self._group.publication:
                self._ask(partial(publication.drop, name=name, mark=self.installation.mark))

    @property
    def _publications(self) -> tuple[str, str]:
        return publication.publication_name(self._group.name), publication.append_name(self._group.name)

    def wal_obstacles(self) -> tuple[str, ...]:
        """Why no slot of the group could be made and streamed."""
        name = self.slot_name
        return self._ask(lambda c: conditions.stream_obstacles(c, self._config.source, name))

    def may_install_triggers(self) -> bool:
        """Whether the role may install triggers on the group's tables, so that they always fire."""
        oids = [table.oid for table in self.match().tables]
        return self._ask(lambda c: may_install(c, oids))

    def crossing(self) -> Crossing | None:
        """The steps from triggers to a slot, if there are triggers."""

    def clear_other_lane(self) -> None:
        """Drop what the group has of triggers. Raises SourceBusy if tables are locked."""
        self._drop_lane()

    def announce(self, event: str) -> None:
        """Notify those who listen to changes of the capture mode."""
        self._ask(lambda c: c.execute("SELECT pg_notify('wal2lake_events', %s)", [event]))

    def slot(self) -> SlotInfo | None:
        name = self.slot_name
        return self._ask(lambda c: slot.info(c, name))

    def create_slot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        """Create the group's slot, with the snapshot at which its stream begins."""
        # What triggers captured before the group had a slot is part of the copies to come.
        self._drop_lane()
        source = self._config.source
        if self._group.polls:
            name = self.slot_name
            slot.create_through_sql(source, name, self._group.name, patience=patience, failover=source.failover)
            try:
                return self.open_snapshot(patience)
            except BaseException:
                with suppress(Wal2LakeError):
                    self.drop_slot()
                raise
        return slot.create(source, self.slot_name, self._group.name, failover=source.failover, patience=patience)

    def open_snapshot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        """Open a consistent point for copies while the group's slot is being streamed."""
        if self._group.polls:
            with SnapshotSession(partial(connect, self._config.source, self._group.name)) as session:
                return session_snapshot.take(session, patience)
        name = f"wal2lake_copy_{secrets.token_hex(8)}"
        return slot.create(self._config.source, name, self._group.name, temporary=True, patience=patience)

    def _drop_lane(self) -> None:
        with self._session() as connection:
            drop_lane(connection, self.slot_name, self.installation.mark, LOCKED_SECONDS, self._interrupted.is_set)

    def drop_slot(self) -> None:
        name = self.slot_name
        self._ask(lambda c: slot.drop(c, name))

    def copy_source(self, schema: TableSchema) -> CopySource:
        return self._ask(lambda c: copy_plan.copy_source(c, self._config.source, schema))

    @contextmanager
    def held_still(self, schema: TableSchema, snapshot: str) -> Iterator[CopySource]:
        """The inputs of a copy at a snapshot; the table's columns do not change until the block ends."""
        with self.described_at(schema, snapshot) as described:
            yield self.copy_source(described)

    @contextmanager
    def described_at(self, schema: TableSchema, snapshot: str) -> Iterator[TableSchema]:
        """The table as of a snapshot, unchanged until the block ends. Its `heaps` are those that a copy reads."""
        stopped = self._interrupted.is_set
        with copying.held_still(self._session, schema, snapshot, self._settings, stopped, self._bounds) as described:
            yield described

    def find_unfit(self, schema: TableSchema) -> ValueRefused | None:
        # It may read the whole table, so it uses another session.
        with self._session() as connection:
            return copy_plan.find_unfit(connection, schema)

    def mark(self) -> Lsn:
        """A position after everything that is committed, which the stream is sure to reach."""
        return self._ask(mark)

    def written(self) -> Lsn:
        """A position after everything that is committed."""
        return self._ask(wal_written)

    def standing(self) -> Standing:
        name = self.slot_name
        return self._ask(lambda c: conditions.standing(c, name))

    def interrupt(self) -> None:
        """Cancel the running query and refuse further ones: the group is about to end. For any thread."""
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
        """An extra session, for queries that take long."""
        with self._connect() as connection:
            try:
                yield connection
            finally:
                self._sessions.discard(connection)

    def _ask(self, question: Callable[[Connection], T]) -> T:
        with self._lock:
            if self._connection is None or not alive(self._connection) or self._interrupted.is_set():
                self._hang_up()
                self._connection = self._connect()
            try:
                with bounded(self._connection, PATIENCE_SECONDS):
                    return question(self._connection)
            except ConnectionFailed:
                self._hang_up()
                raise


def _one(connection: Connection, question: LiteralString, values: Sequence[Any] = ()) -> Any:
    with explained("reading", "the running transactions"):
        row = connection.execute(question, values).fetchone()
    return row[0] if row is not None else None
