"""Replication slots: created over the replication protocol with an exported snapshot, inspected, dropped.

Snapshot and stream complement each other exactly: a transaction is in one of them. The snapshot lives until the next
command on the connection that exported it, so `HeldSnapshot` owns that connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import select
import time
from dataclasses import dataclass
from typing import NoReturn

import psycopg
from psycopg import pq, sql

from ... import quoting
from ...config import SourceConfig
from ...errors import ConnectionFailed, SlotInUse, SourceBusy, SourceError, SourceRefused
from ...position import Lsn
from ...quoting import identifier, literal
from ..model import ExportedSnapshot
from ..sessions.closing import Closing
from ..sessions.connect import Connection, connect, explained, query, replication_connect, server_name
from ..sessions.locking import PATIENT, OpenTransaction, Patience
from . import plugin

log = logging.getLogger(__name__)

OPTION_LIST_SINCE = 150000
FAILOVER_SINCE = 170000
NAME_LENGTH = 63
WAIT_REPORT_SECONDS = 5.0
STOP_LOOK_SECONDS = 0.5
CANCEL_SECONDS = 5.0


def slot_name(group: str, database: str) -> str:
    """The name of a group's new slot. Slots belong to the whole cluster, so the name includes the database.

    Names are unique: if a plain join of group and database would be ambiguous, the name has a hash of both, and a
    prefix that no plain name has.
    """
    plain = re.sub(r"[^a-z0-9_]", "_", database.lower())
    name = f"wal2lake_{group}_{plain}"
    if plain == database and "_" not in group and len(name) <= NAME_LENGTH:
        return name
    mark = f"_{hashlib.sha256(f'{group}/{database}'.encode()).hexdigest()[:12]}"
    return f"wal2lake__{group}_{plain}"[: NAME_LENGTH - len(mark)] + mark


@dataclass(frozen=True)
class SlotInfo:
    name: str
    plugin: str
    database: str
    temporary: bool
    active_pid: int | None
    confirmed_flush_lsn: Lsn | None
    restart_lsn: Lsn | None
    wal_status: str | None
    invalidation_reason: str | None
    retained_bytes: int | None
    holder: str | None
    """application name of the process that reads it"""

    @property
    def lost(self) -> str | None:
        """Why it can't be streamed from; None if it can."""
        if self.invalidation_reason:
            return f"was invalidated ({self.invalidation_reason})"
        if self.wal_status == "lost":
            return "was invalidated (its WAL was removed: max_slot_wal_keep_size)"
        return None


class HeldSnapshot(Closing):
    """An exported snapshot and its connection; closing it also drops a temporary slot."""

    def __init__(self, snapshot: ExportedSnapshot, pgconn: pq.abc.PGconn) -> None:
        self.snapshot = snapshot
        self._pgconn = pgconn

    @property
    def alive(self) -> bool:
        if self._pgconn.status != pq.ConnStatus.OK:
            return False
        try:
            self._pgconn.consume_input()
        except psycopg.Error:
            return False
        return self._pgconn.status == pq.ConnStatus.OK

    def close(self) -> None:
        self._pgconn.finish()


def create(
    source: SourceConfig, name: str, group: str, *, temporary: bool = False, patience: Patience = PATIENT,
    failover: bool = False,
) -> HeldSnapshot:  # fmt: skip
    """Create a slot and export the snapshot at which it begins. Waits for open transactions.

    Raises SourceBusy if the wait is stopped; then there is no slot.
    With `failover`, standbys that synchronise slots have it too (PostgreSQL 17 and newer).
    """
    pgconn = replication_connect(source, group)
    try:
        command = _create_command(pgconn.server_version, name, source.plugin, temporary, failover)
        row = _run(source, pgconn, command, name, patience)
    except BaseException as error:
        pgconn.finish()
        if isinstance(error, psycopg.Error):
            raise _broken(source, error) from error
        raise
    snapshot = ExportedSnapshot(row["snapshot_name"], Lsn.parse(row["consistent_point"]))
    log.info("slot %s created at %s", name, snapshot.lsn)
    return HeldSnapshot(snapshot, pgconn)


def create_through_sql(
    source: SourceConfig, name: str, group: str, *, patience: Patience = PATIENT, failover: bool = False
) -> Lsn:
    """Make a slot without a replication connection; its stream begins at the position that is returned.

    Raises SourceBusy if the waiting for transactions that are writing is to stop; there is no slot then.
    """
    with contextlib.closing(connect(source, group)) as conn:
        more = ", failover => true" if failover and conn.info.server_version >= FAILOVER_SINCE else ""
        command = (
            "SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot("  # noqa: S608 - quoted
            f"slot_name => {literal(name)}, plugin => {literal(source.plugin)}{more})"
        )
        try:
            row = _run(source, conn.pgconn, command.encode(), name, patience)
        except psycopg.Error as error:
            raise _broken(source, error) from error
    position = Lsn.parse(row["lsn"])
    log.info("slot %s created at %s", name, position)
    return position


def _broken(source: SourceConfig, error: psycopg.Error) -> ConnectionFailed:
    # libpq's own words: the connection broke while the answer was waited for.
    cause = next(iter(str(error).strip().splitlines()), "the connection was lost")
    return ConnectionFailed(server=server_name(source), cause=cause)


def _create_command(version: int, name: str, output_plugin: str, temporary: bool, failover: bool = False) -> bytes:
    kind = "TEMPORARY " if temporary else ""
    more = ", FAILOVER" if failover and not temporary and version >= FAILOVER_SINCE else ""
    export = f"(SNAPSHOT 'export'{more})" if version >= OPTION_LIST_SINCE else "EXPORT_SNAPSHOT"
    return f"CREATE_REPLICATION_SLOT {quoting.plain(name)} {kind}LOGICAL {output_plugin} {export}".encode()


def _run(source: SourceConfig, pgconn: pq.abc.PGconn, command: bytes, name: str, patience: Patience) -> dict[str, str]:
    pgconn.send_query(command)
    report_at = time.monotonic() + WAIT_REPORT_SECONDS
    while not _answered(pgconn, min(STOP_LOOK_SECONDS, max(0.0, report_at - time.monotonic()))):
        if patience.stopped():
            _cancel(pgconn)
            raise _open_transactions(source, name)
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + 2 * WAIT_REPORT_SECONDS
            error = _open_transactions(source, name)
            log.warning("%s", error)
            patience.on_wait(error)
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.TUPLES_OK:
        _refused(source, name, result, pgconn)
    return {_text(result.fname(i)): _text(result.get_value(0, i)) for i in range(result.nfields)}


def _untrusted(source: SourceConfig) -> str | None:
    with connect(source) as conn:
        return plugin.trusted(conn, source.plugin)


def _answered(pgconn: pq.abc.PGconn, seconds: float) -> bool:
    """Wait briefly; return whether the server has answered."""
    if pgconn.is_busy() and select.select([pgconn.socket], [], [], seconds)[0]:
        pgconn.consume_input()
    return not pgconn.is_busy()


def _cancel(pgconn: pq.abc.PGconn) -> None:
    """Cancel the command: a server process that waits for other transactions does not notice a closed connection."""
    with contextlib.suppress(psycopg.Error):
        pgconn.get_cancel().cancel()
        until = time.monotonic() + CANCEL_SECONDS
        while not _answered(pgconn, STOP_LOOK_SECONDS) and time.monotonic() < until:
            pass


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _open_transactions(source: SourceConfig, name: str) -> SourceBusy:
    """The error with the transactions that the creation of a slot waits for."""
    with connect(source) as conn, explained("reading", "the running transactions"):
        rows = conn.execute(query("slot_blockers")).fetchall()
    others = [OpenTransaction(*row[:4]) for row in rows]
    described = ", ".join(map(str, others))
    remedy = {"remedy": f"wait for their end, or end them, as in: {others[0].end}"} if others else {}
    return SourceBusy(
        operation="creating", object=f"replication slot {name}",
        cause=f"transactions are open: {described or 'unknown'}", **remedy,
    )  # fmt: skip


def _refused(source: SourceConfig, name: str, result: pq.abc.PGresult | None, pgconn: pq.abc.PGconn) -> NoReturn:
    state = _text(result.error_field(pq.DiagnosticField.SQLSTATE)) if result else ""
    cause = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) if result else pgconn.get_error_message()
    remedies = {
        "42710": f"SELECT pg_drop_replication_slot({literal(name)}); -- if nothing uses it",
        "53400": "ALTER SYSTEM SET max_replication_slots = 20; -- restart PostgreSQL; or drop unused slots",
        "55000": "ALTER SYSTEM SET wal_level = logical; -- then restart PostgreSQL",
        "42501": f"ALTER ROLE {identifier(_text(pgconn.user))} REPLICATION;",
        "58P01": plugin.install(source.plugin, pgconn.server_version),
    }
    if state == "42501" and (trust := _untrusted(source)):
        remedies[state] = trust
    if state in remedies:
        raise SourceRefused(
            operation="creating", object=f"replication slot {name}", cause=cause, remedy=remedies[state]
        )
    if not state or state[:2] in ("08", "57"):
        raise ConnectionFailed(server=server_name(source), cause=cause or "the connection was lost")
    raise SourceError(operation=f"creating replication slot {name}", cause=cause)


def info(conn: Connection, name: str) -> SlotInfo | None:
    """The slot; None if it does not exist."""
    with explained("reading", f"replication slot {name}"):
        row = conn.execute(query("slot"), {"name": name}).fetchone()
    if row is None:
        return None
    name, plugin, database, temporary, pid, confirmed, restart, *rest = row
    positions = [Lsn.parse(text) if text else None for text in (confirmed, restart)]
    return SlotInfo(name, plugin, database, temporary, pid, positions[0], positions[1], *rest)


def drop(conn: Connection, name: str, timeout: float = 10.0) -> bool:
    """Drop a slot of this database, after waiting for its reader to end. Returns whether it existed."""
    deadline = time.monotonic() + timeout
    while (slot := info(conn, name)) is not None:
        if slot.database != conn.info.dbname:
            raise SourceRefused(
                operation="dropping", object=f"replication slot {name}", cause=f"it is in database {slot.database}",
                remedy="give the group another name in [[groups]]",
            )  # fmt: skip
        if slot.active_pid is None:
            with explained("dropping", f"replication slot {name}"):
                statement = sql.SQL("SELECT pg_drop_replication_slot({})").format(sql.Literal(name))
                conn.execute(statement)
            return True
        if time.monotonic() > deadline:
            raise SlotInUse(slot=name, holder=slot.holder or f"process {slot.active_pid}", pid=slot.active_pid)
        # The server can't be made to wait for this; a walsender ends shortly after its connection.
        select.select([], [], [], 0.05)
    return False
