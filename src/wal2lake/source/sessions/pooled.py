"""A session through a pooler in transaction mode: each transaction may be on another server process.

So nothing of a session is relied on: every transaction sets what it needs for itself, and nothing is prepared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq

from . import session


class PooledConnection(psycopg.Connection[Any]):
    """In autocommit mode, a statement outside of a transaction becomes a transaction of its own."""

    def execute(self, *arguments: Any, **options: Any) -> psycopg.Cursor[Any]:
        if self.info.transaction_status != pq.TransactionStatus.IDLE:
            return super().execute(*arguments, **options)
        if self.autocommit:
            with self.transaction():
                return super().execute(*arguments, **options)
        self._set()
        return super().execute(*arguments, **options)

    @contextmanager
    def transaction(self, *arguments: Any, **options: Any) -> Iterator[psycopg.Transaction]:
        outermost = self.info.transaction_status == pq.TransactionStatus.IDLE
        with super().transaction(*arguments, **options) as transaction:
            if outermost:
                self._set()
            yield transaction

    def _set(self) -> None:
        super().execute(session.local(self.info.server_version).encode())


def parameters(given: dict[str, Any]) -> dict[str, Any]:
    """Those of a session, without the ones that a pooler refuses."""
    return {name: value for name, value in given.items() if name != "options"}
