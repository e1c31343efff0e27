"""The sessions of a group's run with its database: one, opened on first use and again when lost, and extra ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar

from ..config import Config, GroupConfig
from ..errors import ConnectionFailed
from ..installation import Installation
from .model import SourceIdentity
from .publishing import publication, slot
from .sessions.connect import Connection, alive, bounded, connect, explained, interrupt
from .sessions.server import server_facts

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""limit of a query on the catalog"""
LOCKED_SECONDS = 5.0
"""seconds to wait for locks of other sessions before SourceBusy is raised"""


class Asking:
    """What a group's run asks its database, and what its objects there are called. Thread-safe."""

    def __init__(self, config: Config, group: GroupConfig) -> None:
        self._config, self._group = config, group
        self._settings = config.tables_of(group)
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._sessions: set[Connection] = set()
        """those that are open at the moment"""
        self._interrupted = threading.Event()
        self._identity: SourceIdentity | None = None

    def identity(self) -> SourceIdentity:
        if self._identity is None:
            facts = self._ask(server_facts)
            self._identity = SourceIdentity(facts.system_identifier, facts.database_oid, facts.database)
        return self._identity

    @property
    def slot_name(self) -> str:
        """The slot of the group's change log, or the one that it will have."""
        return self.installation.slot(self._group.name) or slot.slot_name(self._group.name, self.identity().database)

    @property
    def installation(self) -> Installation:
        return Installation.of(self._config.changelog_path)

    @property
    def _publications(self) -> tuple[str, str]:
        return publication.publication_name(self._group.name), publication.append_name(self._group.name)

    def settled(self) -> str:
        """A moment of the server, for `passed`."""
        # An xid of its own: running writers may have xids above the xmax of a snapshot.
        return str(self._ask(lambda c: _one(c, "SELECT pg_current_xact_id()::text")))

    def passed(self, moment: str) -> bool:
        """Whether every transaction that was open at a moment has ended."""
        return bool(
            self._ask(lambda c: _one(c, "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::text::xid8", [moment]))
        )

    def interrupt(self) -> None:
        """Cancel the running query and refuse further ones: the group is about to end. For any thread."""
        self._interrupted.set()
        for connection in list(self._sessions):
            interrupt(connection)

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._sessions.discard(self._connection)
            self._connection = None

    def _connect(self) -> Connection:
        if self._interrupted.is_set():
            raise ConnectionFailed(server="the source", cause="the run is about to end")
        connection = connect(self._config.source, self._group.name)
        self._sessions.add(connection)
        return connection

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """An extra session, for queries that take long."""
        with self._connect() as connection:
            try:
                yield connection
            finally:
                self._sessions.discard(connection)

    def _ask(self, question: Callable[[Connection], T]) -> T:
        with self._lock:
            if self._connection is None or not alive(self._connection) or self._interrupted.is_set():
                self._hang_up()
                self._connection = self._connect()
            try:
                with bounded(self._connection, PATIENCE_SECONDS):
                    return question(self._connection)
            except ConnectionFailed:
                self._hang_up()
                raise


def _one(connection: Connection, question: LiteralString, values: Sequence[Any] = ()) -> Any:
    with explained("reading", "the running transactions"):
        row = connection.execute(question, values).fetchone()
    return row[0] if row is not None else None
