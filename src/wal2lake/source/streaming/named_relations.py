"""The catalog for a stream that names tables and does not number them: short questions on a session of their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...config import SourceConfig
from ...decode import ColumnFact, Reading, RelationFacts, SlotMark, TableName
from ...errors import SourceRefused
from ...position import Lsn
from ...schema import ReplicaIdentity
from ...visibility import PgSnapshot
from ..sessions.connect import explained, query
from ..sessions.reopened import ReopenedSession

_LIMIT_SECONDS = 30


class NamedRelations:
    """What the catalog says of relations at one moment, by their names, for the stream of a slot."""

    def __init__(self, source: SourceConfig, group: str, slot: str, publications: Sequence[str]) -> None:
        self._session, self._slot = ReopenedSession(source, group, _LIMIT_SECONDS), slot
        self._publications = list(publications)

    def require_readable(self, plugin: str) -> None:
        """Raise SourceRefused if a stream of the plugin would not be in the encoding that is read."""
        encoding = self._session.get().info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise SourceRefused(
                operation="reading", object=f"changes by {plugin}",
                cause=f"the database's encoding is {encoding}, and the plugin writes texts in it as they are",
                remedy="[source] plugin = 'pgoutput'",
            )  # fmt: skip

    def mark(self) -> SlotMark | None:
        """How much of the log is over for the slot; None if there is no such slot."""
        with explained("reading", f"replication slot {self._slot}"):
            row = self._session.get().execute(query("slot_mark"), {"slot": self._slot}).fetchone()
        if row is None or row[1] is None or row[2] is None:
            return None
        snapshot, xid, confirmed = row
        return SlotMark(PgSnapshot.parse(snapshot).full(xid), Lsn.parse(confirmed))

    def read(self, names: Collection[TableName], everything: bool) -> Reading:
        """All that is to be known of tables with these names; and of those that the publications have, if asked."""
        # Whatever the slot says before the catalog is read holds for all that waits.
        mark = self.mark()
        parameters = {
            "schemas": [name.schema for name in names],
            "tables": [name.name for name in names],
            "publications": self._publications,
            "all": everything,
        }
        with explained("reading", "the catalog"):
            rows = self._session.get().execute(query("named_relations"), parameters).fetchall()
        snapshot = PgSnapshot.parse(rows[0][0])
        facts = [_facts(snapshot, row[1:]) for row in rows if row[1] is not None]
        return Reading(
            snapshot,
            mark,
            {one.table: one for one in facts},
            frozenset(names),
            tuple(one for one in facts if one.published) if everything else None,
        )

    def close(self) -> None:
        self._session.close()


def _facts(snapshot: PgSnapshot, row: Sequence[Any]) -> RelationFacts:
    oid, schema, name, kind, identity, written, named, schema_named, kinds, memberships, columns, key_written, key = row
    return RelationFacts(
        oid,
        TableName(schema, name),
        kind,
        ReplicaIdentity(identity),
        tuple(_column(snapshot, *column) for column in columns or ()),
        tuple(key),
        snapshot.writer(key_written) if key_written else 0,
        frozenset(kinds),
        tuple(snapshot.writer(one) for one in memberships),
        snapshot.writer(written),
        snapshot.writer(named),
        snapshot.writer(schema_named),
    )


def _column(
    snapshot: PgSnapshot, number: int, name: str, type_oid: int, type_name: str, typmod: int, generated: str,
    dropped: bool, written: int,
) -> ColumnFact:  # fmt: skip
    return ColumnFact(number, name, type_oid, type_name, typmod, generated, dropped, snapshot.writer(written))
