"""What a server says of itself, and positions in its WAL."""

from __future__ import annotations

from dataclasses import dataclass

from ...position import Lsn
from .connect import Connection, explained, query


@dataclass(frozen=True)
class ServerFacts:
    """Facts about the server, the database and the role that mirroring depends on."""

    version: int
    """180006 for 18.6"""
    version_text: str
    wal_level: str
    system_identifier: str
    timeline: int | None
    """None on a standby"""
    in_recovery: bool
    database: str
    database_oid: int
    encoding: str
    slots_used: int
    slots_max: int
    senders_used: int
    senders_max: int
    max_slot_wal_keep_mb: int
    """-1: no limit"""
    wal_sender_timeout_ms: int
    role: str
    superuser: bool
    may_replicate: bool
    may_create_in_database: bool
    wal_end: Lsn
    inherits: bool = True
    """whether the role inherits the privileges of roles that it is a member of"""
    on_rds: bool = False
    """whether replication is granted by the role rds_replication"""


def server_facts(conn: Connection) -> ServerFacts:
    with explained("reading", "the server's settings"):
        row = conn.execute(query("server_facts")).fetchone()
    assert row is not None
    values = (*row[:-3], Lsn.parse(row[-3]), *row[-2:])
    return ServerFacts(*values)


def mark(conn: Connection) -> Lsn:
    """Write a message to the WAL and return a position that the stream will reach and that is after it."""
    with explained("writing", "a heartbeat"), conn.transaction():
        conn.execute("SET LOCAL synchronous_commit = local")
        conn.execute("SELECT pg_logical_emit_message(true, 'wal2lake', 'heartbeat')")
    return wal_end(conn)


def wal_end(conn: Connection) -> Lsn:
    """The end of the server's flushed WAL; a stream can't be beyond it."""
    with explained("reading", "the WAL position"):
        row = conn.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def wal_written(conn: Connection) -> Lsn:
    """The end of the server's WAL, flushed or not: everything visible is below it."""
    with explained("reading", "the WAL position"):
        row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])
