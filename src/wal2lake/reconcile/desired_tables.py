"""Which tables a group is to mirror, and under which names in the lake: pure readings of what is configured and asked.

names and patterns of the group ─┐
added, removed, moved by command ─┼─► the group's tables
who has which table already ──────┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..config import Config, GroupConfig, TableConfig, settings_of
from ..errors import TableMissing
from ..schema import TableId, TableSchema
from ..source.matching import Matched
from ..state import GroupSpec, TableRecord, TableSpec
from ..state.lifecycle import TableState


def wanted_by(group: str, matched: Matched, specs: Mapping[int, TableSpec], held: Mapping[int, str]) -> tuple[int, ...]:
    """The oids that a group is to mirror. A table is of one group: the one that was asked for, or that has it already.

    `held` has the group of each table that some group has. A table on its way from one group to another is both's.
    What was asked of a partitioned table is asked of its leaves where they are the tables.
    """
    meant = {table.oid for table in matched.tables}
    asked = {oid: spec for oid, spec in specs.items() if spec.wanted is not None}
    mine = {oid: spec for oid, spec in asked.items() if spec.group == group}
    asked = {leaf: spec for oid, spec in mine.items() for leaf in matched.units.get(oid, ())} | asked
    oids = dict.fromkeys(table.oid for table in matched.tables)
    oids |= dict.fromkeys(oid for oid, spec in asked.items() if group in (spec.group, spec.moving_from))
    return tuple(
        oid for oid in oids if oid not in matched.units and _wants(group, oid, asked.get(oid), held, oid in meant)
    )


def _wants(group: str, oid: int, spec: TableSpec | None, held: Mapping[int, str], matched: bool) -> bool:
    if spec is None:
        return matched and held.get(oid, group) == group
    if not spec.wanted:
        return False
    return spec.group == group or leaves(spec, group)


def leaves(spec: TableSpec, group: str) -> bool:
    """Whether a table is still this group's, on its way to another."""
    return spec.moving_from == group and spec.handed_lsn is None


def arrives(spec: TableSpec | None, group: str) -> bool:
    """Whether a table is on its way to this group, and not yet its own."""
    return spec is not None and spec.group == group and spec.moving_from not in (None, group)


@dataclass(frozen=True)
class Naming:
    """What the configuration says of lake tables' names."""

    tables: Mapping[str, TableConfig]
    on_rename: str = "rename"
    on_recreate: str = "resync"

    @classmethod
    def of(cls, config: Config, group: GroupConfig) -> Naming:
        return cls(config.tables, group.on_rename, group.on_recreate)

    def replaces(self, schema: TableSchema) -> bool:
        """Whether a table takes the place of one that was dropped, without being asked."""
        settings = settings_of(self.tables, schema.id, schema.settings_from)
        return (settings.on_recreate or self.on_recreate) == "resync"

    def first(self, id: TableId, spec: TableSpec | None) -> TableId:
        """The name of a lake table that is to be made."""
        settings = self.tables.get(str(id))
        if spec is not None and spec.target is not None:
            return spec.target
        return TableId.parse(settings.target) if settings is not None and settings.target else id

    def renamed(self, schema: TableSchema, target: TableId, spec: TableSpec | None) -> TableId | None:
        """The name that a lake table is to be given after its source table was renamed; None: it keeps its own."""
        settings = settings_of(self.tables, schema.id, schema.settings_from)
        follows = (settings.on_rename or self.on_rename) == "rename" or target == aside(target, schema.oid)
        new = self.first(schema.id, spec)
        return new if follows and target != new else None


def aside(target: TableId, oid: int) -> TableId:
    """The name of a lake table that makes room for another one before it can have its own."""
    return TableId(target.schema, f"wal2lake_moving_{oid}")


def groups_of(config: Config, specs: Mapping[str, GroupSpec]) -> tuple[GroupConfig, ...]:
    """All groups there are: the configuration's, then those that a command made."""
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
    """What a name means: the live source table that has it, else the lake table, else one that was dropped."""
    found: dict[TableId, TableRecord] = {}
    for live in (False, True):
        some = [record for record in records if (record.state is not TableState.DROPPED) is live]
        found |= {record.lake_table: record for record in some} | {record.id: record for record in some}
    return found


def listed(records: Collection[TableRecord]) -> list[TableRecord]:
    """The records that people see: a dropped table gives way to a live one of its name."""
    live = {record.id for record in records if record.state is not TableState.DROPPED}
    return [record for record in records if record.state is not TableState.DROPPED or record.id not in live]


def named(by_name: Mapping[TableId, TableRecord], names: Iterable[str]) -> list[TableRecord]:
    """The records that people mean by some names. Raises TableMissing."""
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
    """The lake tables that belong to source tables other than one."""
    taken = {target: oid for oid, target in records if oid != but}
    return taken | {
        spec.target: spec.oid for spec in specs if spec.target and spec.oid != but and spec.wanted is not False
    }
