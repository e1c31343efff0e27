"""From triggers to the stream of a slot, so that each transaction is captured by one of them and by one only.

    publish ─► slot ─► number X ─► all below X have ended ─► a drain at S sees them ─► capture stops ─► boundary B

A transaction that S sees has been drained. One that S does not see has a number from X on, so it began to write after
the slot was made and the tables were published: the stream has all of it. Making a slot does not see to that by itself,
because it takes for ended who has written a commit record and waits for a synchronous standby.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, Self

from .. import faults
from ..config import Config, GroupConfig
from ..errors import SourceRefused
from ..position import Lsn
from ..schema import TableSchema
from ..visibility import PgSnapshot, Visibility
from .crossing import Crossed
from .database import Source
from .ports import SourceDatabase
from .publishing import Identified, slot
from .sessions.connect import connect, explained
from .sessions.locking import Patience
from .sessions.server import server_facts
from .tables import published_selection
from .triggers import Condition, owned, trigger_conditions, unread


class CrossingServer(Protocol):
    """What the steps need of the server beside what the source of a slot has."""

    def not_publishable(self, oids: Collection[int]) -> tuple[str, ...]:
        """Why the role can't make a publication of the tables; a DBA can."""

    def unpublished(self, schemas: Sequence[TableSchema]) -> Collection[int]:
        """Tables that the stream would not have."""

    def make_slot(self, patience: Patience) -> Lsn:
        """Make the group's slot; the position that it begins at. Raises SourceBusy if the wait is stopped."""

    def conditions(self, oids: Collection[int]) -> Mapping[int, Condition]:
        """How the triggers of tables are."""

    def unread(self, token: str) -> str | None:
        """The present snapshot, if the buffers have no row that it sees and the one of the token does not."""

    def boundary(self) -> Lsn:
        """A position inside a record of ours: no other record begins or ends just below it."""

    def drop_publications(self) -> None: ...


class WalCrossing:
    """Implements Crossing."""

    def __init__(self, wal: SourceDatabase, server: CrossingServer) -> None:
        """`wal`: the source of the same group with a slot; it is closed with this."""
        self._wal, self._server = wal, server
        self._moment = 0
        """X"""
        self._slot_from: Lsn | None = None
        self._published: frozenset[int] = frozenset()

    @classmethod
    def of(cls, config: Config, group: GroupConfig) -> Self:
        wal = Source(config, group.model_copy(update={"capture": "wal"}))
        return cls(wal, SqlCrossing(config, group, wal))

    def obstacles(self, oids: Collection[int]) -> tuple[str, ...]:
        if found := self._wal.wal_obstacles():
            return found
        if found := self._server.not_publishable(oids):
            return found
        schemas = self._wal.describe(sorted(oids))
        refused = self._wal.updates_refused(schemas) - self._wal.stays_on_triggers(schemas)
        return tuple(f"{schema.id} has no replica identity" for schema in schemas if schema.oid in refused)

    def identify(self, oids: Collection[int]) -> Identified:
        return {} if self._wal.wal_obstacles() else self._wal.identify(oids)

    def begin(self, oids: Collection[int], patience: Patience) -> None:
        self.undo()
        schemas = self._wal.describe(sorted(oids))
        if refused := self._wal.publish(schemas):
            raise next(iter(refused.values()))
        if self._server.unpublished(schemas):
            raise _changed("a table is not published")
        faults.reached(faults.CROSSING_PUBLISHED)
        self._slot_from = self._server.make_slot(patience)
        faults.reached(faults.CROSSING_SLOT_MADE)
        self._moment = int(self._wal.settled())
        self._published = frozenset(oids)

    def ready(self, oids: Collection[int], token: str) -> bool:
        self._require_publishable(oids)
        if not self._wal.passed(str(self._moment)):
            return False
        return self._seen(token) is not None

    def finish(self, oids: Collection[int], token: str) -> Crossed | None:
        self._require_publishable(oids)
        found = self._server.conditions(oids)
        if lost := [oid for oid, state in found.items() if state in (Condition.MISSING, Condition.DISABLED)]:
            raise _changed(f"{len(lost)} tables have triggers that are missing or disabled")
        seen = self._seen(token)
        if seen is None:
            return None
        boundary = self._server.boundary()
        appends = self._slot_from if self._wal.appends() else None
        return Crossed(Visibility.of(seen, boundary), appends, self._wal.by_triggers())

    def _require_publishable(self, oids: Collection[int]) -> None:
        """Tables may come, go and change while transactions are waited for."""
        if frozenset(oids) != self._published:
            raise _changed("the tables of the group have changed")
        schemas = self._wal.describe(sorted(oids))
        if len(schemas) != len(self._published) or self._server.unpublished(schemas):
            raise _changed("a table was dropped, or is not published any more")
        if self._wal.misplaced(schemas):
            raise _changed("a table has got or lost its replica identity")

    def _seen(self, token: str) -> str | None:
        """A snapshot that sees all below X, and of which all rows are in the change log."""
        if PgSnapshot.parse(token).xmin >= self._moment:
            return token
        # Nothing may have been written since, so that no drain has a newer snapshot.
        now = self._server.unread(token)
        return now if now is not None and PgSnapshot.parse(now).xmin >= self._moment else None

    def undo(self) -> None:
        self._wal.drop_slot()
        faults.reached(faults.CROSSING_UNDONE)
        self._server.drop_publications()

    def close(self) -> None:
        self._wal.close()


def _changed(cause: str) -> SourceRefused:
    return SourceRefused(operation="changing", object="the capture mode", cause=cause)


class SqlCrossing:
    """Implements CrossingServer."""

    def __init__(self, config: Config, group: GroupConfig, wal: Source) -> None:
        self._source, self._group, self._wal = config.source, group, wal

    def not_publishable(self, oids: Collection[int]) -> tuple[str, ...]:
        if self._group.publication is not None:
            return ()
        with connect(self._source, self._group.name) as conn:
            if not server_facts(conn).may_create_in_database:
                return ("the role may not create a publication",)
            mine = owned(conn, oids)
        return ("tables of others can't be published by the role",) if set(oids) - mine else ()

    def unpublished(self, schemas: Sequence[TableSchema]) -> Collection[int]:
        # A publication that the group names is another's to change.
        if self._group.publication is None:
            return self._wal.unpublished(schemas)
        with connect(self._source, self._group.name) as conn:
            return {schema.oid for schema in schemas} - set(published_selection(conn, self._group).tables)

    def make_slot(self, patience: Patience) -> Lsn:
        name, failover = self._wal.slot_name, self._source.failover
        with slot.create(self._source, name, self._group.name, patience=patience, failover=failover) as opened:
            return opened.snapshot.lsn

    def conditions(self, oids: Collection[int]) -> Mapping[int, Condition]:
        with connect(self._source, self._group.name) as conn:
            return trigger_conditions(conn, self._wal.slot_name, list(oids))

    def unread(self, token: str) -> str | None:
        with connect(self._source, self._group.name) as conn:
            return unread(conn, self._wal.slot_name, token)

    def boundary(self) -> Lsn:
        with connect(self._source, self._group.name) as conn, explained("writing", "a mark"), conn.transaction():
            conn.execute("SET LOCAL synchronous_commit = local")
            row = conn.execute("SELECT pg_logical_emit_message(true, 'wal2lake', 'crossing')::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def drop_publications(self) -> None:
        self._wal.drop_publications()
