"""A DSN with several hosts: every kind of connection reaches the one that serves it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import psycopg
import pytest

from servers import Database, running_server
from wal2lake.config import SourceConfig
from wal2lake.source.sessions.connect import connect, jdbc, replication_connect
from wal2lake.state.postgres.connection import open_session


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def _behind(first: int, database: Database, **more: str) -> SourceConfig:
    given = psycopg.conninfo.conninfo_to_dict(database.dsn)
    dsn = psycopg.conninfo.make_conninfo(
        database.dsn, host=f"127.0.0.1,{given['host']}", port=f"{first},{given['port']}", **more
    )
    return SourceConfig(dsn=dsn, connect_timeout=1)


def _all_reach(source: SourceConfig, database: Database) -> None:
    port = str(psycopg.conninfo.conninfo_to_dict(database.dsn)["port"])
    with connect(source) as ordinary:
        assert str(ordinary.info.port) == port
    with open_session(source.dsn.get_secret_value(), 1, "test") as store:
        assert str(store.info.port) == port
    pgconn = replication_connect(source)
    try:
        assert pgconn.port.decode() == port
    finally:
        pgconn.finish()
    assert f":{port}/" in jdbc(source)[0]


def test_a_first_host_that_is_silent_is_passed_over(silent: int, database: Database) -> None:
    _all_reach(_behind(silent, database), database)


def test_a_first_host_that_is_read_only_is_passed_over(database: Database) -> None:
    with running_server() as other:
        with psycopg.connect(other.dsn(), autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("SET default_transaction_read_only = off")
            admin.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(database.name)))
            # Nothing but its sessions is to tell the two servers apart.
            password = psycopg.sql.Literal(database.server.password)
            admin.execute(psycopg.sql.SQL("ALTER ROLE CURRENT_USER PASSWORD {}").format(password))
        _all_reach(_behind(other.port, database, target_session_attrs="read-write"), database)
