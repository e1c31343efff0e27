"""The throw-away server of the demo and the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from servers import Database, fresh_database
from waiting import wait_until
from wal2lake.demo.server import EmbeddedServer


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_wrong_password_is_refused(server: EmbeddedServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.dsn().replace(server.password, "wrong"))


def test_it_is_ready_for_logical_replication(database: Database) -> None:
    assert database.value("SHOW wal_level") == "logical"


def test_a_database_with_a_slot_that_is_being_read_is_dropped(server: EmbeddedServer) -> None:
    with fresh_database(server) as database:
        reader = database.connect()
        reader.execute("SELECT pg_create_logical_replication_slot('t', 'test_decoding', temporary => true)")
        database.execute("SELECT pg_create_logical_replication_slot('p', 'test_decoding')")
    with psycopg.connect(server.dsn()) as admin:
        left = admin.execute("SELECT count(*) FROM pg_database WHERE datname = %s", (database.name,)).fetchone()
        assert left == (0,)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's")
def test_it_ends_when_the_process_that_started_it_is_killed() -> None:
    script = (
        "import sys, pathlib; from wal2lake.demo.server import EmbeddedServer; "
        "print(EmbeddedServer(pathlib.Path(sys.argv[1])).start().pid, flush=True); sys.stdin.read()"
    )
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)  # noqa: PTH101 - open to the server's user
        owner = subprocess.Popen(
            [sys.executable, "-c", script, f"{directory}/postgres"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert owner.stdout is not None and owner.stdin is not None
        pid = int(owner.stdout.readline())
        assert _alive(pid)
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
        wait_until(lambda: not _alive(pid), 20, "the server ends after its parent")
