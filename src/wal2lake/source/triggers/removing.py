"""How triggers and buffers go: those of tables that are not mirrored, of whole lanes, and what nothing needs any more.

Triggers go with their functions, which are ours: dropping a trigger itself would need the owner of the table.
"""

# ruff: noqa: S608 - every name in these texts is ours
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from ..sessions.connect import Connection, explained
from ..sessions.locking import retried, wait_briefly
from . import rights
from .definition import SCHEMA, Buffer
from .installing import buffers, exists, functions, parts_of


def remove(conn: Connection, lane: str, keep: Collection[int], patience: float, stopped: Callable[[], bool]) -> None:
    """Remove the triggers and buffers of a lane's tables, but for those to keep. Raises SourceBusy."""
    present = buffers(conn, lane)
    gone = [oid for oid in present if oid not in keep]
    if not gone:
        return
    parts = parts_of(conn, gone)
    for oid in gone:
        relids = {oid, *(part.oid for part in parts if part.root == oid)}
        retried(partial(_remove, conn, oid, relids, present[oid]), patience, stopped)


def remove_triggers(conn: Connection, oid: int, patience: float, stopped: Callable[[], bool]) -> None:
    """Remove the triggers of a table and leave its buffers. Raises SourceBusy."""
    relids = {oid, *(part.oid for part in parts_of(conn, [oid]))} & functions(conn).keys()
    if relids:
        retried(partial(_remove, conn, oid, relids, None), patience, stopped)


def _remove(conn: Connection, oid: int, relids: Collection[int], present: Sequence[Buffer] | None) -> None:
    """`present`: the buffers that go, too; None: none do."""
    with explained("removing triggers of table", str(oid)), conn.transaction():
        wait_briefly(conn)
        for relid in relids:
            conn.execute(f"DROP FUNCTION IF EXISTS {SCHEMA}.capture_{relid}() CASCADE".encode())
        for buffer in present or ():
            conn.execute(f"DROP TABLE IF EXISTS {buffer.name}".encode())
        if present is not None:
            conn.execute("DELETE FROM wal2lake_changes.buffers WHERE relid = %s", [oid])


def drop_lane(conn: Connection, lane: str, mark: str | None, patience: float, stopped: Callable[[], bool]) -> None:
    """Remove all that a lane has; with the last lane the schema goes, too. A lane of another installation stays."""
    if not exists(conn):
        return
    with explained("reading", f"lane {lane}"):
        row = conn.execute("SELECT mark FROM wal2lake_changes.lanes WHERE lane = %s", [lane]).fetchone()
    if row is not None and row[0] not in (None, mark):
        return
    remove(conn, lane, (), patience, stopped)
    with explained("dropping", f"lane {lane}"), conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(hashtext('wal2lake_changes'))")
        conn.execute("DELETE FROM wal2lake_changes.lanes WHERE lane = %s", [lane])
        row = conn.execute("SELECT count(*) FROM wal2lake_changes.lanes").fetchone()
        left = conn.execute("SELECT count(*) FROM wal2lake_changes.buffers").fetchone()
        if row == (0,) and left == (0,):
            if rights.place(conn).kept:
                conn.execute(f"DROP TABLE {SCHEMA}.lanes, {SCHEMA}.buffers".encode())
            else:
                conn.execute(f"DROP SCHEMA {SCHEMA} CASCADE".encode())


def drop_place(conn: Connection) -> None:
    """Drop the schema that a DBA made, with the DBA's function, unless a lane has anything in it."""
    if rights.place(conn).owned and not exists(conn):
        with explained("dropping", f"schema {SCHEMA}"):
            conn.execute(f"DROP SCHEMA {SCHEMA} CASCADE".encode())


def _drop_strays(conn: Connection, roots: Collection[int]) -> None:
    """Drop the triggers of former partitions, which fill a buffer of what they are no part of."""
    found = functions(conn)
    filling = {relid: root for relid, root in found.items() if root is not None and root in roots and root != relid}
    if not filling:
        return
    parts = {(part.oid, part.root) for part in parts_of(conn, set(filling.values()))}
    for relid, root in filling.items():
        if (relid, root) not in parts:
            with explained("dropping", f"the triggers of former partition {relid}"), conn.transaction():
                wait_briefly(conn)
                conn.execute(f"DROP FUNCTION IF EXISTS {SCHEMA}.capture_{relid}() CASCADE".encode())


def _always(_: Buffer) -> bool:
    return True


def tidy(conn: Connection, lane: str, droppable: Callable[[Buffer], bool] = _always) -> None:
    """Drop what nothing needs any more: empty buffers of earlier columns and of dropped tables, triggers of partitions
    that were detached.

    `droppable`: whether an empty buffer may go.
    """
    _drop_strays(conn, set(buffers(conn, lane)))
    present = [buffer for some in buffers(conn, lane).values() for buffer in some]
    with explained("reading", "the running transactions"):
        there = {
            oid for (oid,) in conn.execute(
                "SELECT oid::int8 FROM pg_class WHERE oid = ANY (%s::oid[])", [[buffer.relid for buffer in present]]
            )
        }  # fmt: skip
        ended = conn.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::numeric").fetchone()
    for buffer in present:
        over = buffer.retired is not None and ended is not None and int(buffer.retired) < int(ended[0])
        if (over or buffer.relid not in there) and droppable(buffer):
            with explained("dropping", buffer.name), conn.transaction():
                wait_briefly(conn)
                row = conn.execute(f"SELECT EXISTS (SELECT FROM {buffer.name})".encode()).fetchone()
                if row == (False,):
                    conn.execute(f"DROP TABLE {buffer.name}".encode())
                    conn.execute(
                        "DELETE FROM wal2lake_changes.buffers WHERE relid = %s AND generation = %s",
                        [buffer.relid, buffer.generation],
                    )
                    if buffer.relid not in there:
                        conn.execute(f"DROP FUNCTION IF EXISTS {SCHEMA}.capture_{buffer.relid}() CASCADE".encode())
