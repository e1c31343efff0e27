"""Desired state, in PostgreSQL. Each change notifies the running processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psycopg import sql

from ...position import LakeVersion, Lsn
from ...schema import TableId
from ..records import GroupSpec, TableSpec
from .connection import StoreSession, lsn, table_id, text, translated
from .queries import query


class Specs(StoreSession):
    """The part of the store that commands write and runs read."""

    def table_specs(self) -> dict[int, TableSpec]:
        with self.use() as connection:
            rows = connection.execute(query("table_specs")).fetchall()
        return {int(row["oid"]): _table_spec(row) for row in rows}

    def set_table_spec(self, oid: int, id: TableId, changes: Mapping[str, Any]) -> None:
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

    def inherit_spec(self, oid: int, successor: int) -> None:
        with self.use() as connection:
            connection.execute(query("inherit_spec"), {"oid": oid, "successor": successor})

    def request_resume(self, tables: Iterable[tuple[int, TableId]]) -> None:
        with self.telling() as connection:
            for oid, id in tables:
                connection.execute(query("want_resumed"), {"oid": oid, **vars(id)})
                connection.execute(query("retry_now"), {"oid": oid})

    def drop_lake(self, oid: int, drop: Callable[[], object]) -> bool:
        # It may take long, so it uses a session of its own.
        with self._own_session() as connection, translated(), connection.transaction():
            locked = connection.execute(query("lock_spec_of_dropped_lake_table"), {"oid": oid}).fetchone()
            if locked is None:
                return False
            drop()
            connection.execute(query("end_dropping_of_lake_table"), {"oid": oid})
        return True

    def group_specs(self) -> dict[str, GroupSpec]:
        with self.use() as connection:
            rows = connection.execute(query("group_specs")).fetchall()
        return {
            row["name"]: GroupSpec(
                row["name"], row["made"], tuple(row["tables"]), tuple(row["exclude"]), row["flush_interval"],
                row["flush_bytes"], row["enabled"], row["dropping"],
            )
            for row in rows
        }  # fmt: skip

    def set_group_spec(self, spec: GroupSpec) -> None:
        with self.telling() as connection:
            values = {**vars(spec), "tables": list(spec.tables), "exclude": list(spec.exclude)}
            connection.execute(query("set_group_spec"), values)

    def forget_group(self, name: str) -> None:
        with self.telling() as connection:
            for step in (
                "keep_tables_moving_to_group", "hand_tables_moving_from_group", "forget_group_spec",
                "forget_tables_of_group", "forget_group_record", "forget_added_tables_of_group",
            ):  # fmt: skip
                connection.execute(query(step), {"group": name})


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
