"""Requests for copies, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ..records import TableRecord
from .connection import StoreSession
from .queries import query


class Resyncs(StoreSession):
    """The part of the store that commands and runs write, and that the run of the group clears."""

    def request_resync(
        self, tables: Iterable[TableRecord], together: str | None = None, quietly: bool = False
    ) -> datetime:  # fmt: skip
        wanted = list(tables)
        with (self.writing if quietly else self.telling)() as connection:
            row = connection.execute(query("resync_time"), {"oids": [table.oid for table in wanted]}).fetchone()
            assert row is not None
            requested: datetime = row["requested"]
            for table in wanted:
                values = {"requested": requested, "together": together, "group": table.group, "oid": table.oid}
                connection.execute(query("want_resync"), values)
        return requested

    def requested_resyncs(self, group: str) -> dict[int, datetime]:
        with self.use() as connection:
            rows = connection.execute(query("wanted_resyncs"), {"group": group}).fetchall()
        return {int(row["oid"]): row["resync_wanted"] for row in rows}

    def rounds(self, group: str) -> dict[int, str]:
        with self.use() as connection:
            rows = connection.execute(query("resync_rounds"), {"group": group}).fetchall()
        return {int(row["oid"]): row["resync_round"] for row in rows}

    def resync_done(self, group: str, oid: int, wanted: datetime | None) -> None:
        with self.use() as connection, connection.transaction():
            connection.execute(query("end_resync"), {"group": group, "oid": oid, "wanted": wanted})
            connection.execute(query("copy_from_now_on"), {"oid": oid})
