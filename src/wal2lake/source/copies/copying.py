"""Keeps a table unchanged while it is copied: its definition is that of the copy's snapshot until the copy ends.

For a snapshot PostgreSQL returns rows with the present columns, and no rows at all if the table was rewritten since. So
the table is locked against DDL (readers and writers continue), and a snapshot that is older than the last DDL is
refused; the copy is retried with a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from psycopg import sql

from ...config import TableConfig, settings_of
from ...errors import CopyFailed, KeyMisleading, SourceBusy, SourceRefused
from ...schema import TableSchema
from ..sessions.connect import Connection, explained, query
from ..sessions.locking import retried, wait_briefly
from ..tables import catalog, description, selection, typefacts
from ..tables.facts import full_rows, unreadable

_SHOWN = 3
LOCKED_SECONDS = 10.0
"""limit for waiting for a session that alters the table"""


@contextmanager
def held_still(
    connected: Callable[[], AbstractContextManager[Connection]], schema: TableSchema, snapshot: str,
    overrides: Mapping[str, TableConfig], stopped: Callable[[], bool],
    bounds: catalog.KnownBounds | None = None,
) -> Iterator[TableSchema]:  # fmt: skip
    """The table as of the snapshot, unchanged until the block ends. Raises CopyFailed if it was altered since."""
    with connected() as holder, connected() as now, holder.transaction():
        with explained("taking", "a snapshot"):
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        _lock(holder, now, schema, stopped)
        described = catalog.describe(now, [schema.oid], overrides, bounds).get(schema.oid)
        # Compared after the lock, which does not prevent ATTACH PARTITION: a new partition must not be in `described`.
        then, today = (_shape(conn, schema.oid, overrides) for conn in (holder, now))
        if then != today or described is None:
            raise CopyFailed(
                table=str(schema.id), cause="the table or its publication was altered while its copy began"
            )
        if (refused := description.outside_wal(described)) is not None:
            raise refused
        if not settings_of(
            description.overrides_by_table(overrides), described.id, described.settings_from
        ).append_only:
            require_telling(now, described)
        yield described


def require_telling(conn: Connection, schema: TableSchema) -> None:
    """Raises KeyMisleading if partitions identify rows by a key that does not identify rows of the whole table."""
    for leaves in catalog.misleading_leaves(conn, [schema.oid]).values():
        names = ", ".join(str(leaf) for leaf in leaves[:_SHOWN]) + (" and others" if len(leaves) > _SHOWN else "")
        raise KeyMisleading(table=str(schema.id), partitions=names, fix=full_rows(schema.id, leaves))


def _lock(holder: Connection, now: Connection, schema: TableSchema, stopped: Callable[[], bool]) -> None:
    found = catalog.tables(now, [schema.oid]).get(schema.oid)
    if found is None:
        raise CopyFailed(table=str(schema.id), cause="it does not exist any more")
    only = sql.SQL("" if found.partitioned else "ONLY ")
    name = sql.Identifier(found.id.schema, found.id.name)

    def attempt() -> None:
        # After a timeout, partitions that are already locked are released.
        with explained("locking", str(schema.id)), holder.transaction():
            wait_briefly(holder)
            holder.execute(sql.SQL("LOCK TABLE {}{} IN ACCESS SHARE MODE").format(only, name))

    if (refused := unreadable(now, schema.oid)) is not None:
        id, remedy = refused
        raise SourceRefused(operation="reading", object=str(id), cause="the role lacks a privilege", remedy=remedy)
    try:
        retried(attempt, LOCKED_SECONDS, stopped)
    except SourceBusy as error:
        raise CopyFailed(table=str(schema.id), cause="another session is altering it") from error


def _shape(conn: Connection, oid: int, overrides: Mapping[str, TableConfig]) -> list[object]:
    publication = selection.named(conn, overrides, [oid])
    with explained("reading", "the catalog"):
        shape: list[tuple[Any, ...]] = conn.execute(query("copied_shape"), {"oids": [oid]}).fetchall()
        shape += typefacts.rows(conn, {row[4] for row in shape if row[4]})
    return [*shape, publication.tables.get(oid) if publication is not None else None]
