"""A group's place among what triggers have captured, in the terms of a slot: it exists, is begun, is dropped."""

from __future__ import annotations

from ...errors import OtherInstallation
from ...position import ZERO, Lsn
from ..publishing.slot import SlotInfo
from ..sessions.connect import Connection, explained
from . import installing
from .definition import SCHEMA

PLUGIN = "pgoutput"
"""what its stream looks like"""


def info(conn: Connection, lane: str) -> SlotInfo | None:
    """The lane as a slot; None if there is none."""
    if not installing.exists(conn):
        return None
    with explained("reading", f"lane {lane}"):
        row = conn.execute(
            "SELECT position::text FROM wal2lake_changes.lanes WHERE lane = %s", [lane]
        ).fetchone()  # fmt: skip
    if row is None:
        return None
    position = Lsn.parse(row[0]) if row[0] else ZERO
    return SlotInfo(lane, PLUGIN, conn.info.dbname, False, None, position, position, None, None, None, None)


def create(conn: Connection, lane: str, mark: str | None) -> None:
    """Make the lane, or begin it again."""
    installing.prepare(conn)
    with explained("creating", f"lane {lane}"):
        row = conn.execute("SELECT mark FROM wal2lake_changes.lanes WHERE lane = %s", [lane]).fetchone()
        if row is not None and row[0] is not None and row[0] != mark:
            raise OtherInstallation(object=f"lane {lane} of schema {SCHEMA}", place="not known here")
        conn.execute(
            "INSERT INTO wal2lake_changes.lanes (lane, mark) VALUES (%s, %s)"
            " ON CONFLICT (lane) DO UPDATE SET position = NULL, asked = NULL, answered = NULL, mark = excluded.mark",
            [lane, mark],
        )


def buffered_types(conn: Connection, lane: str) -> list[tuple[int, int]]:
    """Type and typmod of every column that the buffers of a lane have."""
    present = [buffer for some in installing.buffers(conn, lane).values() for buffer in some]
    return [(column.type_oid, column.typmod) for buffer in present for column in buffer.columns]
