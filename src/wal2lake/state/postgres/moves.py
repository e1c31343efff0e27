"""Tables that move from one group to another, in PostgreSQL."""

from __future__ import annotations

from datetime import datetime

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

    def note_handed(self, oid: int, group: str, position: Lsn, version: LakeVersion) -> None:
        with self.telling() as connection:
            values = {"position": str(position), "epoch": version.epoch, "commit": version.commit}
            connection.execute(query("note_handed"), {"oid": oid, "group": group, **values})
            connection.execute(query("forget_tables"), {"group": group, "oids": [oid]})

    def take_over(self, table: TableRecord) -> datetime | None:
        with self.use() as connection, connection.transaction():
            # Locked before the row: a command that changes the spec must not wait for claims of other tables.
            lock_until_commit(connection, CLAIMING)
            if not _handed_to(connection, table.oid, table.group):
                return None
            claim(connection, [table])
            row = connection.execute(query("resync_since"), {"oid": table.oid, "group": table.group}).fetchone()
        return row["wanted"] if row is not None else None

    def end_take_over(self, oid: int, group: str, copied: bool) -> bool:
        with self.telling() as connection:
            if not _handed_to(connection, oid, group):
                return False
            if copied:
                connection.execute(query("cancel_resyncs"), {"oids": [oid], "group": group})
            connection.execute(query("end_move"), {"oid": oid})
        return True


def _handed_to(connection: Session, oid: int, group: str) -> bool:
    return connection.execute(query("lock_handed_spec"), {"oid": oid, "group": group}).fetchone() is not None
