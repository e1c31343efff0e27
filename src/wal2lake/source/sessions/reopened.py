"""A session for short queries, which is opened on first use, and again when it is lost."""

from __future__ import annotations

from ...config import SourceConfig
from .connect import Connection, alive, connect


class ReopenedSession:
    def __init__(self, source: SourceConfig, group: str, seconds: int) -> None:
        """`seconds`: limit for each statement."""
        self._source, self._group, self._timeout = source, group, f"SET statement_timeout = '{seconds}s'"
        self._conn: Connection | None = None

    def get(self) -> Connection:
        if self._conn is None or not alive(self._conn):
            self.close()
            self._conn = connect(self._source, self._group)
            self._conn.execute(self._timeout.encode())
        return self._conn

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
