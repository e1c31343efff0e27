"""A table is locked for its copy while other sessions hold locks on it, or on parts of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from remedies import fixes
from servers import Database
from waiting import wait_until
from wal2lake.config import SourceConfig
from wal2lake.errors import SourceRefused
from wal2lake.schema import TableSchema
from wal2lake.source import connect
from wal2lake.source.copies import copying
from wal2lake.source.publishing import slot
from wal2lake.source.tables import catalog


def test_partitions_are_locked_in_waits_too_short_to_abort_a_migration(database: Database) -> None:
    """Two transactions that wait for each other for a second: PostgreSQL would end one of them."""
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20)"
    )
    source = SourceConfig(dsn=database.dsn)
    oid = int(database.value("SELECT 'p'::regclass::oid::bigint"))
    with connect(source) as conn:
        schema = catalog.describe(conn, [oid], {})[oid]
    began: set[object] = set()

    def waited_often() -> bool:
        began.update(
            database.rows("SELECT waitstart FROM pg_locks WHERE NOT granted AND relation = 'p_2'::regclass")
        )  # fmt: skip
        return len(began - {(None,)}) >= 3

    def hold(snapshot: str) -> TableSchema:
        with copying.held_still(partial(connect, source, "g"), schema, snapshot, {}, lambda: False) as described:
            return described

    with (
        slot.create(source, "wal2lake_held", "g", temporary=True) as held,
        database.connect(autocommit=False) as migration,
        ThreadPoolExecutor(1) as pool,
    ):
        migration.execute("LOCK TABLE p_2")
        described = pool.submit(hold, held.snapshot.name)
        wait_until(waited_often, 8, "several short waits for a partition")
        migration.execute("LOCK TABLE p")
        migration.commit()
        assert described.result(30) == schema


@fixes("unreadable: ALTER ROLE … BYPASSRLS;")
def test_a_partition_that_may_not_be_read_is_named_with_its_grant(database: Database) -> None:
    role = f"{database.name}_reader"
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE SCHEMA apart;"
        "CREATE TABLE apart.p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'"
    )
    source = SourceConfig(dsn=f"{database.dsn}?user={role}&password=x")
    oid = int(database.value("SELECT 'p'::regclass::oid::bigint"))
    try:
        with connect(source) as conn:
            schema = catalog.describe(conn, [oid], {})[oid]
        with slot.create(source, "wal2lake_held", "g", temporary=True) as held:
            with (
                pytest.raises(SourceRefused) as raised,
                copying.held_still(partial(connect, source, "g"), schema, held.snapshot.name, {}, lambda: False),
            ):
                pass
            assert "apart.p_1" in str(raised.value)
            database.execute(raised.value.remedy)
            database.execute("ALTER TABLE apart.p_1 ENABLE ROW LEVEL SECURITY")
            with (
                pytest.raises(SourceRefused) as raised,
                copying.held_still(partial(connect, source, "g"), schema, held.snapshot.name, {}, lambda: False),
            ):
                pass
            database.execute(raised.value.remedy)
            with copying.held_still(
                partial(connect, source, "g"), schema, held.snapshot.name, {}, lambda: False
            ) as described:
                assert described == schema
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
