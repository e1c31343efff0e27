"""Which wire a connection gets."""

from __future__ import annotations

from collections.abc import Callable

from psycopg import pq

from .contract import Said, Wire
from .libpq import Libpq
from .line import Line

_KERBEROS = b"SELECT encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_catalog.pg_backend_pid()"


def over(pgconn: pq.abc.PGconn, notice: Callable[[Said], None]) -> Wire:
    """The wire over a connection that waits for a command; `notice` is called with each notice of the server."""
    return Libpq(pgconn, notice) if encrypted(pgconn) else Line(pgconn, notice)


def encrypted(pgconn: pq.abc.PGconn) -> bool:
    """Whether libpq alone can read what comes. It knows that of TLS; of Kerberos the server does."""
    if pgconn.ssl_in_use:
        return True
    result = pgconn.exec_(_KERBEROS)
    return result.status != pq.ExecStatus.TUPLES_OK or result.get_value(0, 0) != b"f"
