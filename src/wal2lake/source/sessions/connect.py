"""Connections to PostgreSQL, and facts about the server.

Every session has the settings of `session.py`. Failures are raised as errors of wal2lake, none of which contains a
password.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...config import SourceConfig
from ...errors import ConfigError, ConnectionFailed, SourceBusy, SourceError, SourceRefused
from ...quoting import identifier
from . import hosts, pooled, session
from .pooled import PooledConnection

Connection = psycopg.Connection[tuple[Any, ...]]

_CANCEL_SECONDS = 1.0
_PASSED_ON = {"sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey"}


@cache
def query(name: str) -> bytes:
    """The text of `sql/<name>.sql`; the shared query of the partition tree is in a file of its own."""
    text = files("wal2lake.source").joinpath("sql", f"{name}.sql").read_bytes()
    return text.replace(b"{partition_tree}", query("partition_tree")) if b"{partition_tree}" in text else text


def parameters(dsn: str, timeout: float, application: str, option: str = "source.dsn") -> dict[str, Any]:
    """libpq's parameters for a session: the user's, overridden by ours."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ConfigError(
            field=option, cause="not a connection string",
            allowed="write it as postgresql://user:password@host:5432/database",
        ) from None  # fmt: skip
    return {
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
        **given,
        **hosts.writable(given),
        "keepalives": 1,
        "connect_timeout": max(2, math.ceil(timeout)),
        "application_name": application[:63],
        "client_encoding": "UTF8",
        "options": f"{given.get('options') or ''} {session.startup_options()}".strip(),
    }


def _source_parameters(source: SourceConfig, group: str | None = None) -> dict[str, Any]:
    application = f"wal2lake {group}" if group else "wal2lake"
    return parameters(source.dsn.get_secret_value(), source.connect_timeout, application)


def server_name(source: SourceConfig) -> str:
    """Host, port and database of the DSN, for messages."""
    return place(_source_parameters(source))


def place(given: Mapping[str, Any]) -> str:
    """Host, port and database of libpq's parameters."""
    server = f"{given.get('host') or given.get('hostaddr') or 'the local socket'}:{given.get('port') or 5432}"
    return f"{server}/{given['dbname']}" if given.get("dbname") else server


def connect(source: SourceConfig, group: str | None = None) -> Connection:
    """An ordinary session, in autocommit mode."""
    given = _source_parameters(source, group)
    try:
        return ordinary_session(given, source.connect_timeout, source.pooler)
    except psycopg.OperationalError as error:
        raise connection_failed(server_name(source), str(error), given.get("user")) from None


def ordinary_session(parameters: dict[str, Any], timeout: float, pooler: bool = False) -> Connection:
    """A session with our settings, in autocommit mode. Raises psycopg's errors, and SourceRefused."""
    if pooler:
        return PooledConnection.connect(**pooled.parameters(parameters), autocommit=True, prepare_threshold=None)
    conn = psycopg.connect(**parameters, autocommit=True)
    try:
        with bounded(conn, timeout):
            _pin(lambda statement: conn.execute(statement.encode()).fetchall())
    except BaseException:
        conn.close()
        raise
    return conn


def _pin(ask: Callable[[str], Sequence[Sequence[str]]]) -> None:
    """Apply our settings to a session, and verify them."""
    if not (others := session.differing(ask(session.SHOW))):
        return
    ask(session.setting(others))
    if others := session.differing(ask(session.SHOW)):
        name, value = next(iter(others.items()))
        raise SourceRefused(
            operation=f"SET {name} = '{session.SETTINGS[name]}'", object="a session", cause=f"it still has '{value}'",
            remedy="connect to the server itself or through a pooler in session mode (pool_mode = session); for one in "
            "transaction mode set [source] pooler = true",
        )  # fmt: skip


def replication_connect(source: SourceConfig, group: str | None = None) -> pq.abc.PGconn:
    """A session with a walsender, for replication commands."""
    if source.pooler:
        raise ConfigError(
            field="[[groups]] capture", cause="a pooler in transaction mode has no replication connections",
            allowed='capture = "poll"; or a [source] dsn of the server itself, without pooler',
        )  # fmt: skip
    given = _source_parameters(source, group)
    said = []
    for attempt in hosts.attempts(given):
        try:
            return _replication_session(make_conninfo(**attempt, replication="database"), source.connect_timeout)
        except _NotConnected as error:
            said.append(str(error))
    raise connection_failed(server_name(source), "\n".join(said), given.get("user"))


_JUDGED_BY_ITSELF = ("REPLICATION", "replication role", "WAL sender", "max_wal_senders", "standby connections")


def replication_refused(source: SourceConfig) -> str | None:
    """Why there is no replication connection, other than for want of a privilege or of room; None if there is one."""
    try:
        replication_connect(source).finish()
    except (ConfigError, ConnectionFailed, SourceRefused) as error:
        cause = str(error.fields.get("cause", error))
        return None if any(words in cause for words in _JUDGED_BY_ITSELF) else cause
    return None


def _replication_session(conninfo: str, timeout: float) -> pq.abc.PGconn:
    deadline = time.monotonic() + timeout
    # psycopg's blocking call would hold the GIL until the server answers.
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        _complete(pgconn, deadline)
        _pin(lambda statement: _answer(pgconn, statement, deadline))
    except BaseException:
        pgconn.finish()
        raise
    return pgconn


class _NotConnected(Exception):
    """message of libpq"""


def _complete(pgconn: pq.abc.PGconn, deadline: float) -> None:
    state: int = pq.PollingStatus.WRITING
    while pgconn.status != pq.ConnStatus.BAD and state != pq.PollingStatus.OK:
        # libpq may replace the socket between two steps, when it tries the next address.
        _wait(pgconn, select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT, deadline)
        state = pgconn.connect_poll()
        if state == pq.PollingStatus.FAILED:
            break
    if pgconn.status != pq.ConnStatus.OK:
        raise _NotConnected(pgconn.get_error_message())


def _wait(pgconn: pq.abc.PGconn, event: int, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _NotConnected("timeout expired")
    poll = select.poll()
    poll.register(pgconn.socket, event)
    poll.poll(left * 1000)


def _answer(pgconn: pq.abc.PGconn, statement: str, deadline: float) -> list[tuple[str, ...]]:
    """The rows of a statement on a connection that psycopg's cursors can't use."""
    try:
        pgconn.send_query(statement.encode())
        rows: list[tuple[str, ...]] = []
        while True:
            while pgconn.is_busy():
                _wait(pgconn, select.POLLIN, deadline)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return rows
            if result.status != pq.ExecStatus.TUPLES_OK:
                raise _NotConnected(result.get_error_message())
            for row in range(result.ntuples):
                rows.append(tuple((result.get_value(row, i) or b"").decode() for i in range(result.nfields)))
    except psycopg.OperationalError as error:
        raise _NotConnected(str(error)) from None


def connection_failed(server: str, message: str, role: str | None = None) -> ConnectionFailed:
    """The error for a message of libpq, with its remedy."""
    # psycopg reports each address that it tried; the last line of the last attempt has the server's message.
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = [line for line in lines if "failed: " in line or "resolve" in line or "timeout" in line] or lines
    cause = told[-1].rpartition("failed: ")[2].replace("FATAL:  ", "") if told else "no answer"
    remedy = _connection_remedy(cause, role)
    return ConnectionFailed(server=server, cause=cause, **({"remedy": remedy} if remedy else {}))


def _connection_remedy(cause: str, role: str | None) -> str | None:
    if "no password supplied" in cause or "password authentication failed" in cause:
        return "correct user and password in the dsn, or set PGPASSWORD"
    if "no pg_hba.conf entry" in cause:
        return "allow this host in the server's pg_hba.conf, then: SELECT pg_reload_conf()"
    if "max_wal_senders" in cause or "standby connections" in cause:
        return "ALTER SYSTEM SET max_wal_senders = 20; -- then restart PostgreSQL"
    if 'invalid value for parameter "TimeZone"' in cause or 'invalid value for parameter "DateStyle"' in cause:
        return "unset PGTZ and PGDATESTYLE in the environment of wal2lake: its sessions do not need them"
    return _role_remedy(cause, identifier(role or "<the user of the dsn>")) or _certificate_remedy(cause)


def _role_remedy(cause: str, role: str) -> str | None:
    if any(words in cause for words in ("REPLICATION", "replication role", "WAL sender")):
        return f"ALTER ROLE {role} REPLICATION"
    if (denied := re.search('permission denied for database "(.*)"', cause)) is not None:
        return f"GRANT CONNECT ON DATABASE {identifier(denied[1])} TO {role};"
    return f"ALTER ROLE {role} LOGIN;" if "is not permitted to log in" in cause else None


def _certificate_remedy(cause: str) -> str | None:
    if "does not match host name" in cause:
        return "use a host name in the dsn that is in the server's certificate, or sslmode=verify-ca"
    if "root certificate file" in cause or "certificate verify failed" in cause:
        return (
            "set sslrootcert in the dsn to the file with the certificate authority of the server "
            "(sslrootcert=system: the authorities that this machine trusts)"
        )
    if "server does not support SSL" in cause:
        return "turn SSL on in the server (ssl = on in postgresql.conf), or set sslmode=prefer in the dsn"
    if "private key file" in cause:
        return "set sslkey in the dsn to the private key of sslcert, readable by this user alone (chmod 600)"
    if "certificate" in cause or "unknown ca" in cause:
        return "set sslcert and sslkey in the dsn to a certificate that the server accepts, and its private key"
    return None


@contextmanager
def bounded(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Disconnect if the server takes longer: a network failure must not delay a stop."""
    watchdog = threading.Timer(seconds, hang_up, [connection])
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def alive(connection: psycopg.Connection[Any]) -> bool:
    """Whether an idle session is still connected, by a check of its socket."""
    poll = select.poll()
    try:
        poll.register(connection.fileno(), select.POLLIN)
        # Behind its last words is the end of the connection.
        while poll.poll(0) and connection.pgconn.status == pq.ConnStatus.OK:
            connection.pgconn.consume_input()
    except (psycopg.Error, OSError):
        return False
    return connection.pgconn.status == pq.ConnStatus.OK


def interrupt(connection: psycopg.Connection[Any]) -> None:
    """Cancel what a session is doing, from another thread: at the server, and the wait for its answer."""
    with contextlib.suppress(psycopg.Error, OSError):
        connection.cancel_safe(timeout=_CANCEL_SECONDS)
    hang_up(connection)


def hang_up(connection: psycopg.Connection[Any]) -> None:
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


@contextmanager
def explained(operation: str, object: str, remedy: str | None = None) -> Iterator[None]:
    """Raise psycopg's errors as ours. Only the primary message is kept: details may hold row values."""
    hint = {"remedy": remedy} if remedy else {}
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        cause = error.diag.message_primary or "permission denied"
        raise SourceRefused(operation=operation, object=object, cause=cause, **hint) from error
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise SourceBusy(operation=operation, object=object, cause="other sessions hold locks") from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        if error.sqlstate is None or error.sqlstate[:2] == "08" or error.sqlstate[:3] == "57P":
            cause = error.diag.message_primary or "the connection was lost"
            raise ConnectionFailed(server="the source", cause=f"{cause} while {operation} {object}") from error
        raise SourceError(operation=f"{operation} {object}", cause=_primary(error), **hint) from error
    except psycopg.Error as error:
        raise SourceError(operation=f"{operation} {object}", cause=_primary(error), **hint) from error


def _primary(error: psycopg.Error) -> str:
    return error.diag.message_primary or type(error).__name__


def jdbc(source: SourceConfig) -> tuple[str, dict[str, str]]:
    """URL and properties for the JDBC driver, from libpq's view of the DSN and environment.

    The driver sends its own TimeZone after `options`, so sessions must set UTC again.
    """
    with connect(source) as conn:
        info = conn.info
        host, port, dbname, user, password = info.host, info.port, info.dbname, info.user, info.password
        given = info.get_parameters()
    url = jdbc_url(host, port, dbname)
    properties = {
        "user": user, "ApplicationName": "wal2lake copy", "tcpKeepAlive": "true",
        "connectTimeout": str(max(2, math.ceil(source.connect_timeout))), "options": session.copy_options(),
        **({"password": password} if password else {}),
        **{theirs: given[ours] for ours, theirs in _PASSED_ON.items() if given.get(ours)},
    }  # fmt: skip
    if source.pooler:
        # A reader sets what it needs in its own transaction.
        del properties["options"]
        properties["prepareThreshold"] = "0"
    if properties.get("sslrootcert") == "system":
        del properties["sslrootcert"]
        properties["sslfactory"] = "org.postgresql.ssl.DefaultJavaSSLFactory"
    return url, properties


def jdbc_url(host: str, port: int, dbname: str) -> str:
    if not host or host.startswith(("/", "@")):
        raise ConfigError(
            field="source.dsn", cause="connects over a Unix socket, and Spark's JDBC needs TCP",
            allowed="name a host: postgresql://user:password@127.0.0.1:5432/database",
        )  # fmt: skip
    place = f"[{host}]" if ":" in host else host
    return f"jdbc:postgresql://{place}:{port}/{quote(dbname, safe='')}"
