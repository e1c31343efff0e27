"""Records of groups and tables, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from psycopg.types.json import Jsonb

from ...position import LakeVersion
from ...schema import TableId
from ..lifecycle import GroupState, Mode, TableState
from ..records import AppendCounts, GroupRecord, TableRecord
from .connection import Session, StoreSession, jsonable, lsn, table_id, text
from .locks import CLAIMING, lock_until_commit
from .queries import query


class Records(StoreSession):
    """The part of the store that the run of a group writes and everyone reads."""

    def groups(self) -> list[GroupRecord]:
        with self.use() as connection:
            rows = connection.execute(query("groups")).fetchall()
        return [
            GroupRecord(
                name=row["name"], state=GroupState(row["state"]), slot=row["slot"], capture=row["capture"],
                holder=row["holder"], logged_lsn=lsn(row["logged_lsn"]), error=row["error"], remedy=row["remedy"],
                warning=row.get("warning"), changelog_bytes=row.get("changelog_bytes"),
                still_since=row.get("still_since"), updated_at=row["updated_at"],
            )
            for row in rows
        ]  # fmt: skip

    def save_group(self, group: GroupRecord) -> None:
        with self.use() as connection, connection.transaction():
            # The stored position shows whether the source was restored, so it must survive a crash.
            connection.execute("SET LOCAL synchronous_commit = local")
            values = {name: jsonable(value) if isinstance(value, str) else value for name, value in vars(group).items()}
            connection.execute(query("save_group"), {**values, "logged_lsn": text(group.logged_lsn)})

    def tables(self, group: str | None = None) -> list[TableRecord]:
        with self.use() as connection:
            rows = connection.execute(query("tables"), {"group": group}).fetchall()
        return [_table_record(row) for row in rows]

    def save_tables(self, tables: Iterable[TableRecord]) -> None:
        values = [_table_values(table) for table in tables]
        if values:
            with self.use() as connection, connection.transaction():
                # Changes are deleted after this, so it must survive a crash.
                connection.execute("SET LOCAL synchronous_commit = local")
                connection.execute(query("save_tables"), {"tables": Jsonb(values)})

    def claim_tables(self, tables: Iterable[TableRecord], copy: bool = True) -> set[int]:
        records = list(tables)
        if not records:
            return set()
        with self.use() as connection, connection.transaction():
            claimed = claim(connection, records)
            if not copy:
                connection.execute(query("cancel_resyncs"), {"oids": list(claimed), "group": None})
        return claimed

    def forget_tables(self, group: str, oids: Iterable[int]) -> None:
        with self.use() as connection:
            connection.execute(query("forget_tables"), {"group": group, "oids": list(oids)})

    def append_counts(self, group: str) -> dict[int, AppendCounts]:
        with self.use() as connection:
            rows = connection.execute(query("append_counts"), {"group": group}).fetchall()
        return {
            int(row["oid"]): AppendCounts(
                {int(heap): count for heap, count in row["append_counts"].items()}, row["append_seen_at"]
            )
            for row in rows
        }

    def count_appends(self, group: str, oid: int, counts: Mapping[int, int]) -> None:
        given = Jsonb({str(heap): count for heap, count in counts.items()})
        with self.use() as connection:
            connection.execute(query("count_appends"), {"group": group, "oid": oid, "counts": given})

    def updates_seen(self, group: str, oid: int) -> None:
        with self.use() as connection:
            connection.execute(query("updates_seen"), {"group": group, "oid": oid})


def claim(connection: Session, tables: Iterable[TableRecord]) -> set[int]:
    """Write records of tables that belong to no group; return them."""
    lock_until_commit(connection, CLAIMING)
    values = Jsonb([_table_values(table) for table in tables])
    rows = connection.execute(query("claim_tables"), {"tables": values}).fetchall()
    return {int(row["oid"]) for row in rows}


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
