"""The source database for a group's run: one session, opened on first use and again when lost."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from ..config import Config, GroupConfig, GroupTables
from ..errors import ConfigError, ValueRefused, Wal2LakeError
from ..position import Lsn
from ..schema import TableId, TableSchema
from .copies import copy_plan, copying, session_snapshot
from .copies.snapshot_session import SnapshotSession
from .crossing import Crossing
from .model import CopySource, Standing
from .ports import OpenSnapshot
from .published_tables import PublishedTables
from .publishing import conditions, slot
from .publishing.slot import SlotInfo
from .sessions.connect import connect
from .sessions.locking import PATIENT, Patience
from .sessions.server import mark, wal_written
from .tables import catalog, matching, selection
from .triggers import may_install, whole

log = logging.getLogger(__name__)


class Source(PublishedTables):
    """Implements SourceDatabase."""

    def __init__(self, config: Config, group: GroupConfig) -> None:
        super().__init__(config, group)
        self._told: set[str] = set()
        self._bounds = catalog.KnownBounds()

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
        kept = self.by_triggers()
        return tuple(whole(schemas[oid]) if oid in kept else schemas[oid] for oid in oids if oid in schemas)

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

    def announce(self, event: str) -> None:
        """Notify those who listen to changes of the capture mode."""
        self._ask(lambda c: c.execute("SELECT pg_notify('wal2lake_events', %s)", [event]))

    def slot(self) -> SlotInfo | None:
        name = self.slot_name
        return self._ask(lambda c: slot.info(c, name))

    def create_slot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        """Create the group's slot, with the snapshot at which its stream begins."""
        # What triggers captured before the group had a slot is part of the copies to come.
        self.clear_other_lane()
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
            yield whole(described) if described.oid in self.by_triggers() else described

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
