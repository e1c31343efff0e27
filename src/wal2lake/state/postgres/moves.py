"""Tables that move from one group to another, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from ...position import LakeVersion, Lsn
from ..records import TableRecord
from .connection import Session, StoreSession
from .locks import CLAIMING, lock_until_commit
from .queries import query
from .records import claim


class Moves(StoreSession):
    """The part of the store that the runs of both groups write."""

    def note_handover(self, oid: int, position: Lsn) -> None:
        with self.telling() as connection:
            connection.execute(query("note_handover"), {"oid": oid, "position": str(position)})

    def void_handovers(self, group: str, oids: Collection[int]) -> frozenset[int]:
        with self.use() as connection:
            found = connection.execute(query("void_handovers"), {"oids": list(oids), "group": group}).fetchall()
        return frozenset(row["oid"] for row in found)

    def note_handed(self, oid: int, group: str, position: Lsn, version: LakeVersion) -> None:
        with self.telling() as connection:
            values = {"position": str(position), "epoch": version.epoch, "commit": version.commit}
            connection.execute(query("note_handed"), {"oid": oid, "group": group, **values})
            connection.execute(query("forget_tables"), {"group": group, "oids": [oid]})

    def take_over(self, table: TableRecord) -> datetime | None:
        with self.use() as connection, connection.transaction():
            # Locked before the row: a command that changes the spec must not wait for claims of other tables.
            lock_until_commit(connection, CLAIMING)
            if _handed_to(connection, table.oid, table.group) is None:
                return None
            claim(connection, [table])
            row = connection.execute(query("resync_since"), {"oid": table.oid, "group": table.group}).fetchone()
        return row["wanted"] if row is not None else None

    def end_take_over(self, oid: int, group: str, copied: bool) -> bool:
        with self.telling() as connection:
            handed = _handed_to(connection, oid, group)
            if handed is None or (copied and not handed["positioned"]):
                return False
            if copied:
                connection.execute(query("cancel_resyncs"), {"oids": [oid], "group": group})
            connection.execute(query("end_move"), {"oid": oid})
        return True


def _handed_to(connection: Session, oid: int, group: str) -> dict[str, Any] | None:
    return connection.execute(query("lock_handed_spec"), {"oid": oid, "group": group}).fetchone()
