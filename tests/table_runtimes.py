"""A table runtime in memory, for tests of code that decides on tables."""

from datetime import UTC, datetime, timedelta

from wal2lake.changelog.manifest import Manifest, ManifestEntry
from wal2lake.lake.model import Applied
from wal2lake.position import Lsn
from wal2lake.reconcile.table_runtime import TableRuntime
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.state import TableRecord
from wal2lake.state.lifecycle import TableState
from wal2lake.types import LakeType

COLUMN = Column("id", 23, -1, "integer", LakeType.parse("int"))
SCHEMA = TableSchema(7, TableId("public", "t"), (COLUMN,), ("id",), ReplicaIdentity.DEFAULT)
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def run(state: TableState = TableState.PENDING) -> TableRuntime:
    return TableRuntime(SCHEMA, TableRecord("g", 7, SCHEMA.id, state))


def manifest(number: int, oid: int = 7) -> Manifest:
    cuts = {oid: ManifestEntry(oid, "t")}
    return Manifest(number, Lsn(number * 10), Lsn(number * 10 + 10), 1, NOON + timedelta(seconds=number), cuts)


def applied(manifest: int = 0) -> Applied:
    return Applied(Lsn(manifest * 10 + 10), manifest, 0, 5, SCHEMA)


def copied(at: int = 0) -> TableRuntime:
    table = run()
    table.begin_copy(at)
    table.finish(applied(at), [])
    return table
