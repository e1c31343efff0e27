"""The scripted PostgreSQL as a run sees it whose tables are captured by triggers, and the steps from there to a slot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from simulation import postgres_triggers as triggers
from simulation.postgres_buffers import ScriptedLane
from simulation.postgres_catalog import ScriptedCatalog, ScriptedControl
from simulation.postgres_source import ScriptedSource
from simulation.postgres_transactions import Transaction
from wal2lake.config import TableConfig
from wal2lake.errors import ConfigError, Wal2LakeError
from wal2lake.position import ZERO, Lsn
from wal2lake.schema import TableSchema
from wal2lake.source import OpenSnapshot
from wal2lake.source.model import Standing
from wal2lake.source.publishing.slot import SlotInfo
from wal2lake.source.sessions.locking import PATIENT, Patience
from wal2lake.source.triggers import Condition, copies, whole
from wal2lake.source.wal_crossing import WalCrossing
from wal2lake.visibility import PgSnapshot

if TYPE_CHECKING:
    from simulation.postgres import ScriptedPostgres


def lane_info(server: ScriptedPostgres, name: str) -> SlotInfo | None:
    server.require_reachable()
    found = server.triggers.lanes.get(name)
    if found is None or not found.there:
        return None
    position = found.position or ZERO
    return SlotInfo(name, "pgoutput", server.database, False, None, position, position, None, None, None, None)


class ScriptedTriggerSource(ScriptedSource):
    """Implements SourceDatabase without a slot and without a publication."""

    @property
    def must_renew(self) -> bool:
        return False

    def describe(self, oids: Sequence[int]) -> tuple[TableSchema, ...]:
        return tuple(map(whole, super().describe(oids)))

    def describe_each(self, oids: Sequence[int]) -> tuple[tuple[TableSchema, ...], dict[int, ConfigError]]:
        return self.describe(oids), {}

    @contextmanager
    def described_at(self, schema: TableSchema, snapshot: str) -> Iterator[TableSchema]:
        with super().described_at(schema, snapshot) as described:
            yield whole(described)

    def publish(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        state, lane = self._state(), self._server.triggers.lanes.get(self.slot_name)
        gone = {oid for oid in (lane.buffers if lane is not None else ()) if oid not in state.tables}
        triggers.remove(self._server, self.slot_name, {schema.oid for schema in schemas} | gone)
        for schema in schemas:
            if schema.oid in state.tables:
                triggers.install(self._server, self.slot_name, schema.oid)
        return {}

    def updates_refused(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        return frozenset()

    def unpublished(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        self._state()
        found = triggers.conditions(self._server, [schema.oid for schema in schemas])
        return frozenset(oid for oid, is_ in found.items() if is_ in (Condition.MISSING, Condition.DISABLED))

    def appends(self) -> bool:
        return False

    def append_only(self, schema: TableSchema) -> bool:
        return False

    def slot(self) -> SlotInfo | None:
        self._state()
        return lane_info(self._server, self.slot_name)

    def create_slot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        self.drop_publications()
        lane = self._server.triggers.lanes.setdefault(self.slot_name, ScriptedLane())
        lane.there, lane.position, lane.asked, lane.answered = True, None, None, None
        return self._noted(copies.take(self.snapshots()))

    def open_snapshot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        self._state()
        requests = triggers.ScriptedRequests(self._server, self.slot_name)
        requests = self._hooked(requests)
        return self._noted(copies.agreed(self.snapshots(), requests, patience))

    def _noted(self, opened: OpenSnapshot) -> OpenSnapshot:
        """What it sees is what the lake has at its position, for checks."""
        if (held := self._server.snapshots.get(opened.snapshot.name)) is not None:
            self._server.copies_saw.setdefault(self.slot_name, {})[opened.snapshot.lsn] = held.state
        return opened

    def crossing(self) -> WalCrossing:
        group = self._group.model_copy(update={"capture": "wal"})
        wal = ScriptedSource(self._server, self._config, group, self._waits)
        return WalCrossing(wal, self._hooked(ScriptedCrossing(self._server, wal)))

    def clear_other_lane(self) -> None:
        super().drop_slot()
        self.drop_publications()

    def drop_slot(self) -> None:
        super().drop_slot()
        if (lane := self._server.triggers.lanes.get(self.slot_name)) is not None:
            lane.there = False

    def standing(self) -> Standing:
        found = self.slot()
        if found is None:
            return Standing(False, None, None, 0, 0)
        return Standing(True, found.confirmed_flush_lsn, found.confirmed_flush_lsn, 0, 0)


class ScriptedCrossing:
    """Implements CrossingServer."""

    def __init__(self, server: ScriptedPostgres, wal: ScriptedSource) -> None:
        self._server, self._wal = server, wal

    def not_publishable(self, oids: Collection[int]) -> tuple[str, ...]:
        return ()

    def unpublished(self, schemas: Sequence[TableSchema]) -> Collection[int]:
        return self._wal.unpublished(schemas)

    def make_slot(self, patience: Patience) -> Lsn:
        with self._wal.make_slot(patience) as opened:
            return opened.snapshot.lsn

    def conditions(self, oids: Collection[int]) -> Mapping[int, Condition]:
        self._server.require_reachable()
        return triggers.conditions(self._server, oids)

    def unread(self, token: str) -> str | None:
        drain = triggers.ScriptedBuffers(self._server, self._wal.slot_name).begin(PgSnapshot.parse(token), ZERO)
        return None if drain.filled else str(drain.snapshot)

    def boundary(self) -> Lsn:
        self._server.require_reachable()

        def message(transaction: Transaction) -> Lsn:
            transaction.assign()
            return self._server.write_wal(64)

        return self._server.run(message)

    def drop_publications(self) -> None:
        self._wal.drop_publications()


class WholeRowsCatalog(ScriptedCatalog):
    """The catalog for what triggers have captured."""

    def describe(
        self, oids: Collection[int], overrides: Mapping[str, TableConfig] | None = None
    ) -> Mapping[int, TableSchema]:
        return {oid: whole(schema) for oid, schema in super().describe(oids, overrides).items()}


class ScriptedTriggerControl(ScriptedControl):
    """An ordinary session without a slot and without publications."""

    def __init__(self, server: ScriptedPostgres, lane: str) -> None:
        super().__init__(server)
        self._lane = lane

    def slot(self, name: str) -> SlotInfo | None:
        self._require_open()
        return lane_info(self._server, name)

    def has_publication(self, name: str) -> bool:
        return True

    def published_types(self, name: str) -> Sequence[tuple[int, int]]:
        self._require_open()
        buffers = self._server.triggers.buffers(self._lane)
        return [(column.type_oid, column.typmod) for one in buffers for column in one.buffer.columns]
