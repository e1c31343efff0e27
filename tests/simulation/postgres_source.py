"""The scripted PostgreSQL as a group's run sees it. Row filters and column lists are not part of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from wal2lake.config import Config, GroupConfig, settings_of
from wal2lake.errors import (
    ConfigError,
    CopyFailed,
    KeyMisleading,
    SourceBusy,
    UpdatesRefused,
    ValueRefused,
    Wal2LakeError,
)
from wal2lake.position import Lsn
from wal2lake.schema import ReplicaIdentity, TableId, TableSchema
from wal2lake.source.copies import copy_plan, session_snapshot
from wal2lake.source.crossing import Crossing
from wal2lake.source.model import BLOCK_BYTES, CopySource, Heap, SourceIdentity, Standing
from wal2lake.source.ports import OpenSnapshot
from wal2lake.source.publishing import publication
from wal2lake.source.publishing.slot import SlotInfo, slot_name
from wal2lake.source.sessions.locking import PATIENT, Patience
from wal2lake.source.tables import identity, matching, selection
from wal2lake.source.tables.facts import full_rows, identity_fix
from wal2lake.source.tables.matching import FoundTable, Matched

from . import postgres_triggers as triggers
from .postgres_catalog import described, named, types
from .postgres_snapshots import ScriptedSnapshots
from .postgres_stream import unreachable
from .postgres_tables import Blocked, Lock, Publication, ScriptedTable, State
from .postgres_transactions import Transaction
from .waits import REAL, Waits

if TYPE_CHECKING:
    from .postgres import HeldSnapshot, ScriptedPostgres


T = TypeVar("T")

LOOK_SECONDS = 0.1
"""how often a server looks whether those that a slot waits for have ended"""


class ScriptedSource:
    """Implements SourceDatabase. Without `waits`, what a real server would wait for raises SourceBusy at once."""

    def __init__(
        self, server: ScriptedPostgres, config: Config, group: GroupConfig, waits: Waits | None = None
    ) -> None:  # fmt: skip
        self._server, self._config, self._group, self._waits = server, config, group, waits
        self._settings = config.tables_of(group)
        if any(settings.where or settings.columns for settings in self._settings.values()):
            raise ValueError("row filters and column lists are not modelled")
        self._interrupted = False

    # Names

    @property
    def slot_name(self) -> str:
        return slot_name(self._group.name, self._server.database)

    @property
    def withholds(self) -> bool:
        return any(settings.withholds for settings in self._settings.values())

    @property
    def must_renew(self) -> bool:
        return self._group.publication is None and publication.must_renew(self._server.version)

    def identity(self) -> SourceIdentity:
        self._state()
        return SourceIdentity(self._server.system_identifier, self._server.database_oid, self._server.database)

    def table_id(self, oid: int) -> str:
        return f"{self._server.system_identifier}/{self._server.database_oid}/{oid}"

    def oid_of(self, table_id: str) -> int | None:
        *database, oid = table_id.split("/")
        return int(oid) if database == self.table_id(0).split("/")[:-1] and oid.isdigit() else None

    def names(self) -> dict[int, TableId]:
        return {oid: table.id for oid, table in self._state().tables.items()}

    # Tables

    def discover(self) -> tuple[TableSchema, ...]:
        matched = self.match()
        if matched.problems:
            raise matched.problems[0]
        return self.describe([table.oid for table in matched.tables])

    def match(self) -> Matched:
        group = self._group
        if group.publication is not None:
            return selection.narrow(self._relations(), group, named(self._server, group))
        return matching.look(self._tree(), group.name, group.tables, group.exclude)

    def relation(self, id: TableId) -> FoundTable:
        return matching.named(self._tree(), self._group.name, id)

    def units(self) -> Mapping[int, tuple[int, ...]]:
        return self._tree().units()

    def describe(self, oids: Sequence[int]) -> tuple[TableSchema, ...]:
        schemas = described(self._server, self._state(), oids, self._settings, bounds=True)
        return tuple(schemas[oid] for oid in oids if oid in schemas)

    def describe_each(self, oids: Sequence[int]) -> tuple[tuple[TableSchema, ...], dict[int, ConfigError]]:
        return self.describe(oids), {}

    def existing(self, oids: Collection[int]) -> frozenset[int]:
        return frozenset(oids) & frozenset(self._state().tables)

    def unnamed(self) -> dict[str, ConfigError]:
        return selection.unnamed(self._relations(), self._settings)

    def unmasked(self, last: TableSchema | None, schema: TableSchema) -> ConfigError | None:
        try:
            selection.require_masks(self._settings, last, schema)
        except ConfigError as error:
            return error
        return None

    def append_only(self, schema: TableSchema) -> bool:
        return settings_of(self._settings, schema.id, schema.settings_from).append_only

    def settled(self) -> str:
        self._state()
        return self._server.settled()

    def passed(self, moment: str) -> bool:
        self._state()
        return self._server.passed(moment)

    def changes_counted(self, oids: Sequence[int]) -> dict[int, dict[int, int]]:
        state = self._state()
        return {
            oid: {heap.oid: self._server.counted[heap.oid] for heap in state.heaps(state.tables[oid])}
            for oid in oids
            if oid in state.tables
        }

    # Publications

    def publish(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        if self._group.publication is not None:
            return {}
        appending = [schema for schema in schemas if self.append_only(schema)]
        rest = [schema for schema in schemas if schema not in appending]
        unidentified = self._unidentified(rest)
        refused: dict[int, Wal2LakeError] = {
            schema.oid: UpdatesRefused(
                table=str(schema.id), cause="it has no replica identity", fix=identity_fix(schema)
            )
            for schema in rest
            if schema.oid in unidentified
        }
        main, append = self._publications
        self._alter(Publication(main, frozenset(schema.oid for schema in rest) - unidentified))
        if appending or self.appends():
            self._alter(Publication(append, frozenset(schema.oid for schema in appending), append=True))
        return refused

    def renew(self, schemas: Sequence[TableSchema]) -> None:
        """Streams of the model look at the publications anew with every change."""
        self._state()

    def updates_refused(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        if self._group.publication is not None:
            return frozenset()
        return self._unidentified([schema for schema in schemas if not self.append_only(schema)])

    def unpublished(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        if self._group.publication is not None:
            return frozenset()
        main, append = (self._published(name) for name in self._publications)
        return frozenset(
            schema.oid for schema in schemas if schema.oid not in (append if self.append_only(schema) else main)
        )

    def by_triggers(self) -> frozenset[int]:
        return frozenset()

    def stays_on_triggers(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        return frozenset()

    def misplaced(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        return frozenset()

    def maintain_triggers(self) -> bool:
        return False

    def appends(self) -> bool:
        return self._group.publication is None and self._publications[1] in self._state().publications

    def drop_publication(self) -> None:
        triggers.drop_lane(self._server, self.slot_name)
        self.drop_publications()

    def drop_publications(self) -> None:
        def drop(transaction: Transaction) -> None:
            for name in self._publications:
                if name in transaction.state.publications:
                    transaction.ddl.drop_publication(name)

        self._state()
        try:
            self._server.run(drop)
        except Blocked as blocked:
            raise SourceBusy(
                operation="dropping",
                object=f"the publications of group {self._group.name}",
                cause=str(blocked),
                remedy="wait",
            ) from blocked

    @property
    def _publications(self) -> tuple[str, str]:
        return publication.publication_name(self._group.name), publication.append_name(self._group.name)

    def _published(self, name: str) -> frozenset[int]:
        found = self._state().publications.get(name)
        return found.tables if found is not None else frozenset()

    def identify(self, oids: Collection[int]) -> Mapping[int, Sequence[str]]:
        return {}

    def _unidentified(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        state = self._state()
        return frozenset(
            schema.oid
            for schema in schemas
            if schema.oid in state.tables
            and any(not _identified(heap) for heap in state.heaps(state.tables[schema.oid]))
        )

    def _alter(self, wanted: Publication) -> None:
        if self._state().publications.get(wanted.name) == wanted:
            return

        def alter(transaction: Transaction) -> None:
            transaction.ddl.set_publication(replace(wanted, tables=wanted.tables & set(self._state().tables)))

        try:
            self._server.run(alter)
        except Blocked as blocked:
            raise SourceBusy(
                operation="altering", object=f"publication {wanted.name}", cause=str(blocked), remedy="wait"
            ) from blocked

    # The slot and snapshots

    def wal_obstacles(self) -> tuple[str, ...]:
        self._state()
        facts = self._server.facts()
        full = facts.slots_used >= facts.slots_max and self.slot_name not in self._server.slots
        found = {
            f"wal_level is {facts.wal_level}": facts.wal_level != "logical",
            f"all {facts.slots_max} of max_replication_slots are in use": full,
        }
        return tuple(obstacle for obstacle, is_so in found.items() if is_so)

    def drop_place(self) -> None: ...

    def may_install_triggers(self) -> bool:
        return True

    def crossing(self) -> Crossing | None:
        """It has a slot."""

    def clear_other_lane(self) -> None:
        self._state()
        triggers.drop_lane(self._server, self.slot_name)

    def announce(self, event: str) -> None:
        """Nobody listens."""

    def slot(self) -> SlotInfo | None:
        self._state()
        return self._server.slot_info(self.slot_name)

    def create_slot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        triggers.drop_lane(self._server, self.slot_name)
        held = self.make_slot(patience)
        if not self._group.polls:
            return held
        held.close()
        try:
            return self.open_snapshot(patience)
        except BaseException:
            with suppress(Wal2LakeError):
                self.drop_slot()
            raise

    def open_snapshot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        if self._group.polls:
            return session_snapshot.take(self.snapshots(), patience)
        self._state()
        return self._slot(f"wal2lake_copy_{self._server.new_session()}", True, patience)

    def snapshots(self) -> ScriptedSnapshots:
        self._state()
        return self._hooked(ScriptedSnapshots(self._server, self._waits or REAL), ("clock", "sleep", "close"))

    def _hooked(self, session: T, plain: Sequence[str] = ()) -> T:
        made: T = (self._waits or REAL).hooked(session, plain)
        return made

    def make_slot(self, patience: Patience) -> HeldSnapshot:
        """The slot, and nothing else."""
        return self._slot(self.slot_name, False, patience)

    def _slot(self, name: str, temporary: bool, patience: Patience) -> HeldSnapshot:
        since = self._server.upcoming
        while True:
            self._state()
            try:
                return self._server.create_slot(name, temporary, since)
            except SourceBusy as busy:
                if self._waits is None or patience.stopped():
                    raise
                patience.on_wait(busy)
            self._waits.sleep(LOOK_SECONDS)

    def drop_slot(self) -> None:
        self._state()
        self._server.drop_slot(self.slot_name)

    def copy_source(self, schema: TableSchema) -> CopySource:
        """Rows are read with `ScriptedPostgres.snapshot_contents`."""
        state = self._state()
        heaps = tuple(
            Heap(f"ONLY {heap.oid}", max(1, len(state.rows.get(heap.oid, ()))), BLOCK_BYTES)
            for heap in (state.tables[each.oid] for each in schema.heaps if each.oid in state.tables)
        )
        copy_columns = copy_plan.copy_columns(
            schema, dict.fromkeys(schema.names, 0), types([column.type_oid for column in schema.columns])
        )
        return CopySource(schema, heaps, copy_columns, f"scripted:{self._server.database}", {})

    @contextmanager
    def held_still(self, schema: TableSchema, snapshot: str) -> Iterator[CopySource]:
        with self.described_at(schema, snapshot) as found:
            yield self.copy_source(found)

    @contextmanager
    def described_at(self, schema: TableSchema, snapshot: str) -> Iterator[TableSchema]:
        now, held = self._state(), self._server.snapshots.get(snapshot)
        if held is None:
            raise unreachable(f"snapshot {snapshot} is gone")
        if schema.oid not in now.tables:
            raise CopyFailed(table=str(schema.id), cause="it is gone")
        transaction = self._server.begin()
        try:
            transaction.lock([one.oid for one in now.below(now.tables[schema.oid])], Lock.SHARED)
            if _shape(held.state, schema.oid) != _shape(now, schema.oid):
                raise CopyFailed(table=str(schema.id), cause="it was altered while its copy began")
            (found,) = self.describe([schema.oid])
            if not self.append_only(found):
                _require_telling(now, found)
            yield found
        except Blocked as blocked:
            raise CopyFailed(table=str(schema.id), cause="somebody is altering it") from blocked
        finally:
            if not transaction.ended:
                transaction.rollback()

    def find_unfit(self, schema: TableSchema) -> ValueRefused | None:
        """Every value that its types have fits."""
        self._state()
        return None

    # Positions

    def mark(self) -> Lsn:
        self._state()
        return self._server.mark()

    def written(self) -> Lsn:
        self._state()
        return self._server.wal_end

    def standing(self) -> Standing:
        info = self.slot()
        if info is None or info.confirmed_flush_lsn is None:
            return Standing(False, None, None, 0, 0)
        behind = max(0, self._server.wal_end - info.confirmed_flush_lsn)
        confirmed = info.confirmed_flush_lsn
        return Standing(info.active_pid is not None, confirmed, confirmed, behind, behind)

    def interrupt(self) -> None:
        self._interrupted = True

    def close(self) -> None:
        """It holds nothing."""

    def _state(self) -> State:
        if self._interrupted:
            raise unreachable("the run is about to end")
        self._server.require_reachable()
        return self._server.state

    def _relations(self) -> list[matching.CatalogRelation]:
        state = self._state()
        return [
            matching.CatalogRelation(
                table.oid, table.id, "p" if table.partitioned else "r", "p",
                state.root(table).oid if table.parent is not None else None, table.parent,
            )
            for table in sorted(state.tables.values(), key=lambda one: one.id)
        ]  # fmt: skip

    def _tree(self) -> matching.Tree:
        return matching.Tree(self._relations(), self._group.leafwise)


def _identified(heap: ScriptedTable) -> bool:
    return heap.identity is ReplicaIdentity.FULL or bool(heap.identifying)


def _shape(state: State, oid: int) -> list[object]:
    """What a copy relies on: files, columns, membership and keys."""
    if oid not in state.tables:
        return []
    return [
        (one.oid, one.since, one.file, one.key_index, one.columns)
        for one in sorted(state.below(state.tables[oid]), key=lambda one: one.oid)
    ]


def _require_telling(state: State, schema: TableSchema) -> None:
    root = state.catalog_table(state.tables[schema.oid])
    leaves = [state.catalog_table(heap) for heap in state.heaps(state.tables[schema.oid])]
    if misleading := identity.misleading(root, leaves):
        ids = [leaf.id for leaf in misleading]
        raise KeyMisleading(table=str(schema.id), partitions=", ".join(map(str, ids)), fix=full_rows(schema.id, ids))
