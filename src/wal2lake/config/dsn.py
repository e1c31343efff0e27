"""Whether a connection string can be read. libpq decides."""

from __future__ import annotations


def dsn_is_valid(dsn: str) -> bool:
    """Whether libpq can read the connection string. Its own message may quote a password and is not passed on."""
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(dsn)
    except Error:
        return False
    return bool(dsn.strip())
