"""The state store in PostgreSQL: the `wal2lake` schema of the source database, or of another one (`[state] dsn`).

The process that runs a group holds an advisory lock on a session of its own, and receives NOTIFY.
"""

from __future__ import annotations

from typing import Any

import psycopg

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import SourceRefused
from ...installation import Installation
from ...position import Lsn
from ...quoting import identifier
from ..ownership import Owner, claim, require_owner
from ..ports import Lease, Listener
from .connection import Session, lsn
from .history import History
from .lease import PostgresLease, PostgresListener, holder
from .locks import CREATING, OWNING, lock_until_commit
from .migrate import LATEST, statements_after
from .moves import Moves
from .queries import query
from .records import Records
from .resyncs import Resyncs
from .row_lease import CountingListener, RowLease
from .specs import Specs


def logged_in(connection: psycopg.Connection[Any], group: str) -> Lsn | None:
    """The position that was last written to a store in the same database; None if there is none."""
    (there,) = connection.execute(query("has_groups")).fetchone() or (False,)
    if not there:
        return None
    row = connection.execute(query("logged_lsn"), {"group": group}).fetchone()
    return lsn(row[0]) if row is not None else None


class PostgresStateStore(Records, Resyncs, Specs, Moves, History):
    """A StateStore in a PostgreSQL database, on one session. With an `installation` others are refused."""

    def __init__(
        self, dsn: str, connect_timeout: float = 10, installation: Installation | None = None,
        clock: Clock = SYSTEM_CLOCK, pooler: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(dsn, connect_timeout, pooler)
        self._installation = installation
        self._clock = clock

    def exists(self) -> bool:
        with self.use() as connection:
            return _exists(connection)

    def create(self) -> None:
        self.require_own()
        if not self.usable:
            self._make()
        if self._installation is not None:
            self._claim(Installation.made(self._installation.root))

    def _make(self) -> None:
        try:
            with self.use() as connection, connection.transaction():
                place = identifier(connection.info.dbname), identifier(connection.info.user)
                lock_until_commit(connection, CREATING)
                # Another run may have created it meanwhile.
                connection.execute(statements_after(_version(connection)))
                connection.execute(query("forget_store_version"))
                connection.execute(query("save_store_version"), {"version": LATEST})
        except SourceRefused as error:
            remedy = f"GRANT CREATE ON DATABASE {place[0]} TO {place[1]};"
            raise SourceRefused(**{**error.fields, "operation": "making", "remedy": remedy}) from error

    def require_own(self) -> None:
        mine = self._installation
        if mine is not None and self.exists():
            found = self._owner()
            require_owner(found, mine, () if found else (group.name for group in self.groups()))

    def _owner(self) -> Owner | None:
        """None: the version of the store has no owner, or it was made for no installation."""
        with self.use() as connection:
            row = connection.execute(query("has_installation")).fetchone()
            return _owner(connection) if row and row["found"] else None

    def _claim(self, mine: Installation) -> None:
        self._installation = mine
        with self.use() as connection, connection.transaction():
            lock_until_commit(connection, OWNING)
            found = _owner(connection)
            if (owner := claim(found, Owner.of(mine))) != found:
                connection.execute(query("save_installation"), vars(owner))

    @property
    def usable(self) -> bool:
        return self.exists() and self.version() >= LATEST

    def version(self) -> int:
        with self.use() as connection:
            return _version(connection)

    def drop(self) -> None:
        with self.use() as connection:
            connection.execute(query("drop_store"))

    def lease(self, group: str) -> Lease:
        kind = RowLease if self.pooler else PostgresLease
        return kind(self.dsn, group, self._timeout, self._clock)

    def listener(self) -> Listener:
        kind = CountingListener if self.pooler else PostgresListener
        return kind(self.dsn, self._timeout, self._clock)

    def holder(self, group: str) -> str | None:
        with self.use() as connection:
            return holder(connection, group)


def _owner(connection: Session) -> Owner | None:
    row = connection.execute(query("installation")).fetchone()
    return None if row is None else Owner(row["id"], row["place"])


def _exists(connection: Session) -> bool:
    return connection.execute(query("store_exists")).fetchone() is not None


def _version(connection: Session) -> int:
    """The version of a store, 0 if there is none."""
    if not _exists(connection):
        return 0
    row = connection.execute(query("store_version")).fetchone()
    return int(row["version"] or 0) if row else 0
