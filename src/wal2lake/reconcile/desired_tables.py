"""Which tables a group mirrors, and their names in the lake. Pure functions of configuration and specs.

names and patterns of the group   ─┐
added, removed, moved by commands ─┼─► the group's tables
present group of each table       ─┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..config import Config, GroupConfig, TableConfig, settings_of
from ..errors import TableMissing
from ..schema import TableId, TableSchema
from ..source.tables import Matched
from ..state import GroupSpec, TableRecord, TableSpec
from ..state.lifecycle import TableState


def desired_oids(
    group: str, matched: Matched, specs: Mapping[int, TableSpec], held: Mapping[int, str]
) -> tuple[int, ...]:
    """The oids of the tables of a group. A table belongs to one group: the requested one, or the one that has it.

    `held` has the present group of each table. A table that moves between groups belongs to both.
    Specs of a partitioned table apply to its leaves if these are the mirrored tables.
    """
    meant = {table.oid for table in matched.tables}
    requested = {oid: spec for oid, spec in specs.items() if spec.wanted is not None}
    mine = {oid: spec for oid, spec in requested.items() if spec.group == group}
    requested = {leaf: spec for oid, spec in mine.items() for leaf in matched.units.get(oid, ())} | requested
    oids = dict.fromkeys(table.oid for table in matched.tables)
    oids |= dict.fromkeys(oid for oid, spec in requested.items() if group in (spec.group, spec.moving_from))
    return tuple(
        oid
        for oid in oids
        if oid not in matched.units and _is_desired(group, oid, requested.get(oid), held, oid in meant)
    )


def _is_desired(group: str, oid: int, spec: TableSpec | None, held: Mapping[int, str], matched: bool) -> bool:
    if spec is None:
        return matched and held.get(oid, group) == group
    if not spec.wanted:
        return False
    return spec.group == group or moves_out(spec, group)


def moves_out(spec: TableSpec, group: str) -> bool:
    """Whether a table belongs to this group and moves to another."""
    return spec.moving_from == group and spec.handed_lsn is None


def moves_in(spec: TableSpec | None, group: str) -> bool:
    """Whether a table moves to this group and does not belong to it yet."""
    return spec is not None and spec.group == group and spec.moving_from not in (None, group)


@dataclass(frozen=True)
class Naming:
    """The configuration of lake table names."""

    tables: Mapping[str, TableConfig]
    on_rename: str = "rename"
    on_recreate: str = "resync"

    @classmethod
    def of(cls, config: Config, group: GroupConfig) -> Naming:
        return cls(config.tables, group.on_rename, group.on_recreate)

    def replaces(self, schema: TableSchema) -> bool:
        """Whether a table may replace a dropped one without a command."""
        settings = settings_of(self.tables, schema.id, schema.settings_from)
        return (settings.on_recreate or self.on_recreate) == "resync"

    def first(self, id: TableId, spec: TableSpec | None) -> TableId:
        """The name of a new lake table."""
        settings = self.tables.get(str(id))
        if spec is not None and spec.target is not None:
            return spec.target
        return TableId.parse(settings.target) if settings is not None and settings.target else id

    def renamed(self, schema: TableSchema, target: TableId, spec: TableSpec | None) -> TableId | None:
        """The new name of a lake table after its source table was renamed; None: unchanged."""
        settings = settings_of(self.tables, schema.id, schema.settings_from)
        follows = (settings.on_rename or self.on_rename) == "rename" or target == interim_name(target, schema.oid)
        new = self.first(schema.id, spec)
        return new if follows and target != new else None


def interim_name(target: TableId, oid: int) -> TableId:
    """A temporary name for a lake table whose name another one needs before its own is free."""
    return TableId(target.schema, f"wal2lake_moving_{oid}")


def groups_of(config: Config, specs: Mapping[str, GroupSpec]) -> tuple[GroupConfig, ...]:
    """All groups: those of the configuration, then those made by commands."""
    configured = {group.name for group in config.groups}
    made = [_group(spec) for spec in specs.values() if spec.made and spec.name not in configured]
    return (*config.groups, *made)


def enabled(group: GroupConfig, specs: Mapping[str, GroupSpec]) -> bool:
    spec = specs.get(group.name)
    return spec is None or (spec.enabled and not spec.dropping)


def _group(spec: GroupSpec) -> GroupConfig:
    group = GroupConfig(name=spec.name, tables=spec.tables, exclude=spec.exclude)
    settings = {"flush_interval": spec.flush_interval, "flush_bytes": spec.flush_bytes}
    return group.model_copy(update={name: value for name, value in settings.items() if value is not None})


def by_name(records: Collection[TableRecord]) -> Mapping[TableId, TableRecord]:
    """Records by name: of the live source table, otherwise of the lake table, otherwise of a dropped table."""
    found: dict[TableId, TableRecord] = {}
    for live in (False, True):
        some = [record for record in records if (record.state is not TableState.DROPPED) is live]
        found |= {record.lake_table: record for record in some} | {record.id: record for record in some}
    return found


def listed(records: Collection[TableRecord]) -> list[TableRecord]:
    """The records to show: a dropped table is hidden by a live one with its name."""
    live = {record.id for record in records if record.state is not TableState.DROPPED}
    return [record for record in records if record.state is not TableState.DROPPED or record.id not in live]


def named(by_name: Mapping[TableId, TableRecord], names: Iterable[str]) -> list[TableRecord]:
    """The records that names mean. Raises TableMissing."""
    found = []
    for name in names:
        record = by_name.get(TableId.parse(name))
        if record is None:
            raise TableMissing(
                table=name, group="any", remedy="see the mirrored tables with: wal2lake tables list"
            )  # fmt: skip
        found.append(record)
    return found


def taken_targets(
    records: Iterable[tuple[int, TableId]], specs: Collection[TableSpec], but: int
) -> Mapping[TableId, int]:
    """The lake tables of all source tables except one."""
    taken = {target: oid for oid, target in records if oid != but}
    return taken | {
        spec.target: spec.oid for spec in specs if spec.target and spec.oid != but and spec.wanted is not False
    }
