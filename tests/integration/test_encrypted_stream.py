"""The replication stream over a connection that libpq encrypts. Needs a server that is built with TLS."""

from __future__ import annotations

import pytest

from servers import Database, fresh_database, tls_server
from waiting import wait_until
from wal2lake.config import SourceConfig
from wal2lake.position import Lsn
from wal2lake.source import connect, mark
from wal2lake.source.publishing import slot
from wal2lake.source.streaming.stream import ReplicationStream

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
