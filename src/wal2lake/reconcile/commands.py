"""Commands for tables and groups. They write desired state into the state store; runs apply it.

No command waits for a run or needs one: without a run, the next one applies it at its start.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pydantic import ValidationError

from ..changelog import LogStorage
from ..clock import Clock
from ..config import Config, GroupConfig
from ..errors import CommandRefused, ConnectionFailed, GroupHeld, SourceRefused
from ..quoting import shell
from ..schema import TableId
from ..source import SourceDatabase
from ..source.tables import FoundTable, means
from ..state import GroupSpec, HistoryEntry, StateStore, TableRecord, TableSpec
from ..state.lifecycle import TableState
from .desired_tables import by_name, desired_oids, enabled, groups_of, named, taken_targets
from .group_removal import MakeSource, drop_group, leftovers


@dataclass(frozen=True)
class GroupSummary:
    """A group, its origin and whether it is enabled."""

    name: str
    origin: str
    """configuration, state store, or nowhere: it has run, and is neither configured nor made by a command"""
    enabled: bool
    holder: str | None
    """the process that runs it"""
    state: str
    tables: tuple[str, ...]
    exclude: tuple[str, ...]
    mirrored: int
    """number of its tables"""
    slot: str | None


def command_issuer() -> str:
    """The user who gives a command, for the history."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


class Commands:
    def __init__(
        self, config: Config, store: StateStore, make_source: MakeSource, logs: LogStorage, clock: Clock
    ) -> None:  # fmt: skip
        self._config, self._store, self._clock = config, store, clock
        self._make_source, self._logs = make_source, logs

    def prepare(self) -> None:
        """Create the state store, for a command that writes."""
        self._store.create()

    # ---- tables

    def add(self, names: Sequence[str], group: str | None, copy: bool, target: str | None) -> tuple[str, ...]:
        if target is not None and len(names) != 1:
            raise CommandRefused(
                object="--as", cause="it names the lake table of one table", remedy="add one at a time"
            )
        specs, records = self._store.table_specs(), self._store.tables()
        found = self._find(names)
        groups: dict[int, GroupConfig] = {}
        for table in found:
            self._may_add(table, specs.get(table.oid), records, group)
            self._may_be_named(table, TableId.parse(target) if target else None, records, specs)
            chosen = groups[table.oid] = self._group_for(table, group)
            self._may_join(table.oid, table.id, chosen, as_leaves=copy and target is None)
        for table in found:
            changes = {
                "wanted": True, "group": groups[table.oid].name, "copy": copy, "paused": False,
                "drop_lake": False, "target": TableId.parse(target) if target else None, "moving_from": None,
                "handover_lsn": None, "handed_lsn": None,
            }  # fmt: skip
            self._store.set_table_spec(table.oid, table.id, changes)
            how = "" if copy else " --no-copy"
            self._note(changes["group"], table.oid, table.id, f"tables add{how}")
        return tuple(str(table.id) for table in found)

    def _may_add(
        self, table: FoundTable, spec: TableSpec | None, records: Iterable[TableRecord], group: str | None
    ) -> None:
        if spec is not None and spec.moving_from is not None:
            raise CommandRefused(
                object=str(table.id), cause=f"it is moving from group {spec.moving_from} to {spec.group}",
                remedy="see: wal2lake tables list",
            )  # fmt: skip
        record = next((record for record in records if record.oid == table.oid), None)
        if record is None or (spec is not None and spec.wanted is False):
            return
        remedy = f"see: wal2lake tables list; to re-copy it: wal2lake tables resync {shell(str(table.id))}"
        if group not in (None, record.group):
            remedy = f"wal2lake tables move {shell(str(table.id))} --group {group}"
        raise CommandRefused(object=str(table.id), cause=f"group {record.group} mirrors it already", remedy=remedy)

    def _may_join(self, oid: int, table: TableId, group: GroupConfig, as_leaves: bool = False) -> None:
        """`as_leaves`: a partitioned table may be added as all its leaves, if leaves are the group's tables."""
        with self._source(group) as source:
            units = source.units()
        if oid in units and not (group.leafwise and as_leaves):
            how = "each leaf partition is a table of its own" if group.leafwise else "partitions are one table"
            raise CommandRefused(
                object=str(table), cause=f"in group {group.name}, {how}",
                remedy=f"name its {'partitions' if group.leafwise else 'root'} instead, or choose another group",
            )  # fmt: skip
        if group.publication is not None and not means(group, table):
            # Other tables of its publication are not even captured.
            raise CommandRefused(
                object=str(table), cause=f"group {group.name} mirrors named tables of {group.publication} only",
                remedy=f"name it in [[groups]] tables of group {group.name}",
            )  # fmt: skip

    def _may_be_named(
        self, table: FoundTable, target: TableId | None, records: Iterable[TableRecord], specs: dict[int, TableSpec]
    ) -> None:
        wanted = target or table.id
        # A record of the same name belongs to a table that was dropped or renamed since.
        others = [record for record in records if record.state is not TableState.DROPPED and record.id != table.id]
        requested = [spec for spec in specs.values() if spec.id != table.id]
        taken = taken_targets([(record.oid, record.lake_table) for record in others], requested, table.oid)
        if wanted in taken:
            raise CommandRefused(
                object=str(wanted), cause="it is another table's lake table", remedy="choose another name with --as"
            )

    def _group_for(self, table: FoundTable, group: str | None) -> GroupConfig:
        if group is not None:
            return self._known(group)
        groups: list[GroupConfig] = []
        for each in self._groups():
            with self._source(each) as source:
                matched = source.match()
            if table.oid not in matched.units or each.leafwise:
                groups.append(each)
            if {found.oid for found in matched.tables} & {table.oid, *matched.units.get(table.oid, ())}:
                return each
        if len(groups) == 1:
            return groups[0]
        raise CommandRefused(
            object=str(table.id), cause=f"there are several groups: {', '.join(each.name for each in groups)}",
            remedy=f"wal2lake tables add {shell(str(table.id))} --group {groups[0].name}",
        )  # fmt: skip

    def remove(self, names: Sequence[str], drop_lake: bool) -> tuple[str, ...]:
        records = self._any_named(names)
        for record in records:
            changes = {
                "wanted": False, "group": record.group, "paused": False, "drop_lake": drop_lake,
                "target": record.lake_table, "moving_from": None, "handover_lsn": None, "handed_lsn": None,
            }  # fmt: skip
            self._store.set_table_spec(record.oid, record.id, changes)
            self._note_of(record, f"tables remove{' --drop-lake' if drop_lake else ''}")
        return _names(records)

    def pause(self, names: Sequence[str]) -> tuple[str, ...]:
        records = self._named(names)
        for record in records:
            self._store.set_table_spec(record.oid, record.id, {"paused": True})
            self._note_of(record, "tables pause")
        return _names(records)

    def resume(self, names: Sequence[str]) -> tuple[str, ...]:
        records = self._named(names)
        self._store.request_resume((record.oid, record.id) for record in records)
        for record in records:
            self._note_of(record, "tables resume")
        return _names(records)

    def resync(self, names: Sequence[str], all: bool, together: bool) -> tuple[str, ...]:
        everything = [record for record in self._store.tables() if record.state is not TableState.DROPPED]
        records = everything if all else self._named(names)
        self._store.request_resync(records, secrets.token_hex(8) if together else None)
        for record in records:
            self._note_of(record, "tables resync")
        return _names(records)

    def move(self, names: Sequence[str], group: str) -> tuple[str, ...]:
        destination = self._known(group)
        records, specs = self._named(names), self._store.table_specs()
        for record in records:
            spec = specs.get(record.oid)
            if record.group == group and (spec is None or spec.moving_from is None):
                raise CommandRefused(
                    object=str(record.id), cause=f"it is in group {group} already", remedy="see: wal2lake tables list"
                )
            self._may_join(record.oid, record.id, destination)
        for record in records:
            changes = {
                "wanted": True, "group": destination.name, "handover_lsn": None, "handed_lsn": None,
                "moving_from": None if record.group == group else record.group,
                # A lake table with the source table's name follows it when it is renamed.
                "target": record.lake_table if record.lake_table != record.id else None,
            }  # fmt: skip
            if record.last_commit_at is not None:
                # It was added with --no-copy; a copy that the move needs must be complete.
                changes["copy"] = True
            self._store.set_table_spec(record.oid, record.id, changes)
            self._note_of(record, f"tables move --group {group}")
        return _names(records)

    def history(self, name: str) -> list[HistoryEntry]:
        entries = self._store.history(TableId.parse(name)) if self._store.usable else []
        if not entries:
            self._any_named([name])
        return entries

    # ---- groups

    def create_group(self, group: GroupSpec) -> None:
        if any(each.name == group.name for each in self._groups()):
            raise CommandRefused(
                object=group.name, cause="there is a group of this name", remedy="see: wal2lake groups list"
            )
        try:
            config = GroupConfig(
                name=group.name, tables=group.tables, exclude=group.exclude,
                **{n: v for n in ("flush_interval", "flush_bytes") if (v := getattr(group, n)) is not None},
            )  # fmt: skip
        except ValidationError as error:
            details = error.errors(include_url=False)[0]
            cause = details.get("ctx", {}).get("cause") or details["msg"]
            raise CommandRefused(
                object=f"{details['loc'][0]}", cause=cause, remedy="see: wal2lake groups create --help"
            ) from None
        self._may_have_tables(config)
        self._store.set_group_spec(group)

    def _may_have_tables(self, config: GroupConfig) -> None:
        with self._source(config) as source:
            matched = source.match()
            if matched.problems:
                raise matched.problems[0]
        mine = {table.oid: table.id for table in matched.tables}
        held, specs = {r.oid: r.group for r in self._store.tables()}, self._store.table_specs()
        for other in self._groups():
            with self._source(other) as source:
                theirs = desired_oids(other.name, source.match(), specs, held)
            if both := [str(mine[oid]) for oid in theirs if oid in mine]:
                raise CommandRefused(
                    object=f"group {config.name}", cause=f"group {other.name} has {', '.join(both[:5])}",
                    remedy=f"create it without them, then: wal2lake tables move {shell(both[0])} --group {config.name}",
                )  # fmt: skip

    def drop_group(self, name: str, wait: Callable[[Callable[[], bool]], bool]) -> bool:
        """Whether it is dropped; an active run may take a while. `wait` waits for a condition."""
        if any(group.name == name for group in self._config.groups):
            raise CommandRefused(
                object=f"group {name}", cause="it is in the configuration, so a run would create it again",
                remedy="remove it from [[groups]], or stop it with: wal2lake groups disable " + name,
            )  # fmt: skip
        spec = self._store.group_specs().get(name)
        if spec is None and name not in {record.name for record in leftovers(self._config, self._store)}:
            self._known(name)
        self._store.set_group_spec(replace(spec or GroupSpec(name, made=False), dropping=True))
        try:
            drop_group(self._store, self._make_source, self._logs, GroupConfig(name=name))
            return True
        except GroupHeld:
            return wait(lambda: name not in self._store.group_specs())

    def enable_group(self, name: str, enabled: bool) -> None:
        self._known(name)
        spec = self._store.group_specs().get(name) or GroupSpec(name, made=False)
        self._store.set_group_spec(replace(spec, enabled=enabled))

    def groups(self) -> tuple[GroupSummary, ...]:
        readable = self._store.usable
        specs = self._store.group_specs() if readable else {}
        records = {record.name: record for record in self._store.groups()} if readable else {}
        tables = self._store.tables() if readable else []
        left = leftovers(self._config, self._store) if readable else []
        configured = {group.name for group in self._config.groups}
        found = []
        for group in (*groups_of(self._config, specs), *(GroupConfig(name=record.name) for record in left)):
            record, holder = records.get(group.name), self._store.holder(group.name)
            origin = "configuration" if group.name in configured else "state store"
            known = origin == "configuration" or (group.name in specs and specs[group.name].made)
            wanted = known and enabled(group, specs)
            state = record.state.value if record is not None and holder is not None else "STOPPED"
            found.append(
                GroupSummary(
                    group.name, origin if known else "nowhere", wanted, holder, state if wanted else "DISABLED",
                    group.tables if known else (), group.exclude, sum(t.group == group.name for t in tables),
                    record.slot if record is not None else None,
                )
            )  # fmt: skip
        return tuple(found)

    # ----

    def _groups(self) -> tuple[GroupConfig, ...]:
        return groups_of(self._config, self._store.group_specs())

    def _known(self, name: str) -> GroupConfig:
        groups = self._groups()
        for group in groups:
            if group.name == name:
                return group
        raise CommandRefused(
            object=f"group {name}", cause="there is no such group",
            remedy=f"one of: {', '.join(group.name for group in groups)}; or: wal2lake groups create {shell(name)}",
        )  # fmt: skip

    def _find(self, names: Sequence[str]) -> list[FoundTable]:
        return [self._relation(TableId.parse(name)) for name in names]

    def _relation(self, id: TableId) -> FoundTable:
        """The table of a name, if any group can mirror it."""
        refused: list[SourceRefused] = []
        for group in self._groups():
            try:
                with self._source(group) as source:
                    return source.relation(id)
            except SourceRefused as error:
                refused.append(error)
        raise refused[0]

    @contextmanager
    def _source(self, group: GroupConfig) -> Iterator[SourceDatabase]:
        source = self._make_source(group)
        try:
            yield source
        finally:
            source.close()

    def _named(self, names: Sequence[str]) -> list[TableRecord]:
        """Records of live tables, by names of source tables or of lake tables."""
        records = self._any_named(names)
        for record in records:
            if record.state is TableState.DROPPED:
                name = str(record.id)
                raise CommandRefused(
                    object=name, cause="it was dropped at the source; its lake table stays",
                    remedy=f"drop the lake table, too, with: wal2lake tables remove {shell(name)} --drop-lake",
                )  # fmt: skip
        return records

    def _any_named(self, names: Sequence[str]) -> list[TableRecord]:
        """The same, and dropped tables by names that no live table has."""
        records = self._store.tables() if self._store.exists() else []
        return named({**by_name(records), **self._renamed(records)}, names)

    def _renamed(self, records: Sequence[TableRecord]) -> dict[TableId, TableRecord]:
        """Records by the names that their tables have now; a run may not have seen all of them yet."""
        if not records:
            return {}
        try:
            with self._source(self._config.groups[0]) as source:
                found = source.names()
        except ConnectionFailed:
            # Commands work while the source is away.
            return {}
        return {found[record.oid]: record for record in records if record.oid in found}

    def _note_of(self, record: TableRecord, what: str) -> None:
        self._note(record.group, record.oid, record.id, what)

    def _note(self, group: object, oid: int, id: TableId, what: str) -> None:
        self._store.add_history([HistoryEntry(str(group), oid, id, self._clock.now(), command_issuer(), detail=what)])


def _names(records: Iterable[TableRecord]) -> tuple[str, ...]:
    return tuple(str(record.id) for record in records)
