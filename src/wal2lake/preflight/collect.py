"""What blocks a run: facts are read here, judged in `checks.py`, and nothing is changed.

    source ─┐
    lake   ─┼─► facts ──► judgement ──► findings: object, level, consequence, fix
    Java   ─┘

No JVM is started: a Java installation says its version in its `release` file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..changelog import ChangeLog
from ..config import Config, GroupConfig, GroupTables, settings_of
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
from ..quoting import identifier
from ..reconcile.desired_tables import groups_of, wanted_by
from ..schema import TableSchema
from ..source import catalog, copying, matching, publication, selection, slot
from ..source.connect import Connection, ServerFacts, connect, server_facts
from ..source.facts import measured_heaps, over_unix_socket, own_objects, refused_heaps
from ..state import GroupSpec, StateStore, TableSpec
from .checks import (
    judge_columns,
    judge_failover,
    judge_filter,
    judge_generated,
    judge_groups,
    judge_heap,
    judge_java,
    judge_lake,
    judge_removed,
    judge_role,
    judge_room,
    judge_server,
    judge_settings,
    judge_slot,
    judge_types,
    judge_updates,
    judge_wanted_twice,
)
from .findings import Finding, GroupSlot, JavaFacts, LakeFacts, Level

__all__ = ["Finding", "Level", "check"]

PLUGIN = "pgoutput"
_ORDER = list(Level)


def check(config: Config) -> tuple[Finding, ...]:
    """Everything worth knowing before a run, what blocks it first. A server that can't be reached is a finding too."""
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
    findings = [*judge_server(server, over_unix_socket(conn))]
    slots = []
    try:
        stored = look_at_store(config)
    except OtherInstallation as error:
        # What is another's is not judged: each fix would take something away from it.
        return [*findings, _from_error("schema wal2lake", error)], 0
    groups = groups_of(config, stored.groups)
    findings += _check_role(conn, config, groups, server)
    for group in groups:
        log = ChangeLog(config.changelog_path, group.name)
        try:
            slots.append(_group_slot(conn, group.name, server, log))
        except Wal2LakeError as error:
            findings.append(_from_error(f"change log of group {group.name}", error))
    findings += judge_room(server, slots, config.spark.copy_workers)
    findings += judge_failover(config.source.failover, server.version)
    findings += judge_groups([group.name for group in config.groups], stored.groups.values(), stored.ran)
    for group_slot in slots:
        findings += judge_slot(group_slot)
    table_findings, matched = _match_tables(conn, groups, stored)
    size = 0
    for group, oids in matched:
        for heap in measured_heaps(conn, oids):
            # What somebody else has published needs no owner's rights.
            judged = heap if group.publication is None else replace(heap, owned=True)
            table_findings += judge_heap(judged, server)
            size += heap.bytes
        table_findings += _check_updates(conn, config, group, oids)
        table_findings += _check_columns(conn, config, group, oids)
    wanted = [oid for _, oids in matched for oid in oids]
    found = matching.relations(conn)
    names = [str(id) for table in catalog.tables(conn, wanted).values() for id in (table.id, *table.above)]
    # A table that has no partition yet has settings for those that come.
    names += [
        str(relation.id) for relation in found for group in groups
        if group.leafwise and relation.partitioned and selection.means(group, relation.id)
    ]  # fmt: skip
    there = {str(relation.id) for relation in found}
    lost = [name for name, settings in config.tables.items() if settings.withholds and name not in there]
    table_findings += judge_settings(config.tables, names, lost)
    return findings + table_findings, size


def _check_role(
    conn: Connection, config: Config, groups: Sequence[GroupConfig], server: ServerFacts
) -> Iterator[Finding]:
    """What the role needs to make and to own in the database: nothing that is there already has to be made."""
    publications = [publication.publication_name(group.name) for group in groups if group.publication is None]
    appending = [publication.append_name(group.name) for group in groups if group.publication is None]
    own = [
        each for each in own_objects(conn, [*publications, *appending])
        if each.kind == "PUBLICATION" or config.state.dsn is None
    ]  # fmt: skip
    names = {(each.kind, *each.name) for each in own}
    to_make = [f"publication {name}" for name in publications if ("PUBLICATION", name) not in names]
    if config.state.dsn is None and ("SCHEMA", "wal2lake") not in names:
        to_make.append("schema wal2lake")
    yield from judge_role(server, identifier(server.role), identifier(server.database), own, to_make)


def _group_slot(conn: Connection, group: str, server: ServerFacts, log: ChangeLog) -> GroupSlot:
    """The slot beside the change log that continues from it. Raises where the log is damaged or of another server."""
    name = slot.slot_name(group, server.database)
    if log.exists:
        name = log.origin.slot
        log.must_be_from(server)
    continued = log.started if log.exists else None
    info = slot.info(conn, name)
    if info is None:
        return GroupSlot(group, name, continued=continued)
    return GroupSlot(
        group, name, exists=True, usable=info.plugin == PLUGIN and info.database == server.database, lost=info.lost,
        holder=(info.holder or "") if info.active_pid is not None else None, continued=continued,
    )  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """What the state store says: what commands asked for, and which group has which table."""

    groups: Mapping[str, GroupSpec] = field(default_factory=dict)
    tables: Mapping[int, TableSpec] = field(default_factory=dict)
    held: Mapping[int, str] = field(default_factory=dict)
    ran: Sequence[str] = ()
    """groups that have run"""


def look_at_store(config: Config) -> Stored:
    """Nothing, where there is no store yet or one of an older version."""
    mine = Installation.of(config.changelog_path)
    store = StateStore((config.state.dsn or config.source.dsn).get_secret_value(), config.source.connect_timeout, mine)
    try:
        store.require_own()
        if not store.usable:
            return Stored()
        held = {record.oid: record.group for record in store.tables()}
        return Stored(store.group_specs(), store.table_specs(), held, [record.name for record in store.groups()])
    except SourceRefused:
        # The role may not read it, which is a finding of its own.
        return Stored()
    finally:
        store.close()


def _match_tables(
    conn: Connection, groups: tuple[GroupConfig, ...], stored: Stored
) -> tuple[list[Finding], list[tuple[GroupConfig, list[int]]]]:
    found = matching.relations(conn)
    names = {relation.oid: str(relation.id) for relation in found}
    partitions = {relation.id for relation in found if relation.root is not None}
    findings: list[Finding] = []
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    oids: list[tuple[GroupConfig, list[int]]] = []
    for group in groups:
        tree = matching.Tree(found, group.leafwise)
        meant = matching.Matched((), (), (), units=tree.units())
        for text in selection.patterns(group):
            try:
                if group.publication is None:
                    matched = matching.select(tree, group.name, [text], group.exclude)
                else:
                    one = group.model_copy(update={"tables": (text,)})
                    matched = selection.narrow(found, one, selection.read(conn, group))
                    if matched.problems:
                        raise matched.problems[0]
            except Wal2LakeError as error:
                findings.append(_from_error(text if group.publication is None else f"group {group.name}", error))
                continue
            meant = replace(meant, tables=(*meant.tables, *matched.tables))
            findings += [Finding(text, Level.WARNS, warning) for warning in matched.warnings]
            findings += [
                Finding(str(skipped.id), Level.NOTES, f"{skipped.reason}: it is not mirrored")
                for skipped in matched.skipped
                if skipped.id not in partitions or group.leafwise
            ]
        findings += judge_removed({table.oid: str(table.id) for table in meant.tables}, stored.tables.values())
        wanted_oids = wanted_by(group.name, meant, stored.tables, stored.held)
        of_group = {oid: names[oid] for oid in wanted_oids if oid in names}
        oids.append((group, list(of_group)))
        for name in of_group.values():
            wanted[name].append(group.name)
    return findings + list(judge_wanted_twice(wanted)), oids


def _check_updates(conn: Connection, config: Config, group: GroupConfig, oids: list[int]) -> Iterator[Finding]:
    """Tables whose updates PostgreSQL would refuse, unless none are published of them."""
    tables = catalog.tables(conn, oids)
    refused = refused_heaps(conn, oids)
    for oid, table in tables.items():
        if not settings_of(config.tables, table.id, table.above).append_only:
            yield from judge_updates(table.id, refused.get(oid, ()), ours=group.publication is None)


def _check_columns(conn: Connection, config: Config, group: GroupConfig, oids: list[int]) -> Iterator[Finding]:
    version = conn.info.server_version
    found = {str(table.id): table for table in catalog.tables(conn, oids).values()}
    schemas, refused = _described(conn, config.tables_of(group), oids)
    for error in refused:
        finding = _from_error("tables", error)
        yield replace(finding, level=Level.WARNS) if isinstance(error, SourceBusy) else finding
    yield from judge_types(schemas)
    for schema in schemas:
        if settings_of(config.tables, schema.id, schema.settings_from).append_only:
            continue
        try:
            copying.require_telling(conn, schema)
        except KeyMisleading as error:
            yield Finding(str(schema.id), Level.BLOCKS, f"can't be mirrored: {error}", error.remedy, sql=True)
        yield from judge_columns(schema, ours=group.publication is None)
        if schema.where is not None and group.publication is None:
            try:
                yield from judge_filter(schema, publication.filter_columns(conn, schema))
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
    """The tables whose settings fit, and what is wrong with the others'; one may be locked by somebody."""
    try:
        return list(catalog.describe(conn, oids, settings).values()), []
    except (ConfigError, SourceBusy) as error:
        if len(oids) == 1:
            return [], [error]
    # All at once costs a few queries; only where one is refused, each is asked for alone.
    schemas: list[TableSchema] = []
    errors: list[Wal2LakeError] = []
    for oid in oids:
        some, refused = _described(conn, settings, [oid])
        schemas += some
        errors += refused
    return schemas, errors


def _from_error(object: str, error: Wal2LakeError) -> Finding:
    return Finding(object, Level.BLOCKS, str(error), error.remedy)


def find_java() -> JavaFacts:
    """The Java that Spark will take: that of JAVA_HOME, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if path is None:
        return JavaFacts(None, None)
    return JavaFacts(path, _java_major(Path(path).resolve()))


def _java_major(java: Path) -> int | None:
    try:
        text = (java.parent.parent / "release").read_text("utf-8")
        found = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    except OSError:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=10, check=False)
        found = re.search(r'version "([^"]+)"', answer.stderr)
    # Java 8 calls itself 1.8.
    number = re.match(r"(?:1\.)?(\d+)", found[1]) if found else None
    return int(number[1]) if number else None


def look_at_lake(path: Path) -> LakeFacts:
    """Whether the lake's directory, or the nearest one above it that exists, takes a file; none is left behind."""
    place = next(above for above in (path, *path.parents) if above.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"wal2lake")
            probe.flush()
    except OSError as error:
        return LakeFacts(str(path), error.strerror or type(error).__name__, 0)
    return LakeFacts(str(path), None, shutil.disk_usage(place).free)
