"""Connection strings, read with libpq."""

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


def role_and_database(dsn: str) -> tuple[str | None, str | None]:
    """The role and the database that a connection string names."""
    from psycopg.conninfo import conninfo_to_dict

    named = conninfo_to_dict(dsn)
    user, database = named.get("user"), named.get("dbname")
    return (None if user is None else str(user)), (None if database is None else str(database))
