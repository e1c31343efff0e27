"""How each table of a group with a slot is captured: from the WAL, or by triggers because it can't be published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..config import PGOUTPUT, Config, GroupConfig, settings_of
from ..quoting import toml
from ..schema import TableId
from ..source import Connection
from ..source.publishing import is_identified
from ..source.tables import RefusedHeap, catalog_tables, fix_of, refused_heaps
from ..source.triggers import lacking_rights, owned, trigger_obstacles
from .checks import judge_updates
from .findings import Finding, Severity
from .identities import judge_identities, may_identify

_GETS_TRIGGERS = "gets statement-level triggers, whose rows come in the stream of its group"


@dataclass(frozen=True)
class TableMode:
    """Facts about a table of a group with a slot."""

    id: TableId
    capture: str
    """wal, trigger or auto, by its settings"""
    refused: Sequence[RefusedHeap]
    """where PostgreSQL refuses updates once it is published"""
    obstacle: str | None
    """to triggers"""


def check_tables(conn: Connection, config: Config, group: GroupConfig, oids: Sequence[int]) -> Iterator[Finding]:
    tables, refused = catalog_tables(conn, oids), refused_heaps(conn, oids)
    found = []
    for oid, table in tables.items():
        settings = settings_of(config.tables, table.id, table.above)
        capture = config.capture_of(group, settings) if group.publication is None else "wal"
        if settings.append_only and capture != "trigger":
            continue
        heaps = refused.get(oid, ())
        if is_identified(table, config.tables_of(group)) and may_identify(heaps):
            yield from judge_identities(table.id, heaps)
            continue
        obstacle = None
        if capture == "trigger" or (capture == "auto" and oid in refused):
            obstacle = _obstacle(conn, config, group, oid)
            if settings.where is not None:
                obstacle = "a setting keeps rows out of the lake, which triggers do not"
        found.append(TableMode(table.id, capture, heaps, obstacle))
    yield from judge_modes(group.name, found, ours=group.publication is None)


def _obstacle(conn: Connection, config: Config, group: GroupConfig, oid: int) -> str | None:
    if config.source.plugin != PGOUTPUT:
        return f"output plugin {config.source.plugin} can't tell what triggers write"
    if group.leafwise:
        return "its partitions are tables of their own"
    if not owned(conn, [oid]):
        return "the role does not own it"
    for lacking in lacking_rights(conn, [oid]):
        return f"{lacking.object} {lacking.consequence}"
    return trigger_obstacles(conn, [oid]).get(oid)


def judge_modes(group: str, tables: Sequence[TableMode], ours: bool) -> Iterator[Finding]:
    """`ours`: wal2lake made the publication."""
    filled = []
    for table in tables:
        name = str(table.id)
        unidentified = any(heap.unidentified for heap in table.refused)
        if table.capture == "trigger" and table.obstacle is not None:
            yield Finding(
                name, Severity.BLOCKS, f"can't be captured by triggers: {table.obstacle}",
                f"remove capture from [tables.{toml(name)}], or exclude = [{toml(name)}]",
            )  # fmt: skip
        elif table.capture == "trigger" or (table.capture == "auto" and unidentified and table.obstacle is None):
            filled.append(table)
            yield _by_triggers(table)
        else:
            yield from judge_updates(table.id, table.refused, ours)
    streamed = [str(table.id) for table in tables if table not in filled]
    if filled and streamed:
        yield Finding(
            f"group {group}", Severity.NOTES, f"captures from the WAL: {', '.join(sorted(streamed))}; by triggers: "
            f"{', '.join(sorted(str(table.id) for table in filled))}",
        )  # fmt: skip


def _by_triggers(table: TableMode) -> Finding:
    if not table.refused:
        return Finding(str(table.id), Severity.NOTES, _GETS_TRIGGERS, "No action needed")
    first = table.refused[0]
    why = first.why if first.id == table.id else f"of its partition {first.id}, {first.why}"
    return Finding(
        str(table.id), Severity.NOTES, f"{why}, so it {_GETS_TRIGGERS}",
        f"No action needed; to capture it from the WAL: {fix_of(table.id, table.refused)}",
    )  # fmt: skip
