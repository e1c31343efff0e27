"""What must hold of a world: at every moment, once it has come to rest, and after its mirror has stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulation import memory_table
from simulation.disturbances import ANOTHER
from simulation.memory_table import Row
from simulation.postgres_tables import ScriptedTable, State, Text
from wal2lake.changelog.manifest import Manifest
from wal2lake.changelog.origin import Start, _from_json
from wal2lake.errors import ErrorKind
from wal2lake.lake import Applied
from wal2lake.position import Lsn
from wal2lake.schema import Column, TableSchema
from wal2lake.source.model import CopySource
from wal2lake.source.publishing import append_name, publication_name
from wal2lake.source.publishing.slot import slot_name
from wal2lake.state import TableRecord
from wal2lake.state.lifecycle import GroupState, TableState
from wal2lake.visibility import PgSnapshot

if TYPE_CHECKING:
    from simulation.postgres import SlotReader
    from simulation.world import World

Contents = Counter[tuple[Any, ...]]


def value(text: Text, column: Column) -> Any:
    """What the lake has for a value of the source."""
    return None if text is None else memory_table._READERS.get(column.lake.kind, str)(text)


def rows_of(state: State, source: CopySource) -> Iterable[Row]:
    """What a copy reads of the heaps that it names."""
    wanted = {int(heap.sql_name.removeprefix("ONLY ")) for heap in source.heaps}
    return [row for oid in wanted for row in heap_rows(state, state.tables[oid], source.schema.columns)]


def heap_rows(state: State, heap: ScriptedTable, columns: Iterable[Column]) -> Iterator[Row]:
    own = [(column, heap.column(column.name)) for column in columns]
    for row in state.rows.get(heap.oid, {}).values():
        yield {column.name: value(heap.value(row, mine), column) for column, mine in own}


def source_contents(state: State, oid: int, schema: TableSchema) -> Contents:
    """The rows that the lake should have of a table, by the columns that its lake table has."""
    table, columns = state.tables[oid], schema.source_columns
    rows = (row for heap in state.heaps(table) for row in heap_rows(state, heap, columns))
    return Counter(identity(row, schema) for row in rows)


def lake_contents(rows: Iterable[Row], schema: TableSchema) -> Contents:
    return Counter(identity(row, schema) for row in rows)


def identity(row: Row, schema: TableSchema) -> tuple[Any, ...]:
    return tuple(memory_table._identity(row[column.name], False) for column in schema.source_columns)


def records(world: World) -> list[TableRecord]:
    store = world.state.store
    return [row.record for row in store.tables.values()] if store is not None else []


def interrupted(world: World) -> set[str]:
    """Groups whose capture has failed and is tried again later: then it removes what it has left unfinished."""
    store = world.state.store
    return {g.name for g in store.groups.values() if g.state is GroupState.ERRORED} if store is not None else set()


def differences(world: World) -> list[str]:
    """What is not as it should be, once the world is at rest."""
    found = []
    known = {record.oid: record for record in records(world)}
    for table in world.server.state.tables.values():
        if table.parent is not None:
            continue
        record = known.get(table.oid)
        if record is None:
            found.append(f"{table.id} is not mirrored")
        elif record.state is not TableState.STREAMING:
            found.append(f"{table.id} is {record.state}: {record.error}")
    found += stays_with_triggers(world)
    waiting = {table: at for table, at in world.requested.items() if world.copied.get(table, -1.0) < at}
    return [
        *found,
        *wrong(world),
        *(f"a re-copy of {table} was requested after {at:.3f} s and is not made" for table, at in waiting.items()),
    ]


def stays_with_triggers(world: World) -> list[str]:
    """Groups that could be captured by the WAL, and are to be then."""
    server = world.server
    possible = server.wal_level == "logical" and len(server.slots) < server.slots_max
    captured = {group.name: stretch_of(world, group.name) for group in world.config.groups if group.capture == "auto"}
    found = [name for name, stretch in captured.items() if stretch is not None and stretch.by_triggers]
    return [f"group {name} is still captured by triggers" for name in found if possible]


def wrong(world: World) -> list[str]:
    """Tables that are called right and are not."""
    tables = {table.oid: table for table in world.server.state.tables.values() if table.parent is None}
    streaming = [r for r in records(world) if r.state is TableState.STREAMING and r.oid in tables]
    return [found for record in streaming for found in _difference(world, tables[record.oid], record)]


def _difference(world: World, table: ScriptedTable, record: TableRecord) -> Iterator[str]:
    if record.lake_table not in world.lake.tables():
        yield f"{table.id} has no lake table {record.lake_table}"
        return
    version = world.lake.history(record.lake_table)[-1]
    schema = version.record.schema
    names = {column.attnum: column.name for column in table.live}
    swapped = any(names.get(column.attnum, column.name) != column.name for column in schema.source_columns)
    if swapped or {column.name for column in schema.source_columns} != {column.name for column in table.live}:
        yield f"{table.id} has columns {[c.name for c in table.live]}, in the lake {schema.names}"
        return
    there, here = source_contents(world.server.state, table.oid, schema), lake_contents(version.rows, schema)
    if there != here:
        yield f"{table.id}: {_told(there, here)}"


def _told(there: Contents, here: Contents) -> str:
    missing, more = there - here, here - there
    return f"missing {sum(missing.values())}: {_some(missing)}; too many {sum(more.values())}: {_some(more)}"


def _some(rows: Contents) -> str:
    return ", ".join(repr(row)[:100] for row in sorted(rows, key=repr)[:3])


def failed(world: World) -> list[TableRecord]:
    """Tables that say what somebody is to do."""
    return [r for r in records(world) if r.state is TableState.ERRORED and r.kind == ErrorKind.CONFIGURATION]


# ---- at every moment


def always(world: World) -> None:
    """Acknowledged is at most what is durable; a lake version equals the source at its position."""
    assert not world.broken, world.broken
    versions(world)


def durable(world: World, stream: SlotReader, lsn: Lsn) -> None:
    """G1: what a stream acknowledges is in a manifest, if it gave anything of it, or in the copies that it begins with."""
    group = next(name for name in groups(world) if slot_name(name, world.server.database) == stream.slot)
    stretch = stretch_of(world, group)
    begun = stretch.lsn if stretch is not None else Lsn(0)
    logged = max(logged_to(world, group), world.server.slots[stream.slot].confirmed, begun)
    for done in reversed(world.server.wal):
        if done.commit_lsn < logged:
            return
        if done.commit_lsn < lsn and stream.sends(done):
            world.broken.append(f"{lsn} is acknowledged, the transaction at {Lsn(done.commit_lsn)} is in no manifest")
            return


def captured(world: World, lane: str, xids: frozenset[int]) -> None:
    """G1: what is deleted from buffers is in a manifest."""
    group = next(name for name in groups(world) if slot_name(name, world.server.database) == lane)
    stretch, newest = stretch_of(world, group), newest_manifest(world, group)
    token = newest.token if newest is not None and stretch is not None and newest.number >= stretch.manifest else None
    token = token or (stretch.token if stretch is not None else None)
    lost = [xid for xid in sorted(xids) if token is None or not PgSnapshot.parse(token).sees(xid)]
    if lost:
        world.broken.append(f"rows of transaction {lost[0]} are deleted from their buffer, and are in no manifest")


def groups(world: World) -> set[str]:
    """The groups that are configured, and those that were made and are not dropped yet."""
    made = world.state.store.group_specs if world.state.store is not None else {}
    return {group.name for group in world.config.groups} | set(made)


def logged_to(world: World, group: str) -> Lsn:
    """Where the newest manifest of a group ends."""
    newest = newest_manifest(world, group)
    return newest.to_lsn if newest is not None else Lsn(0)


def newest_manifest(world: World, group: str) -> Manifest | None:
    start = f"{group}/manifests/"
    numbers = (int(name.removeprefix(start).removesuffix(".json")) for name in world.storage.peek_names(start))
    newest = world.storage.peek(f"{start}{max(numbers, default=0)}.json")
    return Manifest.from_json(newest.decode()) if newest is not None else None


def versions(world: World) -> None:
    """G3: the current version of each lake table equals the source at the position of its record."""
    for record in records(world):
        if record.lake_table not in world.lake.tables() or record.state is not TableState.STREAMING:
            continue
        version = world.lake.history(record.lake_table)[-1]
        if version.record.schema.oid != record.oid:
            # It is about to be given up to the next table of that name.
            continue
        check_version(world, record.oid, version.record, version.rows)


def state_of(world: World, record: Applied) -> State:
    """What a lake table with a record is to be: what the source was at its position, or what a drain has seen.

    Triggers capture what their drains see, and a boundary is where the stream of a slot takes over.
    """
    server = world.server
    for group in groups(world):
        stretch = stretch_of(world, group)
        crossed = stretch.crossing.until if stretch is not None and stretch.crossing is not None else None
        if stretch is None or not (stretch.by_triggers or (crossed is not None and record.lsn < crossed)):
            continue
        seen = {position: server.seen_by[token] for position, token in world.drained.get(group, {}).items()}
        seen |= server.copies_saw.get(slot_name(group, server.database), {})
        if positions := [position for position in seen if position <= record.lsn]:
            return seen[max(positions)]
    return world.server.state_at(record.lsn, record.visibility)


def stretch_of(world: World, group: str) -> Start | None:
    """Where the last stretch of a group's log begins."""
    text = world.storage.peek(f"{group}/group.json")
    starts = [_from_json(start) for start in json.loads(text)["starts"]] if text is not None else []
    return starts[-1] if starts else None


def check_version(world: World, oid: int, record: Applied, rows: Iterable[Row]) -> None:
    state = state_of(world, record)
    table = state.tables.get(oid)
    schema = record.schema
    if (
        table is None
        or table.parent is not None
        or {c.name for c in schema.source_columns} != {c.name for c in table.live}
    ):
        return
    if table.partitioned and not _same_members(state, table, schema):
        # Partitions that came and went are exchanged when the catalog shows them.
        return
    # A swap of names that the lake table does not have yet leaves the columns the same.
    names = {column.attnum: column.name for column in table.live}
    now = replace(schema, columns=tuple(replace(c, name=names.get(c.attnum, c.name)) for c in schema.columns))
    there, here = source_contents(state, oid, now), lake_contents(rows, schema)
    assert there == here, f"{schema.id} is not what the source was at {record.lsn}: {_told(there, here)}"


def _same_members(state: State, table: ScriptedTable, schema: TableSchema) -> bool:
    there = {leaf.oid: leaf.levels for leaf in state.leaves(table)}
    return there == {heap.oid: heap.levels for heap in schema.heaps}


# ---- after the mirror has stopped


def stopped(world: World, interrupted: Collection[str]) -> None:
    """Nothing is left that belongs to nobody."""
    server, known = world.server, groups(world)
    slots = {slot_name(name, server.database) for name in known}
    assert set(server.slots) <= slots, f"slots of nobody: {set(server.slots) - slots}"
    publications = {name for group in known for name in (publication_name(group), append_name(group))}
    made = set(server.state.publications)
    assert made <= publications, f"publications of nobody: {made - publications}"
    check_lanes(world)
    assert not server.snapshots, "a copy has left its snapshot behind"
    holders = {group: session.process for group, session in world.state.leases.items() if session.process != ANOTHER}
    assert not holders, f"leases that were not released: {holders}"
    moving = [str(table) for table in world.lake.tables() if table.name.startswith("wal2lake_moving_")]
    assert not moving, f"lake tables that were moved aside: {moving}"
    assert not (left := orphans(world, interrupted)), f"files of the change log that nothing needs: {left[:5]}"


def check_lanes(world: World) -> None:
    """Of each group there is what its capture mode needs, and nothing of another one."""
    server = world.server
    for group in groups(world):
        stretch, name = stretch_of(world, group), slot_name(group, server.database)
        lane = server.triggers.lanes.get(name)
        if stretch is not None and stretch.by_triggers:
            made = {publication_name(group), append_name(group)} & set(server.state.publications)
            assert name not in server.slots, f"group {group} has triggers, and a slot"
            assert not made, f"group {group} has triggers, and publications: {made}"
        else:
            assert lane is None, f"group {group} has a slot, and triggers or buffers of {list(lane.buffers)}"
    lanes = {slot_name(group, server.database) for group in groups(world)}
    assert set(server.triggers.lanes) <= lanes, "lanes of nobody"
    filled = [one for name in lanes for one in server.triggers.buffers(name)]
    for oid, one in server.triggers.installed.items():
        assert any(one is other for other in filled), f"triggers of table {oid} fill no buffer of a lane"
        assert not one.rows or oid not in server.state.tables, (
            f"the buffer of table {oid} has {len(one.rows)} rows left"
        )


def orphans(world: World, interrupted: Collection[str] = ()) -> list[str]:
    """Segments that no manifest names, but for those of captures that were interrupted, and logs of groups gone."""
    names, known = world.storage.peek_names(""), groups(world)
    found = [name for name in names if name.split("/")[0] not in known]
    for group in known.difference(interrupted):
        manifests = (world.storage.peek(name) for name in names if name.startswith(f"{group}/manifests/"))
        read = [Manifest.from_json(text.decode()) for text in manifests if text is not None]
        named = {f"{group}/{segment.file}" for each in read for cut in each.tables.values() for segment in cut.segments}
        found += [name for name in names if name.startswith(f"{group}/segments/") and name not in named]
    return found
