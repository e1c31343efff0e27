"""Changes of columns without changes of rows: applied when the log has been applied up to a reading of the catalog.

    the catalog is read at some moment between `before` and `after`  ──►  pending
    everything that committed up to `after` is applied               ──►  due: the lake table follows

A reading is outdated for a table whose columns have been changed by the log since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..config import Config, GroupConfig, settings_of
from ..errors import Wal2LakeError
from ..evolution import (
    Incompatible,
    Unclear,
    facts_differ,
    follow,
    in_doubt,
    moved,
    require_fillable,
    texts_differ,
    with_facts,
    with_heaps,
)
from ..lake import Batch, exchange
from ..position import ZERO, Lsn
from ..schema import TableSchema
from ..source.tables import outside_wal
from .change_policy import Policy, unfollowed
from .desired_state import DesiredState
from .registry import TableRegistry
from .table_runtime import TableRuntime


@dataclass(frozen=True)
class _Seen:
    schema: TableSchema
    before: Lsn
    after: Lsn


class ExchangeNeeded:
    """Partitions with rows were attached or detached without changes in the log, and their bounds are known."""


EXCHANGE = ExchangeNeeded()


class SchemaChanges:
    def __init__(self, config: Config, group: GroupConfig) -> None:
        self._settings, self._group = config.tables, group
        self._pending: dict[int, _Seen] = {}
        self._since: dict[int, Lsn] = {}
        """for each table whose columns came from the log or a copy: when"""
        self._arrived: dict[tuple[int, int], Lsn] = {}
        """table and partition that the log had before the catalog was read: a position after its first changes"""
        self._exchanging: set[int] = set()
        self._awaiting: set[int] = set()
        """tables whose partitions must be exchanged, by the last reading"""

    def policy(self, table: TableSchema) -> Policy:
        own = settings_of(self._settings, table.id, table.settings_from)
        on_drop = own.on_drop or self._group.on_drop
        on_incompatible = own.on_incompatible or self._group.on_incompatible
        on_partition_drop = own.on_partition_drop or self._group.on_partition_drop
        return Policy(on_drop == "keep", on_incompatible == "stop", on_partition_drop == "keep")

    def note_catalog(self, desired: DesiredState, tables: TableRegistry) -> None:
        """Take in a reading of the catalog; it replaces the one before."""
        self._pending = {}
        for schema in desired.schemas:
            table = tables.get(schema.oid)
            applied = table.applied if table is not None else None
            if applied is not None and schema.oid not in desired.refused and _differs(applied.schema, schema):
                self._pending[schema.oid] = _Seen(schema, desired.before, desired.after)
        self._awaiting &= self._pending.keys()

    def applying(self, oid: int, batch: Batch) -> None:
        """A batch with its own columns is about to be applied."""
        if batch.schema is not None:
            self._since[oid] = max(self._since.get(oid, ZERO), batch.since)
            for heap in batch.schema.heaps:
                if not heap.file:
                    self._arrived.setdefault((oid, heap.oid), batch.to_lsn)

    def copied(self, oid: int, lsn: Lsn) -> None:
        self._since[oid] = lsn

    def exchanging(self, oid: int) -> None:
        """Partitions of a table are being exchanged. From any thread."""
        self._exchanging.add(oid)

    def ended(self, oid: int, lsn: Lsn | None) -> None:
        """Work on a table has ended, at a position or with an error (None); this may settle an exchange."""
        if oid in self._exchanging:
            self._exchanging.discard(oid)
            if lsn is not None:
                self.copied(oid, lsn)
                self._awaiting.discard(oid)

    def awaits_exchange(self, table: TableRuntime) -> bool:
        """Whether the lake table is known to lack rows of partitions."""
        unfinished = table.applied is not None and in_doubt(table.applied.schema)
        return unfinished or table.schema.oid in self._awaiting

    def waits(self, logged: Lsn) -> bool:
        """Whether a reading waits for the log to reach its position."""
        return any(seen.after > logged for seen in self._pending.values())

    def due(
        self, tables: TableRegistry, logged: Lsn
    ) -> Iterator[tuple[TableRuntime, TableSchema | ExchangeNeeded | Wal2LakeError]]:
        """Tables that have everything captured up to the reading, with their next schema, or what blocks it.

        An exchange is returned again until it has succeeded.
        """
        for oid, seen in list(self._pending.items()):
            table = tables.get(oid)
            if table is None or table.applied is None:
                self._forget(oid)
            elif seen.after <= logged and table.active and not table.resync and table.job is None:
                ready = table.waiting is None or table.applied.lsn >= seen.after
                if not ready and texts_differ(table.applied.schema, seen.schema) is None:
                    # Only a copy corrects texts, and it includes what waits.
                    continue
                self._forget(oid)
                if seen.before < self._since.get(oid, ZERO):
                    continue
                target = self._target(table.applied.schema, seen)
                if target is EXCHANGE:
                    self._pending[oid] = seen
                    self._awaiting.add(oid)
                if target is not None:
                    yield table, target

    def _forget(self, oid: int) -> None:
        del self._pending[oid]
        self._awaiting.discard(oid)

    def _target(self, lake: TableSchema, seen: _Seen) -> TableSchema | ExchangeNeeded | Wal2LakeError | None:
        source = seen.schema
        policy = self.policy(source)
        described = [heap for heap in lake.heaps if not heap.file]
        later = [heap for heap in described if self._arrived.get((lake.oid, heap.oid), ZERO) > seen.before]
        if (unlogged := outside_wal(source)) is not None:
            return unlogged
        try:
            if (altered := texts_differ(lake, source)) is not None:
                raise Incompatible(altered)
            target = with_facts(with_heaps(follow(lake, source, policy.keep_dropped), source, later), source)
            known = replace(lake, heaps=tuple(heap for heap in lake.heaps if heap not in later))
            if (partitions := moved(known, source)) is not None:
                before = replace(target, heaps=known.heaps)
                if exchange(before, source, partitions, policy.keep_partitions) is None:
                    raise Incompatible(str(partitions))
                return EXCHANGE
            require_fillable(lake, target)
        except (Incompatible, Unclear) as error:
            return unfollowed(lake, error, policy)
        return target if _differs(lake, target) else None


def _differs(lake: TableSchema, other: TableSchema) -> bool:
    return lake != other or lake.heaps != other.heaps or facts_differ(lake, other)
