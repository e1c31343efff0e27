"""Preflight: reads the facts that `checks.py` judges, and changes nothing.

    source ─┐
    lake   ─┼─► facts ──► judgement ──► findings: object, level, consequence, fix
    Java   ─┘

No JVM is started: the version of a Java installation is in its `release` file.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..changelog import ChangeLog, storage_for
from ..config import PGOUTPUT, Config, GroupConfig, GroupTables, settings_of
from ..errors import (
    ConfigError,
    ConnectionFailed,
    KeyMisleading,
    OtherInstallation,
    SourceBusy,
    SourceRefused,
    Wal2LakeError,
)
from ..installation import Installation
from ..java import find_java
from ..quoting import identifier
from ..reconcile import Choice, choose, desired_oids, groups_of
from ..schema import TableSchema
from ..source import Connection, ServerFacts, Source, connect, replication_refused, server_facts
from ..source.copies import require_telling
from ..source.publishing import PluginTrial, append_name, filter_columns, publication_name, slot_info, slot_name
from ..source.tables import (
    Matched,
    Tree,
    catalog_tables,
    describe,
    means,
    measured_heaps,
    narrow,
    over_unix_socket,
    own_objects,
    patterns,
    published_selection,
    refused_heaps,
    relations,
    select_tables,
    unreadable_later,
)
from ..source.triggers import has_buffers, lane_info, trigger_conditions, trigger_obstacles
from ..state import GroupSpec, TableSpec, open_store
from .checks import (
    STATE_SCHEMA,
    judge_columns,
    judge_failover,
    judge_filter,
    judge_generated,
    judge_groups,
    judge_heap,
    judge_java,
    judge_lake,
    judge_partitions_to_come,
    judge_publishing,
    judge_removed,
    judge_role,
    judge_room,
    judge_server,
    judge_settings,
    judge_slot,
    judge_types,
    judge_wanted_twice,
)
from .findings import Finding, GroupSlot, LakeFacts, Severity
from .lanes import judge_choice
from .plugin import judge_numbers, judge_plugin, look_at_plugin
from .role_sql import dba_publication
from .table_modes import check_tables
from .triggers import judge_owners, judge_triggers

__all__ = ["Finding", "Severity", "check"]

_ORDER = list(Severity)


def check(config: Config) -> tuple[Finding, ...]:
    """All findings, those that block a run first. A server that can't be reached is a finding, too."""
    source_bytes = 0
    findings: list[Finding] = []
    try:
        with connect(config.source) as conn:
            source_findings, source_bytes = _check_source(conn, config)
            findings += source_findings
    except (ConnectionFailed, ConfigError) as error:
        findings.append(_from_error("source", error))
    findings += judge_java(find_java())
    findings += judge_lake(look_at_lake(config.lake_path), source_bytes)
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: _ORDER.index(finding.level)))


def _check_source(conn: Connection, config: Config) -> tuple[list[Finding], int]:
    server = server_facts(conn)
    slots = []
    try:
        stored = look_at_store(config)
    except OtherInstallation as error:
        # Objects of another installation are not judged: each fix would take something from it.
        findings = [*judge_server(server, over_unix_socket(conn))]
        return [*findings, _from_error("schema wal2lake", error)], 0
    choices = _choices(config, stored)
    groups = tuple(choice.group for choice in choices)
    reads_wal = not groups or not all(group.triggers for group in groups)
    findings = [
        *judge_server(server, over_unix_socket(conn), reads_wal),
        *(finding for choice in choices for finding in judge_choice(choice)),
    ]
    for group in groups:
        log = ChangeLog(storage_for(config.changelog_path), group.name)
        try:
            plugin_of = PGOUTPUT if group.triggers else config.source.plugin
            group_slot = _group_slot(conn, group, plugin_of, server, log)
            if group.triggers:
                findings += judge_slot(group_slot)
                continue
            refused = None if group.polls else replication_refused(config.source)
            slots.append(replace(group_slot, polled=group.polls, refused=refused))
        except Wal2LakeError as error:
            findings.append(_from_error(f"change log of group {group.name}", error))
    if reads_wal:
        findings += judge_room(server, slots, config.spark.copy_workers)
    findings += judge_failover(config.source.failover, server.version)
    findings += judge_groups([group.name for group in config.groups], stored.groups.values(), stored.ran)
    for group_slot in slots:
        findings += judge_slot(group_slot)
    plugin = look_at_plugin(conn, config.source) if reads_wal else None
    if plugin is not None:
        findings += judge_plugin(plugin)
    table_findings, matched = _match_tables(conn, groups, stored)
    size = 0
    publishing = []
    for group, oids in matched:
        owners = set()
        for heap in measured_heaps(conn, oids):
            # A publication of another owner needs no ownership of the tables.
            judged = heap if group.publication is None else replace(heap, owned=True)
            table_findings += judge_heap(judged, server)
            owners |= set() if judged.owned else {heap.owner}
            size += heap.bytes
        table_findings += _check_publishing(conn, config, group, oids, owners)
        # What it needs to publish is judged once it has the rights of their owners, or a DBA has published them.
        publishing += [group] if group.publication is None and not owners else []
        table_findings += judge_partitions_to_come(unreadable_later(conn, oids), identifier(server.role))
        table_findings += (_check_triggers if group.triggers else check_tables)(conn, config, group, oids)
        table_findings += _check_columns(conn, config, group, oids, None if group.triggers else plugin)
    findings += _check_role(conn, config, publishing, server, reads_wal)
    wanted = [oid for _, oids in matched for oid in oids]
    found = relations(conn)
    names = [str(id) for table in catalog_tables(conn, wanted).values() for id in (table.id, *table.above)]
    # Partitions that do not exist yet have the settings of their root.
    names += [
        str(relation.id) for relation in found for group in groups
        if group.leafwise and relation.partitioned and means(group, relation.id)
    ]  # fmt: skip
    there = {str(relation.id) for relation in found}
    lost = [name for name, settings in config.tables.items() if settings.withholds and name not in there]
    table_findings += judge_settings(config.tables, names, lost)
    return findings + table_findings, size


def _choices(config: Config, stored: Stored) -> list[Choice]:
    """The groups, with the capture mode that each has or would begin with."""
    logs = storage_for(config.changelog_path)
    found = []
    for group in groups_of(config, stored.groups):
        with closing(Source(config, group)) as source:
            found.append(choose(group, ChangeLog(logs, group.name), source))
    return found


def _check_role(
    conn: Connection, config: Config, groups: Sequence[GroupConfig], server: ServerFacts, reads_wal: bool
) -> Iterator[Finding]:
    """What the role must create and own in the database; existing objects need not be created."""
    publishing = [group.name for group in groups if not group.triggers]
    publications = [publication_name(name) for name in publishing]
    appending = [append_name(name) for name in publishing]
    own = [
        each for each in own_objects(conn, [*publications, *appending])
        if each.kind == "PUBLICATION" or config.state.dsn is None
    ]  # fmt: skip
    names = {(each.kind, *each.name) for each in own}
    to_make = [f"publication {name}" for name in publications if ("PUBLICATION", name) not in names]
    if config.state.dsn is None and ("SCHEMA", "wal2lake") not in names:
        to_make.append(STATE_SCHEMA)
    if any(group.triggers for group in groups) and not has_buffers(conn):
        to_make.append("schema wal2lake_changes")
    yield from judge_role(server, identifier(server.role), identifier(server.database), own, to_make, reads_wal)


def _check_triggers(conn: Connection, config: Config, group: GroupConfig, oids: Sequence[int]) -> Iterator[Finding]:
    lane = Installation.of(config.changelog_path).slot(group.name)
    found = trigger_conditions(conn, lane, oids) if lane is not None else {}
    obstacles = trigger_obstacles(conn, oids)
    for oid, table in catalog_tables(conn, oids).items():
        declined = settings_of(config.tables, table.id, table.above).capture == "wal"
        obstacle = 'it has capture = "wal"' if declined else obstacles.get(oid)
        yield from judge_triggers(table.id, found.get(oid), obstacle)


def _group_slot(
    conn: Connection, configured: GroupConfig, plugin: str, server: ServerFacts, log: ChangeLog
) -> GroupSlot:
    """The slot beside the change log that was read from it. Raises if the log is damaged or of another server."""
    group = configured.name
    name = slot_name(group, server.database)
    if log.exists:
        name = log.origin.slot
        log.must_be_from(server)
    continued = log.started if log.exists else None
    info = (lane_info if configured.triggers else slot_info)(conn, name)
    if info is None:
        return GroupSlot(group, name, continued=continued)
    return GroupSlot(
        group, name, exists=True, usable=info.plugin == plugin and info.database == server.database, lost=info.lost,
        holder=(info.holder or "") if info.active_pid is not None else None, continued=continued,
    )  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """What the state store has: desired state by commands, and the group of each table."""

    groups: Mapping[str, GroupSpec] = field(default_factory=dict)
    tables: Mapping[int, TableSpec] = field(default_factory=dict)
    held: Mapping[int, str] = field(default_factory=dict)
    ran: Sequence[str] = ()
    """groups that have run"""


def look_at_store(config: Config) -> Stored:
    """The facts of the state store; empty if there is none, or one of an older version."""
    store = open_store(config, Installation.of(config.changelog_path))
    try:
        store.require_own()
        if not store.usable:
            return Stored()
        held = {record.oid: record.group for record in store.tables()}
        return Stored(store.group_specs(), store.table_specs(), held, [record.name for record in store.groups()])
    except SourceRefused:
        # The role may lack privileges, which is a finding of its own.
        return Stored()
    finally:
        store.close()


def _match_tables(
    conn: Connection, groups: tuple[GroupConfig, ...], stored: Stored
) -> tuple[list[Finding], list[tuple[GroupConfig, list[int]]]]:
    found = relations(conn)
    names = {relation.oid: str(relation.id) for relation in found}
    partitions = {relation.id for relation in found if relation.root is not None}
    findings: list[Finding] = []
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    oids: list[tuple[GroupConfig, list[int]]] = []
    for group in groups:
        tree = Tree(found, group.leafwise)
        meant = Matched((), (), (), units=tree.units())
        for text in patterns(group):
            try:
                if group.publication is None:
                    matched = select_tables(tree, group.name, [text], group.exclude)
                else:
                    one = group.model_copy(update={"tables": (text,)})
                    matched = narrow(found, one, published_selection(conn, group))
                    if matched.problems:
                        raise matched.problems[0]
            except Wal2LakeError as error:
                findings.append(_from_error(text if group.publication is None else f"group {group.name}", error))
                continue
            meant = replace(meant, tables=(*meant.tables, *matched.tables))
            findings += [Finding(text, Severity.WARNS, warning) for warning in matched.warnings]
            findings += [
                Finding(str(skipped.id), Severity.NOTES, f"{skipped.reason}: it is not mirrored")
                for skipped in matched.skipped
                if skipped.id not in partitions or group.leafwise
            ]
        findings += judge_removed({table.oid: str(table.id) for table in meant.tables}, stored.tables.values())
        wanted_oids = desired_oids(group.name, meant, stored.tables, stored.held)
        of_group = {oid: names[oid] for oid in wanted_oids if oid in names}
        oids.append((group, list(of_group)))
        for name in of_group.values():
            wanted[name].append(group.name)
    return findings + list(judge_wanted_twice(wanted)), oids


def _check_publishing(
    conn: Connection, config: Config, group: GroupConfig, oids: list[int], owners: set[str]
) -> Iterator[Finding]:
    """What a DBA can publish in the place of a role that does not own the tables."""
    if owners and group.triggers:
        yield from judge_owners(group.name, owners)
    elif owners:
        refused = refused_heaps(conn, oids)
        tables = [
            table.id for oid, table in catalog_tables(conn, oids).items()
            if oid not in refused or settings_of(config.tables, table.id, table.above).append_only
        ]  # fmt: skip
        made = any(each.kind == "PUBLICATION" for each in own_objects(conn, [dba_publication(group.name)]))
        yield from judge_publishing(group.name, owners, sorted(tables), made)


def _check_columns(
    conn: Connection, config: Config, group: GroupConfig, oids: list[int], plugin: PluginTrial | None
) -> Iterator[Finding]:
    version = conn.info.server_version
    found = {str(table.id): table for table in catalog_tables(conn, oids).values()}
    schemas, refused = _described(conn, config.tables_of(group), oids)
    for error in refused:
        finding = _from_error("tables", error)
        yield replace(finding, level=Severity.WARNS) if isinstance(error, SourceBusy) else finding
    yield from judge_types(schemas)
    if plugin is not None:
        yield from judge_numbers(plugin, schemas)
    for schema in schemas:
        if settings_of(config.tables, schema.id, schema.settings_from).append_only:
            continue
        try:
            require_telling(conn, schema)
        except KeyMisleading as error:
            yield Finding(str(schema.id), Severity.BLOCKS, f"can't be mirrored: {error}", error.remedy, sql=True)
        yield from judge_columns(schema, ours=group.publication is None)
        if schema.where is not None and group.publication is None:
            try:
                yield from judge_filter(schema, filter_columns(conn, schema))
            except Wal2LakeError as error:
                yield _from_error(str(schema.id), error)
    left_out = {
        name: [column.name for column in table.columns if not column.published(version)]
        for name, table in found.items()
    }
    yield from judge_generated({name: columns for name, columns in left_out.items() if columns}, version)


def _described(
    conn: Connection, settings: GroupTables, oids: Sequence[int]
) -> tuple[list[TableSchema], list[Wal2LakeError]]:
    """Descriptions of the tables whose settings fit, and findings for the others; one may be locked."""
    try:
        return list(describe(conn, oids, settings).values()), []
    except (ConfigError, SourceBusy) as error:
        if len(oids) == 1:
            return [], [error]
    # A few queries describe all tables; only if one is refused, each is read alone.
    schemas: list[TableSchema] = []
    errors: list[Wal2LakeError] = []
    for oid in oids:
        some, refused = _described(conn, settings, [oid])
        schemas += some
        errors += refused
    return schemas, errors


def _from_error(object: str, error: Wal2LakeError) -> Finding:
    return Finding(object, Severity.BLOCKS, str(error), error.remedy)


def look_at_lake(path: Path) -> LakeFacts:
    """Whether a file can be written in the lake's directory, or in the nearest existing one above it."""
    place = next(above for above in (path, *path.parents) if above.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"wal2lake")
            probe.flush()
    except OSError as error:
        return LakeFacts(str(path), error.strerror or type(error).__name__, 0)
    return LakeFacts(str(path), None, shutil.disk_usage(place).free)
