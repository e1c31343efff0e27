"""A session with the state store, opened on first use and again when lost, and conversions of values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from ...errors import ConnectionFailed, SourceError, SourceRefused
from ...position import Lsn
from ...schema import TableId
from ...source.sessions import alive, bounded, connection_failed, ordinary_session, parameters, place
from .queries import query

CHANNEL = "wal2lake"
PATIENCE_SECONDS = 15.0
ENDING_SECONDS = 2.0

Session = psycopg.Connection[dict[str, Any]]
NOTIFY = sql.SQL("NOTIFY {}").format(sql.Identifier(CHANNEL))
LISTEN = sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL))


class StoreSession:
    """Thread-safe; reconnects after a lost connection."""

    def __init__(self, dsn: str, connect_timeout: float = 10, pooler: bool = False) -> None:
        """`pooler`: the DSN connects to one in transaction mode."""
        self.dsn, self.pooler = dsn, pooler
        self._timeout = connect_timeout
        self._patience = PATIENCE_SECONDS
        self._lock = threading.Lock()
        self._connection: Session | None = None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def use(self) -> Iterator[Session]:
        with self._lock:
            if self._connection is not None and not alive(self._connection):
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = open_session(self.dsn, self._timeout, "wal2lake state", self.pooler)
            try:
                with translated(), bounded(self._connection, self._patience):
                    yield self._connection
            except ConnectionFailed:
                self._connection.close()
                self._connection = None
                raise

    def limit_waits(self) -> None:
        self._timeout = self._patience = ENDING_SECONDS

    @contextmanager
    def _own_session(self) -> Iterator[Session]:
        with open_session(self.dsn, self._timeout, "wal2lake state", self.pooler) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction."""
        with self.use() as connection, connection.transaction():
            yield connection

    @contextmanager
    def telling(self) -> Iterator[Session]:
        """A transaction that notifies running processes at its end."""
        with self.writing() as connection:
            yield connection
            connection.execute(NOTIFY)
            # For those who can't listen.
            connection.execute(query("count_request"))


@contextmanager
def translated() -> Iterator[None]:
    """Raise psycopg's errors as ours, so that each ends only the work in which it occurred."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceRefused(operation="using", object="schema wal2lake", cause=_primary(error)) from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        # The server has become a standby: the next session may find the new primary.
        raise ConnectionFailed(
            server="the state store", cause=_primary(error),
            remedy="check that [state] dsn, or else [source] dsn, names the primary; with several hosts, add"
            " target_session_attrs=read-write",
        ) from error  # fmt: skip
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise ConnectionFailed(server="the state store", cause=first_line(error)) from error
    except psycopg.Error as error:
        raise SourceError(operation="using the state store", cause=_primary(error)) from error


def _primary(error: psycopg.Error) -> str:
    return error.diag.message_primary or type(error).__name__


def open_session(dsn: str, timeout: float, application: str, pooler: bool = False) -> Session:
    """A session with the settings of all our sessions; times are in UTC."""
    given = parameters(dsn, timeout, application, "state.dsn")
    quick = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}
    try:
        connection = ordinary_session({**given, **quick}, max(2, timeout), pooler)
    except psycopg.OperationalError as error:
        raise connection_failed(f"{place(given)} (the state store)", str(error), given.get("user")) from error
    connection.row_factory = dict_row  # type: ignore[assignment]  # the type of its rows changes with it
    return cast(Session, connection)


def first_line(error: psycopg.Error) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def lsn(value: str | None) -> Lsn | None:
    return None if value is None else Lsn.parse(value)


def text(value: Lsn | None) -> str | None:
    return None if value is None else str(value)


def table_id(schema: str | None, name: str | None) -> TableId | None:
    return None if schema is None or name is None else TableId(schema, name)


def jsonable(value: object) -> object:
    match value:
        case Lsn():
            return str(value)
        case datetime():
            return value.isoformat()
        case str():
            # NUL is the only character that neither jsonb nor text can hold.
            return value.replace("\0", "")
        case _:
            return value
