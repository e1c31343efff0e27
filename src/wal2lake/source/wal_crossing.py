"""From triggers to the stream of a slot, so that each transaction is captured by one of them and by one only.

    publish ─► slot ─► number X ─► all below X have ended ─► a drain at S sees them ─► capture stops ─► boundary B

A transaction that S sees has been drained. One that S does not see has a number from X on, so it began to write after
the slot was made and the tables were published: the stream has all of it. Making a slot does not see to that by itself,
because it takes for ended who has written a commit record and waits for a synchronous standby.
"""

from __future__ import annotations

from collections.abc import Collection

from .. import faults
from ..config import Config, GroupConfig
from ..errors import SourceRefused
from ..position import Lsn
from ..visibility import PgSnapshot, Visibility
from .crossing_port import Crossed
from .database import Source
from .publishing import slot
from .sessions.connect import Connection, connect, explained
from .sessions.locking import Patience
from .triggers import Condition, trigger_conditions, unread


class WalCrossing:
    """Implements Crossing."""

    def __init__(self, config: Config, group: GroupConfig) -> None:
        self._config, self._group = config, group
        self._wal = Source(config, group.model_copy(update={"capture": "wal"}))
        self._moment = 0
        """X"""
        self._slot_from: Lsn | None = None
        self._published: frozenset[int] = frozenset()

    def obstacles(self, oids: Collection[int]) -> tuple[str, ...]:
        if found := self._wal.wal_obstacles():
            return found
        schemas = self._wal.describe(sorted(oids))
        refused = self._wal.updates_refused(schemas) - self._wal.stays_on_triggers(schemas)
        return tuple(f"{schema.id} has no replica identity" for schema in schemas if schema.oid in refused)

    def begin(self, oids: Collection[int], patience: Patience) -> None:
        self.undo()
        refused = self._wal.publish(self._wal.describe(sorted(oids)))
        if refused:
            raise next(iter(refused.values()))
        faults.reached(faults.CROSSING_PUBLISHED)
        source = self._config.source
        with slot.create(
            source, self._wal.slot_name, self._group.name, patience=patience, failover=source.failover
        ) as opened:
            self._slot_from = opened.snapshot.lsn
        faults.reached(faults.CROSSING_SLOT_MADE)
        self._moment = int(self._wal.settled())
        self._published = frozenset(oids)

    def ready(self, oids: Collection[int], token: str) -> bool:
        self._require_publishable(oids)
        if not self._wal.passed(str(self._moment)):
            return False
        with connect(self._config.source, self._group.name) as conn:
            return self._seen(conn, token) is not None

    def finish(self, oids: Collection[int], token: str) -> Crossed | None:
        self._require_publishable(oids)
        with connect(self._config.source, self._group.name) as conn:
            found = trigger_conditions(conn, self._wal.slot_name, list(oids))
            if lost := [oid for oid, state in found.items() if state in (Condition.MISSING, Condition.DISABLED)]:
                raise _changed(f"{len(lost)} tables have triggers that are missing or disabled")
            seen = self._seen(conn, token)
            if seen is None:
                return None
            boundary = _boundary(conn)
        appends = self._slot_from if self._wal.appends() else None
        return Crossed(Visibility.of(seen, boundary), appends, self._wal.by_triggers())

    def _require_publishable(self, oids: Collection[int]) -> None:
        """Tables may come, go and change while transactions are waited for."""
        if frozenset(oids) != self._published:
            raise _changed("the tables of the group have changed")
        schemas = self._wal.describe(sorted(oids))
        if len(schemas) != len(self._published) or self._wal.unpublished(schemas):
            raise _changed("a table was dropped, or is not published any more")
        if self._wal.misplaced(schemas):
            raise _changed("a table has got or lost its replica identity")

    def _seen(self, conn: Connection, token: str) -> str | None:
        """A snapshot that sees all below X, and of which all rows are in the change log."""
        if PgSnapshot.parse(token).xmin >= self._moment:
            return token
        # Nothing may have been written since, so that no drain has a newer snapshot.
        now = unread(conn, self._wal.slot_name, token)
        return now if now is not None and PgSnapshot.parse(now).xmin >= self._moment else None

    def undo(self) -> None:
        self._wal.drop_slot()
        faults.reached(faults.CROSSING_UNDONE)
        self._wal.drop_publications()

    def close(self) -> None:
        self._wal.close()


def _changed(cause: str) -> SourceRefused:
    return SourceRefused(operation="changing", object="the capture mode", cause=cause)


def _boundary(conn: Connection) -> Lsn:
    """A position inside a record of ours: no other record begins or ends just below it."""
    with explained("writing", "a mark"), conn.transaction():
        conn.execute("SET LOCAL synchronous_commit = local")
        row = conn.execute("SELECT pg_logical_emit_message(true, 'wal2lake', 'crossing')::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])
