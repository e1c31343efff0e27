"""The source of a group whose tables are captured by triggers, as its run sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..config import TableConfig, settings_of
from ..errors import ConfigError, SourceBusy, SourceRefused, Wal2LakeError
from ..position import ZERO
from ..quoting import toml
from ..schema import TableSchema
from .asking import LOCKED_SECONDS
from .catalog_reader import PostgresCatalog
from .copies.session_snapshot import SessionSnapshot
from .copies.snapshot_session import SnapshotSession
from .database import Source
from .model import Standing
from .publishing import Identified
from .publishing.slot import SlotInfo
from .sessions.connect import Connection
from .sessions.locking import PATIENT, Patience, blocked
from .tables import catalog
from .triggers import copies, installing, removing, whole
from .triggers import lane as lanes
from .triggers.installing import FOLLOWED, Condition
from .triggers.requests import SqlRequests
from .wal_crossing import WalCrossing


class TriggerSource(Source):
    """Implements SourceDatabase without a slot and without a publication."""

    @property
    def must_renew(self) -> bool:
        return False

    def describe(self, oids: Sequence[int]) -> tuple[TableSchema, ...]:
        return tuple(map(whole, super().describe(oids)))

    def describe_each(self, oids: Sequence[int]) -> tuple[tuple[TableSchema, ...], dict[int, ConfigError]]:
        schemas, errors = super().describe_each(oids)
        return tuple(map(whole, schemas)), errors

    @contextmanager
    def described_at(self, schema: TableSchema, snapshot: str) -> Iterator[TableSchema]:
        with super().described_at(schema, snapshot) as described:
            yield whole(described)

    def publish(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        """Make exactly these tables have triggers; those that can't, with the reason."""
        with self._session() as connection:
            try:
                refused = {schema.oid: _without(schema) for schema in schemas if self._declines(schema)}
                schemas = [schema for schema in schemas if schema.oid not in refused]
                keep = {schema.oid for schema in schemas} | self._gone(connection)
                stopped = self._interrupted.is_set
                removing.remove(connection, self.slot_name, keep, LOCKED_SECONDS, stopped)
                return refused | installing.install(connection, self.slot_name, schemas, LOCKED_SECONDS, stopped)
            except SourceBusy as error:
                raise blocked(connection, [schema.oid for schema in schemas], error) from error

    def _declines(self, schema: TableSchema) -> bool:
        return settings_of(self._settings, schema.id, schema.settings_from).capture == "wal"

    def _gone(self, connection: Connection) -> set[int]:
        """Tables that were dropped: what was captured of them is still to be drained."""
        known = installing.buffers(connection, self.slot_name)
        rows = connection.execute("SELECT oid::int8 FROM pg_class WHERE oid = ANY (%s::oid[])", [list(known)])
        return set(known) - {oid for (oid,) in rows}

    def renew(self, schemas: Sequence[TableSchema]) -> None:
        """Triggers see what is written from their creation on."""

    def identify(self, oids: Collection[int]) -> Identified:  # noqa: ARG002 - the contract
        """Whole rows need none."""
        return {}

    def updates_refused(self, schemas: Sequence[TableSchema]) -> frozenset[int]:  # noqa: ARG002 - the contract
        return frozenset()

    def unpublished(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """Those whose triggers are missing, disabled or not enough: what was done to them was not captured."""
        if not schemas:
            return frozenset()
        oids = [schema.oid for schema in schemas]
        found = self._ask(lambda c: installing.conditions(c, self.slot_name, oids))
        bypassed = self._ask(lambda c: installing.obstacles(c, oids))
        return frozenset(
            oid for oid in oids if oid in bypassed or found[oid] in (Condition.MISSING, Condition.DISABLED)
        )

    def by_triggers(self) -> frozenset[int]:
        """All are, and none beside a slot."""
        return frozenset()

    def misplaced(self, schemas: Sequence[TableSchema]) -> frozenset[int]:  # noqa: ARG002 - the contract
        return frozenset()

    def maintain_triggers(self) -> bool:
        """The stream does that."""
        return False

    def appends(self) -> bool:
        return False

    def append_only(self, schema: TableSchema) -> bool:  # noqa: ARG002 - the contract
        """What is captured is everything; nothing has to be refused to the writers."""
        return False

    def slot(self) -> SlotInfo | None:
        name = self.slot_name
        return self._ask(lambda c: lanes.info(c, name))

    def create_slot(self, patience: Patience = PATIENT) -> SessionSnapshot:
        """The group's lane. The triggers are there already, and nobody writes who has not met them."""
        del patience
        # Of the time when the group had a slot.
        self.drop_publications()
        name, mark = self.slot_name, self.installation.mark
        self._ask(lambda c: lanes.create(c, name, mark))
        with SnapshotSession(self._connect) as session:
            return copies.take(session)

    def open_snapshot(self, patience: Patience = PATIENT) -> SessionSnapshot:
        lane = self.slot_name
        with SnapshotSession(self._connect) as session, self._session() as connection:
            return copies.agreed(session, SqlRequests(connection, lane), patience)

    def crossing(self) -> WalCrossing:
        return WalCrossing.of(self._config, self._group)

    def clear_other_lane(self) -> None:
        """Drop the slot and the publications that an unfinished change to the WAL has left."""
        super().drop_slot()
        self.drop_publications()

    def drop_slot(self) -> None:
        """End the lane; the triggers may stay, because a new lane begins with a snapshot. A slot of the group goes."""
        super().drop_slot()
        name = self.slot_name

        def drop(connection: Connection) -> None:
            if installing.exists(connection):
                connection.execute("DELETE FROM wal2lake_changes.lanes WHERE lane = %s", [name])

        self._ask(drop)

    def standing(self) -> Standing:
        found = self.slot()
        if found is None:
            return Standing(False, None, None, 0, 0)
        position, name = found.confirmed_flush_lsn or ZERO, self.slot_name
        waiting = self._ask(lambda c: installing.unread_bytes(c, name, position))
        return Standing(True, found.confirmed_flush_lsn, found.confirmed_flush_lsn, waiting, 0)


def _without(schema: TableSchema) -> Wal2LakeError:
    return SourceRefused(
        operation="capturing", object=str(schema.id),
        cause='it has capture = "wal", and its group is captured by triggers',
        remedy=f"remove capture from [tables.{toml(str(schema.id))}], or capture the group from the WAL",
    )  # fmt: skip


class WholeRows(PostgresCatalog):
    """The catalog for what triggers have captured."""

    def describe(
        self, oids: Collection[int], overrides: Mapping[str, TableConfig] | None = None
    ) -> Mapping[int, TableSchema]:
        return {oid: whole(schema) for oid, schema in super().describe(oids, overrides).items()}


def follow_columns(connection: Connection, lane: str, settings: Mapping[str, TableConfig]) -> None:
    """Have tables that were altered captured in the columns that they have. Raises SourceBusy where one is locked."""
    known = installing.buffers(connection, lane)
    found = installing.conditions(connection, lane, list(known))
    outdated = [oid for oid, condition in found.items() if condition in FOLLOWED]
    if not outdated:
        return
    try:
        schemas = catalog.describe(connection, outdated, settings)
    except ConfigError:
        # The run finds it, too, and stops that table.
        return
    installing.install(connection, lane, list(schemas.values()), 0.0, lambda: True)
