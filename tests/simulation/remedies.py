"""Carries out the remedies that errors name, as a person does who has read no more than them."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from simulation import statements
from simulation.postgres_tables import Refused
from wal2lake.errors import Wal2LakeError
from wal2lake.schema import ReplicaIdentity, TableId
from wal2lake.state import TableRecord

if TYPE_CHECKING:
    from simulation.world import World

ENOUGH_SLOTS = 100
_IDENTITY = re.compile(r"ALTER TABLE (\S+) REPLICA IDENTITY FULL")
_LEAVES = re.compile(r"pg_partition_tree\('([^']+)'\).*REPLICA IDENTITY FULL")
_COMMAND = re.compile(r"wal2lake tables (resync|resume) ('[^']*'|[^\s;]+)")


def carry_out(world: World, record: TableRecord) -> None:
    """What the error of a table says is to be done about it."""
    remedy = record.remedy or ""
    done = False
    for id in _without_identity(world, remedy):
        done = True
        try:
            world.server.run(statements.set_identity(str(id), ReplicaIdentity.FULL).script)
        except Refused:
            # It has gone or got another name since; the next look says so.
            world.notes.append(f"{remedy} is out of date")
    for command, word in _COMMAND.findall(remedy):
        mirror, (table,) = world.mirror("healer"), shlex.split(word)
        try:
            if command == "resume":
                mirror.resume([table])
            else:
                mirror.resync([] if table == "--all" else [table], all=table == "--all")
        except Wal2LakeError as error:
            world.notes.append(f"{remedy}: {error}")
        done = True
    done = _change_server(world, record, remedy) or done
    assert done or remedy.startswith("No action needed"), f"{record.id}: {record.error}: what is to be done? {remedy}"


def _change_server(world: World, record: TableRecord, remedy: str) -> bool:
    """Change a setting of the server; then have the table tried again at once, not in half an hour."""
    server = world.server
    if "ALTER SYSTEM SET max_replication_slots" in remedy:
        server.slots_max = ENOUGH_SLOTS
    elif "ALTER SYSTEM SET wal_level = logical" in remedy:
        server.change_wal_level("logical")
    else:
        return False
    try:
        world.mirror("healer").resume([str(record.id)])
    except Wal2LakeError as error:
        world.notes.append(f"{remedy}: {error}")
    return True


def _without_identity(world: World, remedy: str) -> list[TableId]:
    """The tables that are to get REPLICA IDENTITY FULL."""
    if (leaves := _LEAVES.search(remedy)) is None:
        return [TableId.parse(name.rstrip(";")) for name in _IDENTITY.findall(remedy)]
    root = TableId.parse(leaves[1])
    table = world.server.state.find(root)
    return [heap.id for heap in world.server.state.heaps(table)] if table is not None else [root]
