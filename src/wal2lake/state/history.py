"""What happened to each table, the last things of each: transitions with who and when, and what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from ..schema import TableId
from .connection import StoreSession, jsonable
from .records import HistoryEntry

KEPT = 50
"""entries of each table"""

_ADD = """
INSERT INTO wal2lake.history (group_name, oid, schema_name, table_name, at, who, before, after, detail)
SELECT * FROM jsonb_to_recordset(%s) AS given ("group" text, oid oid, schema text, name text, at timestamptz, who text,
    before text, after text, detail text)
"""
_FORGET = """
DELETE FROM wal2lake.history h
USING (SELECT DISTINCT unnest(%(oids)s::oid[]) AS oid) touched
WHERE h.oid = touched.oid AND h.id <= (
    SELECT id FROM wal2lake.history older WHERE older.oid = touched.oid ORDER BY id DESC OFFSET %(kept)s LIMIT 1
)
"""


class History(StoreSession):
    def add_history(self, entries: Sequence[HistoryEntry]) -> None:
        if not entries:
            return
        values = [
            {
                **{name: jsonable(value) for name, value in vars(entry).items() if name != "id"},
                "schema": entry.id.schema, "name": entry.id.name,
            }
            for entry in entries
        ]  # fmt: skip
        with self.use() as connection, connection.transaction():
            connection.execute(_ADD, [Jsonb(values)])
            connection.execute(_FORGET, {"oids": [entry.oid for entry in entries], "kept": KEPT})

    def history(self, id: TableId) -> list[HistoryEntry]:
        """What happened to tables that have, or had, this name; oldest first."""
        with self.use() as connection:
            rows = connection.execute(
                "SELECT * FROM wal2lake.history WHERE oid IN ("
                "  SELECT oid FROM wal2lake.history WHERE schema_name = %(schema)s AND table_name = %(name)s"
                "  UNION SELECT oid FROM wal2lake.tables WHERE schema_name = %(schema)s AND table_name = %(name)s"
                ") ORDER BY at, id",
                vars(id),
            ).fetchall()
        return [
            HistoryEntry(
                row["group_name"], int(row["oid"]), TableId(row["schema_name"], row["table_name"]), row["at"],
                row["who"], row["before"], row["after"], row["detail"],
            )
            for row in rows
        ]  # fmt: skip
