"""A place to measure on: an empty directory and a PostgreSQL in it, set up the way a small production server is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from wal2lake.demo.server import EmbeddedServer

DATABASE = "postgres"
SETTINGS: dict[str, Any] = {
    "fsync": "on",
    "full_page_writes": "on",
    "wal_level": "logical",
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
}


@dataclass(frozen=True)
class Ground:
    directory: Path
    server: EmbeddedServer
    connection: psycopg.Connection[Any]
    """autocommit"""

    @property
    def dsn(self) -> str:
        return self.server.dsn(DATABASE)

    def value(self, query: str) -> Any:
        row = self.connection.execute(query).fetchone()
        assert row is not None
        return row[0]

    def settle(self) -> None:
        """Let the server finish what a load has left to do, so that it does not happen while something is timed."""
        self.connection.execute("VACUUM (ANALYZE)")
        self.connection.execute("CHECKPOINT")


@contextmanager
def prepared() -> Iterator[Ground]:
    directory = Path(tempfile.mkdtemp(prefix="wal2lake-bench-"))
    # The server may run under another user, who has to get to its files.
    directory.chmod(0o711)
    try:
        with (
            EmbeddedServer(directory / "postgres", **SETTINGS) as server,
            psycopg.connect(server.dsn(DATABASE), autocommit=True) as connection,
        ):
            yield Ground(directory, server, connection)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
