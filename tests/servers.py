"""The PostgreSQL of the tests: one server for the run, a database for each test."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from waiting import wait_until
from wal2lake.demo.server import EmbeddedServer, find_binaries

BINARIES_VARIABLE = "WAL2LAKE_TEST_PG_BIN"
_QUICK_LOGINS = {"scram_iterations": "1"}
"""Thousands of connections are made, and most by a JVM that compiles little."""
_numbers = itertools.count(1)


@cache
def server_major() -> int:
    """The major version of the server that the tests run."""
    postgres = _binaries() / "postgres"
    told = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True).stdout
    return int(told.split()[2].split(".")[0])


def can_declare(kind: str) -> bool:
    """Whether the server knows a type: numeric with a scale below zero or above its precision came with 15."""
    form = re.match(r"numeric\((\d+),(-?\d+)\)", kind)
    return form is None or 0 <= int(form[2]) <= int(form[1]) or server_major() >= 15


def has_plugin(name: str) -> bool:
    """Whether the server of the tests has an output plugin."""
    home = _binaries().parent
    return any((place / f"{name}.so").exists() for place in (home / "lib", home / "lib" / "postgresql"))


def require_plugin(name: str) -> None:
    """Skip the test where the server of the tests does not have an output plugin."""
    if name != "pgoutput" and not has_plugin(name):
        pytest.skip(f"PostgreSQL {server_major()} of the tests has no output plugin {name}; see: make test-plugins")


def _binaries() -> Path:
    given = os.environ.get(BINARIES_VARIABLE)
    return Path(given) if given else find_binaries()


@cache
def _trusted_plugins() -> dict[str, str]:
    """The setting that lists output plugins, on servers of which the minor version has it."""
    told = subprocess.run([_binaries() / "postgres", "--describe-config"], capture_output=True, text=True, check=True)
    known = any(line.startswith("output_plugin_libraries\t") for line in told.stdout.splitlines())
    return {"output_plugin_libraries": "pgoutput, test_decoding, wal2json"} if known else {}


def make_server(directory: Path) -> EmbeddedServer:
    """A server that is quick rather than safe; WAL2LAKE_TEST_PG_BIN names the binaries of another major version."""
    binaries = os.environ.get(BINARIES_VARIABLE)
    return EmbeddedServer(
        directory,
        binaries=Path(binaries) if binaries else None,
        max_connections="200",
        max_wal_senders="60",
        max_replication_slots="60",
        shared_buffers="128MB",
        max_wal_size="4GB",
        max_prepared_transactions="5",
        autovacuum="off",
        **_QUICK_LOGINS if server_major() >= 16 else {},
        **_trusted_plugins(),
    )


@contextmanager
def running_server() -> Iterator[EmbeddedServer]:
    """A server in a directory of its own, which goes with it."""
    # Not in pytest's directory: that is closed to the user whom the server runs as when the tests run as root.
    directory = Path(tempfile.mkdtemp(prefix="wal2lake-test-"))
    directory.chmod(0o711)
    try:
        with make_server(directory / "postgres") as running:
            _store_password_anew(running)
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _store_password_anew(server: EmbeddedServer) -> None:
    """The superuser's password was stored before the server had its settings."""
    dsn = server.dsn("postgres")
    password = psycopg.conninfo.conninfo_to_dict(dsn)["password"]
    with psycopg.connect(dsn) as connection:
        connection.execute(sql.SQL("ALTER ROLE CURRENT_USER PASSWORD {}").format(sql.Literal(password)))


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


class Database:
    """A database of one test, with the superuser's rights."""

    def __init__(self, server: EmbeddedServer, name: str) -> None:
        self.server = server
        self.name = name
        self._open: list[psycopg.Connection[Any]] = []

    @property
    def dsn(self) -> str:
        return self.server.dsn(quote(self.name))

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A connection of its own, which is closed when the test ends."""
        connection = psycopg.connect(self.dsn, autocommit=autocommit)
        self._open.append(connection)
        return connection

    def execute(self, statements: str, parameters: Sequence[Any] | None = None) -> None:
        """Run one statement, or several without parameters: then they are one transaction."""
        self._connection().execute(statements.encode(), parameters)

    def rows(self, query: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return self._connection().execute(query.encode(), parameters).fetchall()

    def value(self, query: str, parameters: Sequence[Any] | None = None) -> Any:
        """The one value that a query gives."""
        ((value,),) = self.rows(query, parameters)
        return value

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()

    def _connection(self) -> psycopg.Connection[Any]:
        if not self._open or self._open[0].closed:
            self._open.insert(0, psycopg.connect(self.dsn, autocommit=True))
        return self._open[0]


@contextmanager
def fresh_database(server: EmbeddedServer, template: str = "template1") -> Iterator[Database]:
    """Make a database, and drop it afterwards with all its slots, whoever still reads them."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        # The other strategy, new in 15, writes each block to the WAL, where every open slot has to read it.
        admin.execute(made + sql.SQL(" STRATEGY file_copy") if server_major() >= 15 else made)
    database = Database(server, name)
    try:
        yield database
    finally:
        database.close()
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            _drop(admin, name)


def _drop(admin: psycopg.Connection[Any], name: str) -> None:
    # A reader that reconnects would take its slot again.
    admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))

    def without_slots() -> bool:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        slots = admin.execute(
            "SELECT slot_name, active OR temporary FROM pg_replication_slots WHERE database = %s", (name,)
        ).fetchall()
        for slot, busy in slots:
            if not busy:
                admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        return not any(busy for _, busy in slots)

    wait_until(without_slots, 20, f"the replication slots of {name} are released")
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def nobody_answers(database: Database) -> Iterator[None]:
    """Commits wait for a synchronous standby that is not there."""
    database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    database.execute("SELECT pg_reload_conf()")
    wait_until(lambda: database.rows("SHOW synchronous_standby_names") == [("nobody",)], 10, "the setting")
    try:
        yield
    finally:
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")
        database.rows("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
