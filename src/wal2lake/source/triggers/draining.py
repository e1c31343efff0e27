"""One drain: the rows of all buffers that its snapshot sees and the one before did not, as one transaction.

Within a buffer the order of rows means nothing, because rows are identified as a whole and only their sums count; a
nested statement may well be recorded before the one that it is part of. Truncations alone have a place: they lock out
all other writers, so that the numbers of rows tell what was before and what after.
"""

# ruff: noqa: S608 - every name in these texts is ours or quoted
from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...decode import Messages
from ...position import Lsn
from ...schema import TableId
from ...visibility import PgSnapshot
from ..sessions.connect import Connection, explained
from ..sessions.copy_out import copied_out
from . import installing, messages, tuples
from .contract import Drain, Filled
from .definition import Buffer

BYTES_AT_ONCE = 4 * 1024 * 1024


def begin(conn: Connection, lane: str, last: PgSnapshot | None, position: Lsn, imported: str | None = None) -> Drain:
    """Open a drain's transaction. `imported`: the exported snapshot that it is to have."""
    with explained("beginning", "a drain"):
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if imported is not None:
            conn.execute(f"SET TRANSACTION SNAPSHOT '{imported}'".encode())
        row = conn.execute(
            "SELECT pg_current_snapshot()::text, (extract(epoch FROM now() - '2000-01-01Z') * 1000000)::int8"
        ).fetchone()
    assert row is not None
    present = [buffer for some in installing.buffers(conn, lane).values() for buffer in some]
    return Drain(PgSnapshot.parse(row[0]), position, _filled(conn, present, last), row[1])


def _filled(conn: Connection, present: Sequence[Buffer], last: PgSnapshot | None) -> list[Filled]:
    if not present:
        return []
    unseen = _unseen(last)
    rows = " UNION ALL ".join(
        f"SELECT {number} AS n, op FROM {buffer.name} WHERE {unseen}" for number, buffer in enumerate(present)
    )
    with explained("reading", "the buffers"):
        found = conn.execute(f"SELECT n, bool_or(op IN ('T', 'X')) FROM ({rows}) AS r GROUP BY n ORDER BY n".encode())
        return [Filled(present[number], ordered) for number, ordered in found.fetchall()]


def unread(conn: Connection, lane: str, token: str) -> str | None:
    """The present snapshot, if the buffers have no row that it sees and the snapshot of the last drain does not."""
    drain = begin(conn, lane, PgSnapshot.parse(token), Lsn(0))
    with explained("ending", "a drain"):
        conn.execute("COMMIT")
    return None if drain.filled else str(drain.snapshot)


def _unseen(last: PgSnapshot | None) -> str:
    return "true" if last is None else f"NOT pg_visible_in_snapshot(xid, '{last}')"


def read(conn: Connection, drain: Drain, last: PgSnapshot | None, binary: bool) -> Iterator[Messages]:
    """The messages of a drain with rows, a portion at a time; with the last its transaction ends.

    `binary`: values are in PostgreSQL's binary form.
    """
    yield Messages.of([messages.begin(drain.position - 1, drain.us, drain.snapshot.xmax % 2**32)])
    names = _names(conn, [filled.buffer.relid for filled in drain.filled])
    for filled in drain.filled:
        buffer = filled.buffer
        name = names.get(buffer.relid, TableId("wal2lake_changes", str(buffer.relid)))
        yield Messages.of([messages.relation(buffer.relid, name, buffer.columns)])
        yield from _rows(conn, filled, last, binary)
    with explained("ending", "a drain"):
        conn.execute("COMMIT")
    yield Messages.of([messages.commit(drain.position - 1, drain.position, drain.us)])


def _names(conn: Connection, oids: Sequence[int]) -> dict[int, TableId]:
    with explained("reading", "the names of tables"):
        rows = conn.execute(
            "SELECT c.oid::int8, n.nspname::text, c.relname::text FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[])", [list(oids)],
        ).fetchall()  # fmt: skip
    return {oid: TableId(schema, name) for oid, schema, name in rows}


def _rows(conn: Connection, filled: Filled, last: PgSnapshot | None, binary: bool) -> Iterator[Messages]:
    buffer = filled.buffer
    count = len(buffer.columns)
    values = "".join(
        f", c{number}" if binary or column.as_text else f", {column.text(f'c{number}')}"
        for number, column in enumerate(buffer.columns)
    )
    heads = " ".join(
        f"WHEN '{kind}' THEN '\\x{tuples.head(kind, buffer.relid, count).hex()}'::bytea" for kind in "IDTX"
    )
    order = " ORDER BY id" if filled.ordered else ""
    statement = (
        f"COPY (SELECT CASE op {heads} END{values} FROM {buffer.name} WHERE {_unseen(last)}{order})"
        " TO STDOUT (FORMAT binary)"
    )
    with explained("reading", buffer.name):
        for portion in copied_out(conn, statement, BYTES_AT_ONCE):
            yield from _messages(buffer, tuples.Rows(portion), binary)


def _messages(buffer: Buffer, rows: tuples.Rows, binary: bool) -> Iterator[Messages]:
    """Rows, with truncations and marks in their places among them."""
    columns, first = len(buffer.columns), 0
    for place in rows.marks():
        if place > first:
            yield rows.messages(columns, first, place, binary)
        truncated = rows.kinds[place] == ord("T")
        yield Messages.of([messages.truncate(buffer.relid) if truncated else messages.copy_needed(buffer.relid)])
        first = place + 1
    if len(rows) > first:
        yield rows.messages(columns, first, len(rows), binary)
