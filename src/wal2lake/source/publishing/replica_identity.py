"""Replica identities that the mirror sets itself, where `auto_replica_identity` says so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from ...config import GroupTables, settings_of
from ...errors import SourceBusy, Wal2LakeError
from ..sessions.connect import Connection, explained
from ..sessions.locking import retried, wait_briefly
from ..tables import CatalogTable, RefusedHeap, catalog_tables, refused_heaps

log = logging.getLogger(__name__)

Identified = Mapping[int, Sequence[str]]
"""what was done to each mirrored table, in words"""
LOCK_SECONDS = 5.0


def is_identified(table: CatalogTable, settings: GroupTables) -> bool:
    """Whether a table is to get a replica identity when it has none."""
    own = settings_of(settings, table.id, table.above)
    chosen = own.auto_replica_identity
    # A column list allows no replica identity FULL. What only inserts is published of needs none, and what triggers
    # capture by its settings neither.
    allowed = not own.append_only and not own.columns and own.capture != "trigger"
    return allowed and (settings.group.auto_replica_identity if chosen is None else chosen)


def identify(
    conn: Connection, oids: Collection[int], settings: GroupTables, stopped: Callable[[], bool]
) -> dict[int, list[str]]:
    """Give tables, or their partitions, the replica identity that PostgreSQL asks for. Those of others stay refused."""
    if not settings.group.auto_replica_identity and not any(own.auto_replica_identity for own in settings.values()):
        return {}
    chosen = [oid for oid, table in catalog_tables(conn, oids).items() if is_identified(table, settings)]
    done: dict[int, list[str]] = {}
    for oid, heaps in refused_heaps(conn, chosen).items():
        for heap in heaps:
            if heap.owned and heap.unidentified and _set(conn, heap, stopped):
                done.setdefault(oid, []).append(f"replica identity of {heap.id} set to {heap.needs}")
    return done


def _set(conn: Connection, heap: RefusedHeap, stopped: Callable[[], bool]) -> bool:
    def attempt() -> None:
        with explained("setting the replica identity of", str(heap.id)), conn.transaction():
            wait_briefly(conn)
            conn.execute(heap.fix.encode())

    try:
        retried(attempt, LOCK_SECONDS, stopped)
    except SourceBusy as error:
        log.info("%s", error)
        return False
    except Wal2LakeError as error:
        # It was dropped or altered meanwhile; if it still has no identity, that is an error of its own.
        log.warning("%s", error)
        return False
    log.warning("replica identity of %s set to %s (auto_replica_identity)", heap.id, heap.needs)
    return True
