"""What a server needs so that a group's slot can be made and streamed, and how far the slot is behind."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import SourceConfig
from ...position import Lsn
from ..model import Standing
from ..sessions.connect import Connection, explained, query, replication_refused
from ..sessions.server import server_facts
from . import slot


def stream_obstacles(conn: Connection, source: SourceConfig, name: str) -> tuple[str, ...]:
    """Why the slot of this name can't be made or streamed."""
    found = tuple(_obstacles(conn, name))
    refused = replication_refused(source) if not found else None
    return found if refused is None else (f"replication connections are refused: {refused}",)


def _obstacles(conn: Connection, name: str) -> Iterator[str]:
    facts = server_facts(conn)
    if facts.wal_level != "logical":
        yield f"wal_level is {facts.wal_level}"
    if not facts.may_replicate:
        yield f"role {facts.role} may not make or read replication slots"
    if facts.slots_used >= facts.slots_max and slot.info(conn, name) is None:
        yield f"all {facts.slots_max} of max_replication_slots are in use"
    if facts.senders_used >= facts.senders_max:
        yield f"all {facts.senders_max} of max_wal_senders are in use"


def standing(conn: Connection, name: str) -> Standing:
    """The slot as people see it."""
    with explained("reading", f"slot {name}"):
        row = conn.execute(query("standing"), {"slot": name}).fetchone()
    if row is None:
        return Standing(False, None, None, 0, 0)
    active, received, acknowledged, lag, retained = row
    return Standing(active, _lsn(received), _lsn(acknowledged), int(lag), int(retained))


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)
