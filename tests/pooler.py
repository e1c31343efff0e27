"""PgBouncer in transaction mode before a test's server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from servers import Database
from waiting import wait_until

FOUND = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
needed = pytest.mark.skipif(FOUND is None, reason="needs PgBouncer: apt-get install pgbouncer")


class Pooler:
    def __init__(self, database: Database, directory: Path) -> None:
        given = conninfo_to_dict(database.dsn)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.dsn = make_conninfo(database.dsn, host="127.0.0.1", port=str(self._port))
        users = directory / "users.txt"
        users.write_text(f'"{given["user"]}" "{given.get("password", "")}"\n', "utf-8")
        self._file = directory / "pgbouncer.ini"
        self._file.write_text(
            f"[databases]\n* = host={given['host']} port={given['port']}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self._port}\nunix_socket_dir =\npool_mode = transaction\nauth_type = trust\n"
            f"auth_file = {users}\nignore_startup_parameters = extra_float_digits\ndefault_pool_size = 30\n"
            "max_client_conn = 200\n",
            "utf-8",
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert FOUND is not None
        # It does not run as root.
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [FOUND, *user, str(self._file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._answers, 20, "the pooler answers")

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.dsn):
            return True
        return False

    def kill(self) -> None:
        """End it at once, with all connections through it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def pooled(database: Database) -> Iterator[Pooler]:
    # A directory that another user can read.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        pooler = Pooler(database, directory)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.kill()
