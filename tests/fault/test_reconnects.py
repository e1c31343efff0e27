"""The source is down for a while during a run: it reconnects, nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored
from psycopg.conninfo import conninfo_to_dict

from proxy import Proxy
from servers import Database, fresh_database, running_server
from waiting import wait_until
from wal2lake.demo.server import HOST, EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("counters", "journal")


def _make(database: Database) -> None:
    database.execute(
        "CREATE TABLE counters (id int PRIMARY KEY, n int); CREATE TABLE journal (n int); ALTER TABLE journal REPLICA IDENTITY FULL;"
        "INSERT INTO counters SELECT i, 0 FROM generate_series(1, 10) i"
    )


def _change(database: Database) -> None:
    for _ in range(20):
        database.execute("UPDATE counters SET n = n + 1 WHERE id < 6; INSERT INTO journal SELECT n FROM counters")


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    with running_server() as running:
        yield running


@pytest.mark.parametrize("order", [signal.SIGINT, signal.SIGQUIT], ids=["in-good-order", "as-after-a-crash"])
def test_a_server_that_restarts(
    order: signal.Signals, own_server: EmbeddedServer, tmp_path: Path, spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    port = own_server.port
    monkeypatch.setattr("wal2lake.demo.server._free_port", lambda: port)
    with fresh_database(own_server) as database:
        _make(database)
        mirrored = Mirrored(database, tmp_path / "lake", spark)
        with mirrored.running():
            mirrored.is_streaming(*TABLES)
            _change(database)
            pid = own_server.pid
            assert pid is not None
            os.kill(pid, order)
            wait_until(lambda: own_server.pid is None, 30, "the server ends")
            own_server.stop()
            database.close()
            own_server.start()
            _change(database)
            mirrored.follows(*TABLES)
        mirrored.catches_up(*TABLES)


def test_a_connection_that_is_cut_again_and_again(database: Database, tmp_path: Path, spark: SparkSession) -> None:
    _make(database)
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    with mirrored.running():
        mirrored.is_streaming(*TABLES)
        for _ in range(3):
            _change(database)
            cut = wait_until(
                lambda: database.rows(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active",
                    [mirrored.slot],
                ),
                30,
                "the slot is read",
            )
            assert cut == [(True,)]
            _change(database)
        mirrored.follows(*TABLES)
        # Every session of the mirror, its state store's and its lease's too.
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'wal2lake%' AND datname = current_database()"
        )
        _change(database)
        mirrored.follows(*TABLES)


class _MendedProxy(Proxy):
    """A proxy whose deafness passes; what was said meanwhile arrives late."""

    def hear(self) -> None:
        self._hearing.set()


def _through(proxy: Proxy, database: Database) -> dict[str, str]:
    port = conninfo_to_dict(database.dsn)["port"]
    return {"dsn": database.dsn.replace(f":{port}/", f":{proxy.port}/")}


@pytest.mark.slow
def test_a_network_that_is_silent_for_longer_than_is_borne(
    database: Database, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    _make(database)
    with _MendedProxy(HOST, database.server.port) as proxy:
        mirrored = Mirrored(database, tmp_path / "lake", spark, source=_through(proxy, database))
        with mirrored.running():
            mirrored.is_streaming(*TABLES)
            proxy.go_deaf()
            _change(database)
            wait_until(lambda: "capture of group" in caplog.text, 150, "capture gives the connection up")
            proxy.hear()
            mirrored.follows(*TABLES)


@pytest.mark.slow
def test_a_run_that_is_stopped_while_the_network_is_silent_ends_and_loses_nothing(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    _make(database)
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up(*TABLES)
    _change(database)
    with Proxy(HOST, database.server.port) as proxy:
        mirrored.configure(source=_through(proxy, database))
        with mirrored.running():
            mirrored.is_streaming(*TABLES)
            proxy.go_deaf()
            _change(database)
    mirrored.configure(source={})
    mirrored.catches_up(*TABLES)
