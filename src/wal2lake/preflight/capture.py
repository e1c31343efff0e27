"""What the tables of a group need to be captured in its mode: facts of the source, and their judgement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..config import Config, GroupConfig, settings_of
from ..installation import Installation
from ..reconcile import Choice
from ..source import Connection
from ..source.publishing import is_identified
from ..source.tables import catalog_tables, heap_facts, own_objects, refused_heaps
from ..source.triggers import lacking_rights, trigger_conditions, trigger_obstacles
from .checks import judge_publishing
from .findings import Finding
from .identities import judge_identities, may_identify
from .role_sql import dba_publication
from .table_modes import check_tables
from .triggers import judge_rights, judge_triggers


def check_capture(
    conn: Connection, config: Config, group: GroupConfig, oids: list[int], choices: Sequence[Choice]
) -> Iterator[Finding]:
    """Findings of a group. `choices`: the modes of all groups, chosen or configured."""
    chosen = [choice for choice in choices if choice.group is group and choice.chosen]
    if group.triggers:
        yield from _check_triggers(conn, config, group, oids)
        if chosen:
            yield from _check_identities(conn, config, group, oids)
        if chosen and group.publication is None:
            owners = {heap.owner for heap in heap_facts(conn, oids) if not heap.owned}
            yield from check_publishing(conn, config, group, oids, owners)
        return
    yield from check_tables(conn, config, group, oids)
    if any(choice.obstacles for choice in chosen):
        yield from judge_rights(lacking_rights(conn, oids), instead=True)


def _check_triggers(conn: Connection, config: Config, group: GroupConfig, oids: Sequence[int]) -> Iterator[Finding]:
    lane = Installation.of(config.changelog_path).slot(group.name)
    found = trigger_conditions(conn, lane, oids) if lane is not None else {}
    obstacles = trigger_obstacles(conn, oids)
    yield from judge_rights(lacking_rights(conn, oids))
    for oid, table in catalog_tables(conn, oids).items():
        declined = settings_of(config.tables, table.id, table.above).capture == "wal"
        obstacle = 'it has capture = "wal"' if declined else obstacles.get(oid)
        yield from judge_triggers(table.id, found.get(oid), obstacle)


def _check_identities(conn: Connection, config: Config, group: GroupConfig, oids: list[int]) -> Iterator[Finding]:
    """Replica identities that are set when triggers capture and the WAL can be used."""
    refused = refused_heaps(conn, oids)
    for oid, table in catalog_tables(conn, oids).items():
        if is_identified(table, config.tables_of(group)) and may_identify(refused.get(oid, ())):
            yield from judge_identities(table.id, refused[oid], crossing=True)


def check_publishing(
    conn: Connection, config: Config, group: GroupConfig, oids: list[int], owners: set[str]
) -> Iterator[Finding]:
    """What a DBA can publish in the place of a role that does not own the tables."""
    if owners:
        refused = refused_heaps(conn, oids)
        tables = [
            table.id for oid, table in catalog_tables(conn, oids).items()
            if oid not in refused or settings_of(config.tables, table.id, table.above).append_only
        ]  # fmt: skip
        made = any(each.kind == "PUBLICATION" for each in own_objects(conn, [dba_publication(group.name)]))
        yield from judge_publishing(group.name, owners, sorted(tables), made)
