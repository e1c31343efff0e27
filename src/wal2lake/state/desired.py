"""What commands have asked for: of tables and of groups. Whoever runs them is woken by each change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psycopg import sql

from ..position import LakeVersion, Lsn
from ..schema import TableId
from .connection import Session, StoreSession, lsn, table_id, text, translated
from .records import GroupSpec, TableSpec


class Specs(StoreSession):
    """The part of the store that commands write and runs read."""

    def table_specs(self) -> dict[int, TableSpec]:
        with self.use() as connection:
            rows = connection.execute("SELECT * FROM wal2lake.desired_tables").fetchall()
        return {int(row["oid"]): _table_spec(row) for row in rows}

    def set_table_spec(self, oid: int, id: TableId, changes: Mapping[str, Any]) -> None:
        """Change what is wanted of a table; what is not named stays as it is."""
        values = _columns(changes)
        names = list(values)
        with self.telling() as connection:
            connection.execute(
                sql.SQL(
                    "INSERT INTO wal2lake.desired_tables (oid, schema_name, table_name{more})"
                    " VALUES (%s, %s, %s{places})"
                    " ON CONFLICT (oid) DO UPDATE SET schema_name = excluded.schema_name,"
                    " table_name = excluded.table_name, updated_at = now(){sets}"
                ).format(
                    more=sql.SQL("").join(sql.SQL(", {}").format(sql.Identifier(name)) for name in names),
                    places=sql.SQL("").join(sql.SQL(", %s") for _ in names),
                    sets=sql.SQL("").join(sql.SQL(", {0} = excluded.{0}").format(sql.Identifier(n)) for n in names),
                ),
                [oid, id.schema, id.name, *values.values()],
            )

    def inherit_spec(self, oid: int, heir: int) -> None:
        """What was wanted of a table that is gone is wanted of another one, which has its name; a move is over."""
        with self.use() as connection:
            connection.execute(
                "UPDATE wal2lake.desired_tables SET oid = %(heir)s, moving_from = NULL, handover_lsn = NULL,"
                " handed_lsn = NULL WHERE oid = %(oid)s"
                " AND NOT EXISTS (SELECT FROM wal2lake.desired_tables other WHERE other.oid = %(heir)s)",
                {"oid": oid, "heir": heir},
            )

    def want_resumed(self, tables: Iterable[tuple[int, TableId]]) -> None:
        with self.telling() as connection:
            for oid, id in tables:
                connection.execute(
                    "INSERT INTO wal2lake.desired_tables (oid, schema_name, table_name, resumed_at)"
                    " VALUES (%s, %s, %s, clock_timestamp())"
                    " ON CONFLICT (oid) DO UPDATE SET paused = false, resumed_at = excluded.resumed_at",
                    [oid, id.schema, id.name],
                )
                # One that is not running reads from here whether its time has come.
                connection.execute(
                    "UPDATE wal2lake.tables SET retry_at = now() WHERE oid = %s AND retry_at IS NOT NULL", [oid]
                )

    def drop_lake(self, oid: int, drop: Callable[[], object]) -> bool:
        """Drop the lake table of a removed table, if that is still wanted; whoever adds it again waits for the end.

        It may take long, so it has a session of its own, which nobody else waits for.
        """
        with self._own_session() as connection, translated(), connection.transaction():
            row = connection.execute(
                "SELECT 1 FROM wal2lake.desired_tables WHERE oid = %s AND drop_lake AND NOT wanted FOR UPDATE", [oid]
            ).fetchone()
            if row is None:
                return False
            drop()
            connection.execute("UPDATE wal2lake.desired_tables SET drop_lake = false WHERE oid = %s", [oid])
        return True

    # ---- a table on its way from one group to another

    def note_handover(self, oid: int, position: Lsn) -> None:
        """The new group captures the table, completely from this position on."""
        self._of_move(oid, "handover_lsn = %s", [str(position)], "handover_lsn IS NULL")

    def note_handed(self, oid: int, group: str, position: Lsn, version: LakeVersion) -> None:
        """The old group has brought the table to this position, and hands it over."""
        with self.telling() as connection:
            connection.execute(
                "UPDATE wal2lake.desired_tables SET handed_lsn = %s, handed_epoch = %s, handed_commit = %s"
                " WHERE oid = %s AND moving_from = %s",
                [str(position), version.epoch, version.commit, oid, group],
            )
            connection.execute("DELETE FROM wal2lake.tables WHERE oid = %s AND group_name = %s", [oid, group])

    def end_take_over(self, oid: int, group: str, copied: bool) -> bool:
        """The lake table is this group's to continue; False if somebody has asked for something else meanwhile."""
        with self.telling() as connection:
            if not handed_to(connection, oid, group):
                return False
            if copied:
                connection.execute(
                    "UPDATE wal2lake.tables SET resync_wanted = NULL WHERE oid = %s AND group_name = %s", [oid, group]
                )
            connection.execute(
                "UPDATE wal2lake.desired_tables SET moving_from = NULL, handover_lsn = NULL, handed_lsn = NULL"
                " WHERE oid = %s",
                [oid],
            )
        return True

    def _of_move(self, oid: int, change: str, values: list[Any], condition: str) -> None:
        with self.telling() as connection:
            connection.execute(
                sql.SQL(
                    "UPDATE wal2lake.desired_tables SET {} WHERE oid = %s AND moving_from IS NOT NULL AND {}"
                ).format(sql.SQL(change), sql.SQL(condition)),
                [*values, oid],
            )

    # ---- groups

    def group_specs(self) -> dict[str, GroupSpec]:
        with self.use() as connection:
            rows = connection.execute("SELECT * FROM wal2lake.desired_groups ORDER BY name").fetchall()
        return {
            row["name"]: GroupSpec(
                row["name"], row["made"], tuple(row["tables"]), tuple(row["exclude"]), row["flush_interval"],
                row["flush_bytes"], row["enabled"], row["dropping"],
            )
            for row in rows
        }  # fmt: skip

    def set_group_spec(self, spec: GroupSpec) -> None:
        with self.telling() as connection:
            connection.execute(
                """
                INSERT INTO wal2lake.desired_groups
                    (name, made, tables, exclude, flush_interval, flush_bytes, enabled, dropping)
                VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
                ON CONFLICT (name) DO UPDATE SET made = excluded.made, tables = excluded.tables,
                    exclude = excluded.exclude, flush_interval = excluded.flush_interval,
                    flush_bytes = excluded.flush_bytes, enabled = excluded.enabled, dropping = excluded.dropping,
                    updated_at = now()
                """,
                [
                    spec.name, spec.made, list(spec.tables), list(spec.exclude), spec.flush_interval,
                    spec.flush_bytes, spec.enabled, spec.dropping,
                ],
            )  # fmt: skip

    def forget_group(self, name: str) -> None:
        """Nothing is known of a group any more; its tables are nobody's."""
        with self.telling() as connection:
            # Tables on their way to it stay where they are; those on their way from it are copied where they go.
            connection.execute(
                "UPDATE wal2lake.desired_tables SET group_name = moving_from, moving_from = NULL, handover_lsn = NULL"
                " WHERE group_name = %s AND moving_from IS NOT NULL AND handed_lsn IS NULL",
                [name],
            )
            connection.execute(
                "UPDATE wal2lake.desired_tables SET handed_lsn = '0/0' WHERE moving_from = %s AND handed_lsn IS NULL",
                [name],
            )
            connection.execute("DELETE FROM wal2lake.desired_groups WHERE name = %s", [name])
            connection.execute("DELETE FROM wal2lake.tables WHERE group_name = %s", [name])
            connection.execute("DELETE FROM wal2lake.groups WHERE name = %s", [name])
            connection.execute("DELETE FROM wal2lake.desired_tables WHERE group_name = %s AND wanted", [name])


def handed_to(connection: Session, oid: int, group: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM wal2lake.desired_tables"
        " WHERE oid = %s AND group_name = %s AND wanted AND moving_from IS NOT NULL AND handed_lsn IS NOT NULL"
        " FOR UPDATE",
        [oid, group],
    ).fetchone()
    return row is not None


def _table_spec(row: dict[str, Any]) -> TableSpec:
    return TableSpec(
        oid=int(row["oid"]), id=TableId(row["schema_name"], row["table_name"]), wanted=row["wanted"],
        group=row["group_name"], paused=row["paused"], target=table_id(row["target_schema"], row["target_name"]),
        copy=row["copy"], drop_lake=row["drop_lake"], resumed_at=row["resumed_at"], moving_from=row["moving_from"],
        handover_lsn=lsn(row["handover_lsn"]), handed_lsn=lsn(row["handed_lsn"]),
        handed_version=LakeVersion(row.get("handed_epoch") or 0, row.get("handed_commit") or 0),
    )  # fmt: skip


def _columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a TableSpec as columns of its table."""
    values: dict[str, Any] = {}
    for name, value in changes.items():
        match name:
            case "target":
                values |= {
                    "target_schema": value and value.schema, "target_name": value and value.name,
                }  # fmt: skip
            case "group":
                values["group_name"] = value
            case _:
                values[name] = text(value) if isinstance(value, Lsn) else value
    return values
