"""Tables of a group that streams which are captured by triggers: their buffers are in a publication of the group.

    comes    lock ─► triggers, buffer ─► buffer published, table not     one transaction
    goes     lock ─► table published, buffer not, and retired            one transaction; then triggers and buffer go

The lock waits for all who write the table, and no other begins before the end of the transaction. So each change is in
the stream in one of the two forms, and in commit order no change of the later form comes before one of the earlier.
A buffer that was in the stream is dropped when the slot has passed the last of its rows: a stream that is opened again
has to know what it held.
"""

# ruff: noqa: S608 - every name in these texts is ours or quoted
from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ... import faults
from ...errors import OtherInstallation, SourceRefused, Wal2LakeError
from ...quoting import identifier
from ...schema import TableId, TableSchema
from ..publishing import publication
from ..sessions.connect import Connection, explained, query
from ..sessions.locking import retried, wait_briefly
from ..tables.facts import updates_refused
from . import installing, removing, rights
from .definition import SCHEMA, Buffer, BufferColumn

log = logging.getLogger(__name__)

BATCH_ROWS = 20_000
"""deleted at once, and so many deleted rows are vacuumed"""
MOST_BATCHES = 50


@dataclass(frozen=True)
class Place:
    """A group's lane and publications."""

    lane: str
    main: str
    append: str
    mark: str | None
    """of the installation"""
    streamed: bool = True
    """whether there is a slot, so that who writes has to be waited for"""


def captured(conn: Connection, append: str) -> dict[int, Buffer]:
    """The tables whose changes come from their buffers, with the buffer that is filled."""
    if not installing.exists(conn):
        return {}
    with explained("reading", "the buffers"):
        rows = conn.execute(query("trigger_captured"), {"publication": append}).fetchall()
    return {
        relid: Buffer(relid, generation, tuple(BufferColumn(*one) for one in columns), layout, retired)
        for relid, generation, columns, layout, retired in rows
    }


def begin(
    conn: Connection, place: Place, schema: TableSchema, patience: float, stopped: Callable[[], bool]
) -> Wal2LakeError | None:
    """Have a table captured by triggers from here on, or in its present columns. Raises SourceBusy if it is locked.

    Returns why that can't be.
    """
    try:
        installing.prepare(conn)
        parts = installing.parts_of(conn, [schema.oid])
        if (error := installing.obstacle(parts, schema) or _of_others(conn, place, schema)) is not None:
            return error
        retried(partial(_begin, conn, place, schema, parts), patience, stopped)
    except SourceRefused as error:
        return error
    faults.reached(faults.BUFFER_PUBLISHED)
    return None


def _of_others(conn: Connection, place: Place, schema: TableSchema) -> Wal2LakeError | None:
    """Why a table of another owner can't come: only its owner may lock it, and publish it when it goes."""
    if rights.owned(conn, [schema.oid]) or schema.oid in captured(conn, place.append):
        return None
    return SourceRefused(
        operation="capturing", object=str(schema.id),
        cause="only the owner of a table can have it captured by triggers beside a slot",
        remedy=publication.owning_remedy(conn, schema.id),
    )  # fmt: skip


def _begin(conn: Connection, place: Place, schema: TableSchema, parts: Sequence[installing.Part]) -> None:
    with explained("installing triggers on", str(schema.id)), conn.transaction():
        wait_briefly(conn)
        before = captured(conn, place.append).get(schema.oid)
        if place.streamed and before is None:
            _lock(conn, schema.id)
        _take_lane(conn, place)
        _share(conn, place, schema)
        installing.install_one(conn, place.lane, schema, [part for part in parts if not part.foreign])
        latest = installing.buffers(conn, place.lane)[schema.oid][-1]
        publication.add(conn, place.append, _id(latest), append=True, mark=place.mark)
        for name in (place.main, place.append):
            publication.take_out(conn, name, schema.id)


def _take_lane(conn: Connection, place: Place) -> None:
    """The lane is that of this installation."""
    conn.execute(
        "INSERT INTO wal2lake_changes.lanes (lane, mark) VALUES (%s, %s) ON CONFLICT (lane) DO NOTHING",
        [place.lane, place.mark],
    )
    row = conn.execute("SELECT mark FROM wal2lake_changes.lanes WHERE lane = %s", [place.lane]).fetchone()
    if row is not None and row[0] is not None and row[0] != place.mark:
        raise OtherInstallation(object=f"lane {place.lane} of schema {SCHEMA}", place="not known here")


def _share(conn: Connection, place: Place, schema: TableSchema) -> None:
    """A table that moves between groups has one buffer, which both publish, and which the later group takes care of."""
    rows = conn.execute(
        "SELECT generation FROM wal2lake_changes.buffers WHERE relid = %s AND lane <> %s", [schema.oid, place.lane]
    ).fetchall()
    if not rows:
        return
    names = [Buffer(schema.oid, generation, (), "").name for (generation,) in rows]
    row = conn.execute(
        "SELECT count(DISTINCT prrelid) FROM pg_publication_rel WHERE prrelid = ANY (%s::text[]::regclass[])", [names]
    ).fetchone()
    if row is None or row[0] == 0:
        raise SourceRefused(
            operation="capturing", object=str(schema.id), cause="triggers of another group capture it",
            remedy='give both groups the same capture: "auto" or "wal"',
        )  # fmt: skip
    conn.execute("UPDATE wal2lake_changes.buffers SET lane = %s WHERE relid = %s", [place.lane, schema.oid])


def end(
    conn: Connection, place: Place, schema: TableSchema, append: bool, patience: float, stopped: Callable[[], bool]
) -> Wal2LakeError | None:
    """Have a table captured from the WAL from here on. Raises SourceBusy if it is locked.

    Returns why that can't be. `append`: it is published without updates and deletes.
    """
    try:
        return retried(partial(_end, conn, place, schema, append), patience, stopped)
    except SourceRefused as error:
        return error
    finally:
        faults.reached(faults.BUFFER_RETIRED)


def _end(conn: Connection, place: Place, schema: TableSchema, append: bool) -> Wal2LakeError | None:
    with explained("publishing", str(schema.id)), conn.transaction():
        wait_briefly(conn)
        if place.streamed:
            _lock(conn, schema.id)
        if not append and (refused := updates_refused(conn, {schema.oid: schema.id})):
            return refused[schema.oid]
        publication.add(conn, place.append if append else place.main, schema, append=append, mark=place.mark)
        _retire(conn, place, schema.oid)
    return None


def leave(conn: Connection, place: Place, oid: int) -> None:
    """Capture no more of a table, which is not mirrored by the group any more."""
    with explained("altering", f"publication {place.append}"), conn.transaction():
        wait_briefly(conn)
        _retire(conn, place, oid)


def _retire(conn: Connection, place: Place, oid: int) -> None:
    for buffer in installing.all_buffers(conn, oid):
        publication.take_out(conn, place.append, _id(buffer))
    conn.execute(
        "UPDATE wal2lake_changes.buffers SET retired = pg_current_xact_id()"
        " WHERE relid = %s AND lane = %s AND retired IS NULL", [oid, place.lane],
    )  # fmt: skip


def _lock(conn: Connection, id: TableId) -> None:
    """Wait for all who write a table or one of its partitions."""
    conn.execute(f"LOCK TABLE {identifier(id.schema, id.name)} IN SHARE ROW EXCLUSIVE MODE".encode())


def _id(buffer: Buffer) -> TableId:
    return TableId(SCHEMA, buffer.name.removeprefix(f"{SCHEMA}."))


def exists(conn: Connection, place: Place) -> bool:
    """Whether the group has anything of triggers."""
    return bool(installing.buffers(conn, place.lane))


def empty(conn: Connection, lane: str, deleted: dict[str, int], stopped: Callable[[], bool]) -> None:
    """Delete what is committed: the WAL has it. `deleted`: rows of each buffer since its place was given back."""
    present = [buffer for some in installing.buffers(conn, lane).values() for buffer in some]
    for buffer in present:
        with explained("emptying", buffer.name):
            for _ in range(MOST_BATCHES):
                count = conn.execute(
                    f"DELETE FROM {buffer.name} WHERE ctid = ANY (ARRAY("
                    f"SELECT ctid FROM {buffer.name} LIMIT {BATCH_ROWS}))".encode()
                ).rowcount
                deleted[buffer.name] = deleted.get(buffer.name, 0) + count
                if deleted[buffer.name] >= BATCH_ROWS:
                    deleted[buffer.name] = 0
                    conn.execute(f"VACUUM {buffer.name}".encode())
                if count < BATCH_ROWS or stopped():
                    break


def clear(
    conn: Connection, place: Place, passed: Callable[[Buffer], bool], patience: float, stopped: Callable[[], bool]
) -> None:
    """Remove what is not needed any more. Raises SourceBusy if a table is locked.

    `passed`: whether the slot has passed all rows of a buffer that is not filled any more.
    """
    if not installing.exists(conn):
        return
    kept, present = captured(conn, place.append), installing.buffers(conn, place.lane)
    gone = {oid for oid, some in present.items() if oid not in kept}
    # What was in the stream is retired, and what is not was never in it: that is of another capture mode.
    left = {oid for oid in gone if all(buffer.retired is not None for buffer in present[oid])}
    for oid in left:
        removing.remove_triggers(conn, oid, patience, stopped)
    removing.remove(conn, place.lane, {*kept, *left}, patience, stopped)
    removing.tidy(conn, place.lane, partial(_droppable, conn, place, passed))
    if not installing.buffers(conn, place.lane):
        removing.drop_lane(conn, place.lane, place.mark, patience, stopped)


def _droppable(conn: Connection, place: Place, passed: Callable[[Buffer], bool], buffer: Buffer) -> bool:
    # A group that the table is about to leave may not have read it all.
    others = conn.execute(
        "SELECT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"
        " WHERE r.prrelid = to_regclass(%s) AND p.pubname <> %s AND p.pubname LIKE 'wal2lake\\_%%')",
        [buffer.name, place.append],
    ).fetchone()
    return others == (False,) and passed(buffer)


def follow(
    conn: Connection, place: Place, oids: Collection[int],
    describe: Callable[[Collection[int]], Sequence[TableSchema]], stopped: Callable[[], bool],
) -> None:  # fmt: skip
    """Have tables that were altered, or have a new partition, captured as they are. Raises SourceBusy."""
    own = [oid for oid in installing.buffers(conn, place.lane) if oid in oids]
    found = installing.conditions(conn, place.lane, own)
    altered = [oid for oid, condition in found.items() if condition in installing.FOLLOWED]
    for schema in describe(altered) if altered else ():
        if (error := begin(conn, place, schema, 0.0, stopped)) is not None:
            log.debug("%s: %s", schema.id, error)
