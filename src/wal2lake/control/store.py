"""The state store: what is wanted, and a cache of states and errors for people to query.

It is the `wal2lake` schema of the source database, or of another PostgreSQL (`[state] dsn`). What is applied is never
read from here: that stands in the lake's own commits. A row here that is out of date misleads nobody but a reader.
The process that runs a group holds an advisory lock on its session, and is woken by NOTIFY.
"""

from __future__ import annotations

import os
import socket
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from ..errors import ConnectionFailed, GroupHeld, SourceRefused
from ..position import Lsn
from ..schema import TableId
from ..source.connect import bounded
from .state import GroupState, Mode, TableState

CHANNEL = "wal2lake"
PATIENCE_SECONDS = 15.0
_LOCK_CLASS = zlib.crc32(b"wal2lake") & 0x7FFFFFFF
_LATEST = 2

_CREATE = """
CREATE SCHEMA IF NOT EXISTS wal2lake;
CREATE TABLE IF NOT EXISTS wal2lake.version (version int NOT NULL);
CREATE TABLE IF NOT EXISTS wal2lake.groups (
    name text PRIMARY KEY,
    state text NOT NULL,
    holder text,
    slot text NOT NULL,
    capture text NOT NULL,
    logged_lsn pg_lsn,
    error text,
    remedy text,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS wal2lake.tables (
    group_name text NOT NULL,
    oid oid NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    state text NOT NULL,
    mode text NOT NULL,
    applied_lsn pg_lsn,
    rows bigint,
    changes_applied bigint NOT NULL DEFAULT 0,
    last_commit_at timestamptz,
    behind_since timestamptz,
    error text,
    remedy text,
    retry_at timestamptz,
    failures int NOT NULL DEFAULT 0,
    resync_wanted timestamptz DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_name, oid)
);
"""

_UPGRADE = """
ALTER TABLE wal2lake.groups ADD COLUMN IF NOT EXISTS changelog_bytes bigint;
ALTER TABLE wal2lake.groups ADD COLUMN IF NOT EXISTS warning text;
"""

_SAVE_TABLES = """
INSERT INTO wal2lake.tables AS t (group_name, oid, schema_name, table_name, state, mode, applied_lsn, rows,
    changes_applied, last_commit_at, behind_since, error, remedy, retry_at, failures)
SELECT * FROM jsonb_to_recordset(%s) AS given ("group" text, oid oid, schema text, name text, state text, mode text,
    applied_lsn pg_lsn, rows bigint, changes_applied bigint, last_commit_at timestamptz, behind_since timestamptz,
    error text, remedy text, retry_at timestamptz, failures int)
ON CONFLICT (group_name, oid) DO UPDATE SET
    schema_name = excluded.schema_name, table_name = excluded.table_name, state = excluded.state,
    mode = excluded.mode, applied_lsn = excluded.applied_lsn, rows = excluded.rows,
    changes_applied = excluded.changes_applied, last_commit_at = excluded.last_commit_at,
    behind_since = excluded.behind_since, error = excluded.error, remedy = excluded.remedy,
    retry_at = excluded.retry_at, failures = excluded.failures, updated_at = now()
"""


@dataclass(frozen=True)
class TableRecord:
    """A table as the store knows it."""

    group: str
    oid: int
    id: TableId
    state: TableState
    mode: Mode = Mode.WAL
    applied_lsn: Lsn | None = None
    rows: int | None = None
    changes_applied: int = 0
    last_commit_at: datetime | None = None
    behind_since: datetime | None = None
    error: str | None = None
    remedy: str | None = None
    retry_at: datetime | None = None
    failures: int = 0


@dataclass(frozen=True)
class GroupRecord:
    name: str
    state: GroupState
    slot: str
    capture: str
    holder: str | None = None
    logged_lsn: Lsn | None = None
    error: str | None = None
    remedy: str | None = None
    warning: str | None = None
    """what is to be known though all goes on"""
    changelog_bytes: int | None = None
    updated_at: datetime | None = None


class StateStore:
    """The store in a PostgreSQL database. Safe to use from several threads; reconnects after a lost connection."""

    def __init__(self, dsn: str, connect_timeout: float = 10) -> None:
        self.dsn = dsn
        self._timeout = connect_timeout
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def exists(self) -> bool:
        with self._use() as connection:
            row = connection.execute("SELECT to_regclass('wal2lake.version') IS NOT NULL AS found").fetchone()
        return bool(row and row["found"])

    def create(self) -> None:
        """Make the schema if it is not there, and bring one of an older version up to date."""
        if self.exists() and self._version() >= _LATEST:
            return
        try:
            with self._use() as connection, connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", [_LOCK_CLASS])
                connection.execute(_CREATE)
                connection.execute(_UPGRADE)
                # Not DELETE: a table without a key takes none while it is in a publication of all tables.
                connection.execute("TRUNCATE wal2lake.version")
                connection.execute("INSERT INTO wal2lake.version VALUES (%s)", [_LATEST])
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceRefused(
                operation="CREATE SCHEMA wal2lake", object="the database", cause=error.diag.message_primary,
                remedy="GRANT CREATE ON DATABASE … TO this user, or set [state] dsn to a database of its own",
            ) from error  # fmt: skip

    def _version(self) -> int:
        with self._use() as connection:
            row = connection.execute("SELECT max(version) AS version FROM wal2lake.version").fetchone()
        return int(row["version"] or 0) if row else 0

    def drop(self) -> None:
        with self._use() as connection:
            connection.execute("DROP SCHEMA IF EXISTS wal2lake CASCADE")

    def groups(self) -> list[GroupRecord]:
        with self._use() as connection:
            rows = connection.execute("SELECT * FROM wal2lake.groups ORDER BY name").fetchall()
        return [
            GroupRecord(
                name=row["name"], state=GroupState(row["state"]), slot=row["slot"], capture=row["capture"],
                holder=row["holder"], logged_lsn=_lsn(row["logged_lsn"]), error=row["error"], remedy=row["remedy"],
                warning=row.get("warning"), changelog_bytes=row.get("changelog_bytes"), updated_at=row["updated_at"],
            )
            for row in rows
        ]  # fmt: skip

    def holder(self, group: str) -> str | None:
        """Who runs a group now; None if nobody does."""
        with self._use() as connection:
            return _holder(connection, group)

    def save_group(self, group: GroupRecord) -> None:
        with self._use() as connection:
            connection.execute(
                """
                INSERT INTO wal2lake.groups
                    (name, state, holder, slot, capture, logged_lsn, error, remedy, warning, changelog_bytes)
                VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
                ON CONFLICT (name) DO UPDATE SET state = excluded.state, holder = excluded.holder,
                    slot = excluded.slot, capture = excluded.capture,
                    logged_lsn = coalesce(excluded.logged_lsn, groups.logged_lsn),
                    error = excluded.error, remedy = excluded.remedy, warning = excluded.warning,
                    changelog_bytes = excluded.changelog_bytes, updated_at = now()
                """,
                [
                    group.name, group.state, group.holder, group.slot, group.capture,
                    _text(group.logged_lsn), group.error, group.remedy, group.warning, group.changelog_bytes,
                ],
            )  # fmt: skip

    def tables(self, group: str | None = None) -> list[TableRecord]:
        with self._use() as connection:
            rows = connection.execute(
                "SELECT * FROM wal2lake.tables WHERE %(group)s::text IS NULL OR group_name = %(group)s"
                " ORDER BY group_name, schema_name, table_name",
                {"group": group},
            ).fetchall()
        return [_table_record(row) for row in rows]

    def save_tables(self, tables: Iterable[TableRecord]) -> None:
        """Write records, in one statement however many there are."""
        values = [
            {
                **{name: _json(value) for name, value in vars(table).items() if name != "id"},
                "schema": table.id.schema, "name": table.id.name,
            }
            for table in tables
        ]  # fmt: skip
        if values:
            with self._use() as connection:
                connection.execute(_SAVE_TABLES, [Jsonb(values)])

    def forget_tables(self, group: str, oids: Iterable[int]) -> None:
        with self._use() as connection:
            connection.execute(
                "DELETE FROM wal2lake.tables WHERE group_name = %s AND oid = ANY (%s::oid[])", [group, list(oids)]
            )

    def want_resync(self, tables: Iterable[TableRecord]) -> datetime | None:
        """Ask for a fresh copy; a running process is woken, another does it at its next start. When it was asked."""
        with self._use() as connection, connection.transaction():
            row = connection.execute("SELECT clock_timestamp() AS now").fetchone()
            for table in tables:
                connection.execute(
                    "UPDATE wal2lake.tables SET resync_wanted = %s WHERE group_name = %s AND oid = %s",
                    [row and row["now"], table.group, table.oid],
                )
            connection.execute(sql.SQL("NOTIFY {}").format(sql.Identifier(CHANNEL)))
        return row["now"] if row else None

    def wanted_resyncs(self, group: str) -> dict[int, datetime]:
        """Tables that want a fresh copy, and since when; a table that is new here is one of them."""
        with self._use() as connection:
            rows = connection.execute(
                "SELECT oid, resync_wanted FROM wal2lake.tables WHERE group_name = %s AND resync_wanted IS NOT NULL",
                [group],
            ).fetchall()
        return {int(row["oid"]): row["resync_wanted"] for row in rows}

    def resync_done(self, group: str, oid: int, wanted: datetime | None) -> None:
        """Said only after the copy is committed, so that a crash before it copies again."""
        with self._use() as connection:
            connection.execute(
                "UPDATE wal2lake.tables SET resync_wanted = NULL"
                " WHERE group_name = %s AND oid = %s AND resync_wanted <= %s",
                [group, oid, wanted],
            )

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _use(self) -> Iterator[psycopg.Connection[dict[str, Any]]]:
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = _connect(self.dsn, self._timeout, "wal2lake state")
            try:
                with bounded(self._connection, PATIENCE_SECONDS):
                    yield self._connection
            except psycopg.OperationalError as error:
                self._connection.close()
                self._connection = None
                raise ConnectionFailed(server="the state store", cause=_first_line(error)) from error


class GroupLease:
    """The right to run a group: an advisory lock held by a session of its own, which also listens for NOTIFY."""

    def __init__(self, dsn: str, group: str, connect_timeout: float = 10) -> None:
        self._dsn, self._group, self._timeout = dsn, group, connect_timeout
        self._connection: psycopg.Connection[dict[str, Any]] | None = None
        self.holder = f"wal2lake on {socket.gethostname()}, process {os.getpid()}"

    def take(self) -> None:
        """Hold the group, or raise GroupHeld with the holder's name."""
        connection = _connect(self._dsn, self._timeout, self.holder)
        row = connection.execute("SELECT pg_try_advisory_lock(%s, %s) AS held", _lock_key(self._group)).fetchone()
        if not row or not row["held"]:
            holder = _holder(connection, self._group) or "another process"
            connection.close()
            raise GroupHeld(group=self._group, holder=holder)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
        self._connection = connection

    def wait(self, seconds: float) -> bool:
        """Wait for a NOTIFY; True if one came. A lost session is taken anew, or raises GroupHeld."""
        if self._connection is None or self._connection.closed:
            self.take()
        connection = self._connection
        assert connection is not None
        try:
            with bounded(connection, seconds + PATIENCE_SECONDS):
                notified = any(True for _ in connection.notifies(timeout=seconds, stop_after=1))
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            self.release()
            return False
        return notified

    @property
    def held(self) -> bool:
        return self._connection is not None

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _lock_key(group: str) -> list[int]:
    return [_LOCK_CLASS, zlib.crc32(group.encode()) & 0x7FFFFFFF]


def _holder(connection: psycopg.Connection[dict[str, Any]], group: str) -> str | None:
    """The process that holds a group, by the name that its session gives itself; None if nobody does."""
    row = connection.execute(
        """
        SELECT coalesce(a.application_name, 'another process') || ' (backend ' || l.pid || ')' AS holder
        FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.classid = %s AND l.objid = %s AND l.granted
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        """,
        _lock_key(group),
    ).fetchone()
    return str(row["holder"]) if row else None


def _connect(dsn: str, timeout: float, application: str) -> psycopg.Connection[dict[str, Any]]:
    try:
        return psycopg.connect(
            dsn, autocommit=True, row_factory=dict_row, connect_timeout=max(2, round(timeout)),
            application_name=application[:63], keepalives_idle=15, keepalives_interval=5, keepalives_count=3,
        )  # fmt: skip
    except psycopg.OperationalError as error:
        raise ConnectionFailed(server="the state store", cause=_first_line(error)) from error


def _table_record(row: dict[str, Any]) -> TableRecord:
    return TableRecord(
        group=row["group_name"],
        oid=int(row["oid"]),
        id=TableId(row["schema_name"], row["table_name"]),
        state=TableState(row["state"]),
        mode=Mode(row["mode"]),
        applied_lsn=_lsn(row["applied_lsn"]),
        **{
            name: row[name]
            for name in (
                "rows", "changes_applied", "last_commit_at", "behind_since", "error", "remedy", "retry_at", "failures"
            )
        },
    )  # fmt: skip


def _first_line(error: psycopg.Error) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _lsn(value: str | None) -> Lsn | None:
    return None if value is None else Lsn.parse(value)


def _text(value: Lsn | None) -> str | None:
    return None if value is None else str(value)


def _json(value: object) -> object:
    match value:
        case Lsn():
            return str(value)
        case datetime():
            return value.isoformat()
        case str():
            # The one character that neither jsonb nor text can hold.
            return value.replace("\0", "")
        case _:
            return value
