"""Events of tables, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from ...schema import TableId
from ..ports import KEPT_ENTRIES
from ..records import HistoryEntry
from .connection import StoreSession, jsonable
from .queries import query


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
            connection.execute(query("add_history"), {"entries": Jsonb(values)})
            oids = [entry.oid for entry in entries]
            connection.execute(query("forget_history"), {"oids": oids, "kept": KEPT_ENTRIES})

    def history(self, id: TableId) -> list[HistoryEntry]:
        with self.use() as connection:
            rows = connection.execute(query("history"), vars(id)).fetchall()
        return [
            HistoryEntry(
                row["group_name"], int(row["oid"]), TableId(row["schema_name"], row["table_name"]), row["at"],
                row["who"], row["before"], row["after"], row["detail"],
            )
            for row in rows
        ]  # fmt: skip
