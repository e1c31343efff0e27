"""Chooses the wire of a connection."""

from __future__ import annotations

from collections.abc import Callable

from psycopg import pq

from .contract import Said, Wire
from .libpq import Libpq
from .line import Line

_KERBEROS = b"SELECT encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_catalog.pg_backend_pid()"


def over(pgconn: pq.abc.PGconn, notice: Callable[[Said], None]) -> Wire:
    """The wire for a connection that is ready for a command; `notice` is called with each notice of the server."""
    return Libpq(pgconn, notice) if encrypted(pgconn) else Line(pgconn, notice)


def encrypted(pgconn: pq.abc.PGconn) -> bool:
    """Whether only libpq can read the connection. libpq knows about TLS; about Kerberos the server is asked."""
    if pgconn.ssl_in_use:
        return True
    result = pgconn.exec_(_KERBEROS)
    return result.status != pq.ExecStatus.TUPLES_OK or result.get_value(0, 0) != b"f"
