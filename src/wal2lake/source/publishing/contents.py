"""What publications hold, by the catalog."""

from __future__ import annotations

from ...schema import TableId
from ..sessions.connect import Connection, explained, query

BUFFERS = "wal2lake_changes"
"""the schema of what triggers fill"""


def names_in(conn: Connection, name: str) -> dict[int, TableId]:
    """The tables in a publication by oid; empty if it does not exist."""
    with explained("reading", f"publication {name}"):
        row = conn.execute(query("publication"), {"name": name}).fetchone()
        rows = conn.execute(query("publication_tables"), {"publication": row[0]}).fetchall() if row else []
    return {oid: TableId(schema, table) for oid, schema, table, _ in rows}


def exists(conn: Connection, name: str) -> bool:
    with explained("reading", f"publication {name}"):
        return conn.execute(query("publication"), {"name": name}).fetchone() is not None


def tables_of(conn: Connection, name: str) -> frozenset[int]:
    """The tables in a publication; empty if it does not exist."""
    return frozenset(names_in(conn, name))


def tables_meant_by(conn: Connection, name: str) -> frozenset[int]:
    """The same, with the tables of which the buffers are in it."""
    found = names_in(conn, name)
    buffers = (id.name.removeprefix("changes_") for id in found.values() if id.schema == BUFFERS)
    return frozenset(found) | frozenset(int(name.partition("_")[0]) for name in buffers)


def buffers_in(conn: Connection, name: str) -> list[tuple[int, TableId]]:
    """The buffers of triggers in a publication."""
    return [(oid, id) for oid, id in names_in(conn, name).items() if id.schema == BUFFERS]


def types_in(conn: Connection, name: str) -> list[tuple[int, int]]:
    """Oid and typmod of the types of all columns of published tables. Waits for no lock."""
    with explained("reading", f"publication {name}"):
        return [(oid, typmod) for oid, typmod in conn.execute(query("published_types"), {"name": name})]
