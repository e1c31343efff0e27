"""The replication stream over a connection that libpq encrypts. Needs a server that is built with TLS."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from servers import Database, fresh_database, running_server
from waiting import wait_until
from wal2lake.config import SourceConfig
from wal2lake.demo.server import EmbeddedServer
from wal2lake.position import Lsn
from wal2lake.source import connect, mark, slot
from wal2lake.source.stream import ReplicationStream

SLOT = "wal2lake_s"


def test_a_connection_with_tls_is_read_by_libpq(database: Database) -> None:
    if not database.value("SHOW ssl_library"):
        pytest.skip("this PostgreSQL is built without TLS")
    with tls_server() as server, fresh_database(server) as encrypted:
        encrypted.execute("CREATE TABLE t (id int PRIMARY KEY, b bytea)")
        encrypted.execute("CREATE PUBLICATION p FOR TABLE t")
        source = SourceConfig(dsn=f"{encrypted.dsn}?sslmode=require")
        with slot.create(source, SLOT, "s") as held:
            at = held.snapshot.lsn
        encrypted.execute("INSERT INTO t SELECT i, repeat('x', 1000)::bytea FROM generate_series(1, 20000) i")
        with connect(source) as conn:
            end = mark(conn)
        with ReplicationStream(source, SLOT, "p", at, group="s") as stream:
            assert encrypted.value("SELECT ssl FROM pg_stat_ssl JOIN pg_replication_slots ON pid = active_pid")
            messages: list[bytes] = []

            def all_came() -> bool:
                messages.extend(stream.read(0.2))
                return stream.keepalive_lsn >= end

            wait_until(all_came, 20, "all to come")
            stream.acknowledge(end)
            stream.finish()
        assert sum(message[25:26] == b"I" for message in messages) == 20000
        slots = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
        assert Lsn.parse(encrypted.value(slots)) == end


@contextmanager
def tls_server() -> Iterator[EmbeddedServer]:
    with running_server() as server, psycopg.connect(server.dsn(), autocommit=True) as admin:
        key, certificate = (server.data / name for name in ("server.key", "server.crt"))
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True,
        )  # fmt: skip
        owner = server.data.stat()
        for each in (key, certificate):
            os.chown(each, owner.st_uid, owner.st_gid)
            each.chmod(0o600)
        admin.execute("ALTER SYSTEM SET ssl = on")
        admin.execute("SELECT pg_reload_conf()")
        wait_until(lambda: _takes_tls(server), 10, "TLS to be on")
        yield server


def _takes_tls(server: EmbeddedServer) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(f"{server.dsn()}?sslmode=require"):
        return True
    return False
