"""The state store: what is wanted, and a cache of states and errors for people to query.

It is the `wal2lake` schema of the source database, or of another PostgreSQL (`[state] dsn`). What is applied is never
read from here: that stands in the lake's own commits. A row here that is out of date misleads nobody but a reader.
The process that runs a group holds an advisory lock on its session, and is woken by NOTIFY.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from ..errors import OtherInstallation, SourceRefused
from ..installation import Installation
from ..position import LakeVersion, Lsn
from ..quoting import identifier
from ..schema import TableId
from .connection import Session, jsonable, lsn, table_id, text
from .desired import Specs, handed_to
from .history import History
from .lease import LOCK_CLASS, holder
from .lifecycle import GroupState, Mode, TableState
from .migrate import LATEST, statements_after
from .records import AppendCounts, GroupRecord, TableRecord

_FIELDS = """"group" text, oid oid, schema text, name text, state text, mode text, applied_lsn pg_lsn, rows bigint,
    changes_applied bigint, last_commit_at timestamptz, behind_since timestamptz, error text, remedy text,
    retry_at timestamptz, failures int, kind text, target_schema text, target_name text,
    lake_epoch bigint, lake_commit bigint"""
_INSERT = f"""
INSERT INTO wal2lake.tables AS t (group_name, oid, schema_name, table_name, state, mode, applied_lsn, rows,
    changes_applied, last_commit_at, behind_since, error, remedy, retry_at, failures, kind, target_schema, target_name,
    lake_epoch, lake_commit)
SELECT * FROM jsonb_to_recordset(%s) AS given ({_FIELDS})
"""  # noqa: S608 - constants
_SAVE_TABLES = (
    _INSERT
    + """
ON CONFLICT (group_name, oid) DO UPDATE SET
    schema_name = excluded.schema_name, table_name = excluded.table_name, state = excluded.state,
    mode = excluded.mode, applied_lsn = excluded.applied_lsn, rows = excluded.rows,
    changes_applied = excluded.changes_applied, last_commit_at = excluded.last_commit_at,
    behind_since = excluded.behind_since, error = excluded.error, remedy = excluded.remedy,
    retry_at = excluded.retry_at, failures = excluded.failures, kind = excluded.kind,
    target_schema = excluded.target_schema, target_name = excluded.target_name,
    lake_epoch = excluded.lake_epoch, lake_commit = excluded.lake_commit,
    updated_at = now()
"""
)
_CLAIM_TABLES = (
    _INSERT
    + """
WHERE NOT EXISTS (SELECT FROM wal2lake.tables held WHERE held.oid = given.oid)
RETURNING oid
"""
)


def logged_in(connection: psycopg.Connection[Any], group: str) -> Lsn | None:
    """The position that a store in this very database was told last; None if it has none."""
    (there,) = connection.execute("SELECT to_regclass('wal2lake.groups') IS NOT NULL").fetchone() or (False,)
    if not there:
        return None
    row = connection.execute("SELECT logged_lsn::text FROM wal2lake.groups WHERE name = %s", [group]).fetchone()
    return lsn(row[0]) if row is not None else None


class StateStore(Specs, History):
    """The store in a PostgreSQL database. Safe to use from several threads; reconnects after a lost connection.

    With an `installation` it is used for that one alone.
    """

    def __init__(self, dsn: str, connect_timeout: float = 10, installation: Installation | None = None) -> None:
        super().__init__(dsn, connect_timeout)
        self._installation = installation

    def exists(self) -> bool:
        with self.use() as connection:
            return _exists(connection)

    def create(self) -> None:
        """Make the schema if it is not there, and bring one of an older version up to date. It is ours then."""
        self.require_own()
        if not self.usable:
            self._make()
        if self._installation is not None:
            self._claim(Installation.made(self._installation.root))

    def _make(self) -> None:
        try:
            with self.use() as connection, connection.transaction():
                place = identifier(connection.info.dbname), identifier(connection.info.user)
                connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", [LOCK_CLASS])
                # Another run may have made it meanwhile.
                connection.execute(statements_after(_version(connection)))
                # Not DELETE: a table without a key takes none while it is in a publication of all tables.
                connection.execute("TRUNCATE wal2lake.version")
                connection.execute("INSERT INTO wal2lake.version VALUES (%s)", [LATEST])
        except SourceRefused as error:
            remedy = f"GRANT CREATE ON DATABASE {place[0]} TO {place[1]};"
            raise SourceRefused(**{**error.fields, "operation": "making", "remedy": remedy}) from error

    def require_own(self) -> None:
        """Raises OtherInstallation if the store is that of another lake."""
        mine = self._installation
        if mine is None or not self.exists():
            return
        if not self._has_installation():
            # A store of an older version says nothing; it is that of the lake that has the logs of its groups.
            groups = [group.name for group in self.groups()]
            if groups and not any(mine.has_log(group) for group in groups):
                raise OtherInstallation(object="the state store (schema wal2lake)", place="unknown")
            return
        with self.use() as connection:
            row = connection.execute("SELECT id, place FROM wal2lake.installation").fetchone()
        # A lake that was deleted and begun again in the same place is no other one.
        if row is not None and row["id"] != mine.id and (mine.id is not None or row["place"] != mine.place):
            raise OtherInstallation(object="the state store (schema wal2lake)", place=row["place"])

    def _has_installation(self) -> bool:
        with self.use() as connection:
            row = connection.execute("SELECT to_regclass('wal2lake.installation') IS NOT NULL AS found").fetchone()
            if not row or not row["found"]:
                return False
            return connection.execute("SELECT FROM wal2lake.installation").fetchone() is not None

    def _claim(self, mine: Installation) -> None:
        with self.use() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, 2)", [LOCK_CLASS])
            connection.execute(
                "INSERT INTO wal2lake.installation (id, place) VALUES (%s, %s)"
                " ON CONFLICT (one) DO UPDATE SET id = excluded.id, place = excluded.place"
                " WHERE (installation.id, installation.place) <> (excluded.id, excluded.place)"
                " AND (installation.id = excluded.id OR installation.place = excluded.place)",
                [mine.id, mine.place],
            )
            row = connection.execute("SELECT id, place FROM wal2lake.installation").fetchone()
        self._installation = mine
        if row is None or row["id"] != mine.id:
            raise OtherInstallation(object="the state store (schema wal2lake)", place=row["place"] if row else "?")

    @property
    def usable(self) -> bool:
        """Whether there is a store, with all that this version reads."""
        return self.exists() and self.version() >= LATEST

    def version(self) -> int:
        with self.use() as connection:
            return _version(connection)

    def drop(self) -> None:
        with self.use() as connection:
            connection.execute("DROP SCHEMA IF EXISTS wal2lake CASCADE")

    def groups(self) -> list[GroupRecord]:
        with self.use() as connection:
            rows = connection.execute("SELECT * FROM wal2lake.groups ORDER BY name").fetchall()
        return [
            GroupRecord(
                name=row["name"], state=GroupState(row["state"]), slot=row["slot"], capture=row["capture"],
                holder=row["holder"], logged_lsn=lsn(row["logged_lsn"]), error=row["error"], remedy=row["remedy"],
                warning=row.get("warning"), changelog_bytes=row.get("changelog_bytes"),
                still_since=row.get("still_since"), updated_at=row["updated_at"],
            )
            for row in rows
        ]  # fmt: skip

    def holder(self, group: str) -> str | None:
        """Who runs a group now; None if nobody does."""
        with self.use() as connection:
            return holder(connection, group)

    def save_group(self, group: GroupRecord) -> None:
        with self.use() as connection, connection.transaction():
            # What the source knows tells whether it was restored, so it must not forget this in a crash.
            connection.execute("SET LOCAL synchronous_commit = local")
            connection.execute(
                """
                INSERT INTO wal2lake.groups
                    (name, state, holder, slot, capture, logged_lsn, error, remedy, warning, changelog_bytes,
                     still_since)
                VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
                ON CONFLICT (name) DO UPDATE SET state = excluded.state, holder = excluded.holder,
                    slot = excluded.slot, capture = excluded.capture,
                    logged_lsn = coalesce(excluded.logged_lsn, groups.logged_lsn),
                    error = excluded.error, remedy = excluded.remedy, warning = excluded.warning,
                    changelog_bytes = excluded.changelog_bytes, still_since = excluded.still_since,
                    updated_at = now()
                """,
                [
                    group.name, group.state, group.holder, group.slot, group.capture,
                    text(group.logged_lsn), group.error, group.remedy, group.warning, group.changelog_bytes,
                    group.still_since,
                ],
            )  # fmt: skip

    def tables(self, group: str | None = None) -> list[TableRecord]:
        with self.use() as connection:
            rows = connection.execute(
                "SELECT * FROM wal2lake.tables WHERE %(group)s::text IS NULL OR group_name = %(group)s"
                " ORDER BY group_name, schema_name, table_name",
                {"group": group},
            ).fetchall()
        return [_table_record(row) for row in rows]

    def save_tables(self, tables: Iterable[TableRecord]) -> None:
        """Write records, in one statement however many there are."""
        values = [_table_values(table) for table in tables]
        if values:
            with self.use() as connection, connection.transaction():
                # Changes are deleted because this is known, so a crash must not forget it.
                connection.execute("SET LOCAL synchronous_commit = local")
                connection.execute(_SAVE_TABLES, [Jsonb(values)])

    def claim_tables(self, tables: Iterable[TableRecord], copy: bool = True) -> set[int]:
        """Write records of tables that are new here; a table that any group has stays that group's. The claimed ones.

        They want an initial copy, unless `copy` is False.
        """
        values = [_table_values(table) for table in tables]
        if not values:
            return set()
        with self.use() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, 1)", [LOCK_CLASS])
            rows = connection.execute(_CLAIM_TABLES, [Jsonb(values)]).fetchall()
            claimed = {int(row["oid"]) for row in rows}
            if not copy:
                connection.execute(
                    "UPDATE wal2lake.tables SET resync_wanted = NULL WHERE oid = ANY (%s::oid[])", [list(claimed)]
                )
        return claimed

    def take_over(self, table: TableRecord) -> datetime | None:
        """Claim a table that was handed over to its group. It wants a re-copy until `end_take_over` knows better.

        Since when it does; None if somebody has asked for something else meanwhile.
        """
        with self.use() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, 1)", [LOCK_CLASS])
            if not handed_to(connection, table.oid, table.group):
                return None
            connection.execute(_CLAIM_TABLES, [Jsonb([_table_values(table)])])
            row = connection.execute(
                "SELECT coalesce(resync_wanted, now()) AS wanted FROM wal2lake.tables"
                " WHERE oid = %s AND group_name = %s",
                [table.oid, table.group],
            ).fetchone()
        return row["wanted"] if row is not None else None

    def forget_tables(self, group: str, oids: Iterable[int]) -> None:
        with self.use() as connection:
            connection.execute(
                "DELETE FROM wal2lake.tables WHERE group_name = %s AND oid = ANY (%s::oid[])", [group, list(oids)]
            )

    def want_resync(self, tables: Iterable[TableRecord], together: str | None = None) -> datetime | None:
        """Ask for a re-copy; a running process is woken, another does it at its next start. When it was asked.

        Tables that are asked for with one word `together` are copied at one common snapshot.
        """
        with self.telling() as connection:
            row = connection.execute("SELECT clock_timestamp() AS now").fetchone()
            for table in tables:
                connection.execute(
                    "UPDATE wal2lake.tables SET resync_wanted = %s, resync_round = %s"
                    " WHERE group_name = %s AND oid = %s",
                    [row and row["now"], together, table.group, table.oid],
                )
        return row["now"] if row else None

    def rounds(self, group: str) -> dict[int, str]:
        """Tables that are to be copied at one snapshot with others of the same word."""
        with self.use() as connection:
            rows = connection.execute(
                "SELECT oid, resync_round FROM wal2lake.tables WHERE group_name = %s AND resync_round IS NOT NULL"
                " AND resync_wanted IS NOT NULL",
                [group],
            ).fetchall()
        return {int(row["oid"]): row["resync_round"] for row in rows}

    def wanted_resyncs(self, group: str) -> dict[int, datetime]:
        """Tables that want a re-copy, and since when; a table that is new here is one of them."""
        with self.use() as connection:
            rows = connection.execute(
                "SELECT oid, resync_wanted FROM wal2lake.tables WHERE group_name = %s AND resync_wanted IS NOT NULL",
                [group],
            ).fetchall()
        return {int(row["oid"]): row["resync_wanted"] for row in rows}

    def append_counts(self, group: str) -> dict[int, AppendCounts]:
        """What is remembered of the group's append-only tables."""
        with self.use() as connection:
            rows = connection.execute(
                "SELECT oid, append_counts, append_seen_at FROM wal2lake.tables"
                " WHERE group_name = %s AND append_counts IS NOT NULL",
                [group],
            ).fetchall()
        return {
            int(row["oid"]): AppendCounts(
                {int(heap): count for heap, count in row["append_counts"].items()}, row["append_seen_at"]
            )
            for row in rows
        }

    def count_appends(self, group: str, oid: int, counts: Mapping[int, int]) -> None:
        """Remember what PostgreSQL has counted before a table is copied."""
        with self.use() as connection:
            connection.execute(
                "UPDATE wal2lake.tables SET append_counts = %s, append_seen_at = NULL"
                " WHERE group_name = %s AND oid = %s",
                [Jsonb({str(heap): count for heap, count in counts.items()}), group, oid],
            )

    def updates_seen(self, group: str, oid: int) -> None:
        with self.use() as connection:
            connection.execute(
                "UPDATE wal2lake.tables SET append_seen_at = clock_timestamp()"
                " WHERE group_name = %s AND oid = %s AND append_seen_at IS NULL",
                [group, oid],
            )

    def resync_done(self, group: str, oid: int, wanted: datetime | None) -> None:
        """Said only after the copy is committed, so that a crash before it copies again."""
        with self.use() as connection, connection.transaction():
            connection.execute(
                "UPDATE wal2lake.tables SET resync_wanted = NULL"
                " WHERE group_name = %s AND oid = %s AND resync_wanted <= %s",
                [group, oid, wanted],
            )
            # A table may begin without its rows once; whatever needs a copy later needs them.
            connection.execute("UPDATE wal2lake.desired_tables SET copy = true WHERE oid = %s AND NOT copy", [oid])


def _table_record(row: dict[str, Any]) -> TableRecord:
    return TableRecord(
        group=row["group_name"],
        oid=int(row["oid"]),
        id=TableId(row["schema_name"], row["table_name"]),
        state=TableState(row["state"]),
        mode=Mode(row["mode"]),
        applied_lsn=lsn(row["applied_lsn"]),
        kind=row.get("kind"),
        target=table_id(row.get("target_schema"), row.get("target_name")),
        version=LakeVersion(row.get("lake_epoch") or 0, row.get("lake_commit") or 0),
        **{
            name: row[name]
            for name in (
                "rows", "changes_applied", "last_commit_at", "behind_since", "error", "remedy", "retry_at", "failures"
            )
        },
    )  # fmt: skip


def _table_values(table: TableRecord) -> dict[str, object]:
    values = {name: jsonable(value) for name, value in vars(table).items() if name not in ("id", "target", "version")}
    target = table.target
    return {
        **values, "schema": table.id.schema, "name": table.id.name,
        "target_schema": target and target.schema, "target_name": target and target.name,
        "lake_epoch": table.version.epoch, "lake_commit": table.version.commit,
    }  # fmt: skip


def _exists(connection: Session) -> bool:
    row = connection.execute("SELECT to_regclass('wal2lake.version') IS NOT NULL AS found").fetchone()
    return bool(row and row["found"])


def _version(connection: Session) -> int:
    """The version of a store, 0 if there is none."""
    if not _exists(connection):
        return 0
    row = connection.execute("SELECT max(version) AS version FROM wal2lake.version").fetchone()
    return int(row["version"] or 0) if row else 0
