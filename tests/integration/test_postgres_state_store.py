"""The state store in PostgreSQL: older versions of its schema, lost connections. Its contract: tests/contract."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from servers import Database
from wal2lake.config import Config
from wal2lake.errors import SourceError
from wal2lake.position import Lsn
from wal2lake.schema import TableId
from wal2lake.source.database import Source
from wal2lake.state import TableRecord
from wal2lake.state.lifecycle import TableState
from wal2lake.state.postgres import PostgresStateStore
from wal2lake.state.postgres.migrate import LATEST

TABLE = TableRecord(
    "default", 4_000_000_000, TableId("My Schema", "a.b"), TableState.STREAMING, applied_lsn=Lsn.parse("1/2"), rows=5,
    changes_applied=7, last_commit_at=datetime(2024, 1, 1, tzinfo=UTC), error="e", remedy="r", failures=2,
)  # fmt: skip


@pytest.fixture
def store(database: Database) -> Iterator[PostgresStateStore]:
    made = PostgresStateStore(database.dsn)
    made.create()
    yield made
    made.close()


def test_many_tables_are_written_as_one(store: PostgresStateStore) -> None:
    tables = [replace(TABLE, oid=oid, id=TableId("s", f"t{oid:03}"), error=None) for oid in range(1, 301)]
    store.save_tables(tables)
    store.save_tables([replace(table, rows=9) for table in tables[:2]])
    assert [table.rows for table in store.tables()] == [9, 9, *[5] * 298]
    stamps = "SELECT count(DISTINCT updated_at) FROM wal2lake.tables"
    with psycopg.connect(store.dsn) as conn:
        assert conn.execute(stamps).fetchone() == (2,)


def test_a_store_of_the_first_version_is_brought_up_to_date(database: Database) -> None:
    store = PostgresStateStore(database.dsn)
    store.create()
    database.execute("ALTER TABLE wal2lake.groups DROP COLUMN warning, DROP COLUMN changelog_bytes")
    database.execute("DROP TABLE wal2lake.desired_tables, wal2lake.desired_groups")
    database.execute("UPDATE wal2lake.version SET version = 1")
    database.execute("INSERT INTO wal2lake.groups (name, state, slot, capture) VALUES ('g', 'STOPPED', 's', 'wal')")
    (old,) = store.groups()
    assert (old.warning, old.changelog_bytes) == (None, None)
    store.create()
    store.save_group(replace(old, warning="w"))
    assert [group.warning for group in store.groups()] == ["w"]
    assert database.value("SELECT array_agg(version) FROM wal2lake.version") == [LATEST]
    store.close()


def test_a_store_of_the_second_version_keeps_its_tables_and_their_lake_tables(database: Database) -> None:
    store = PostgresStateStore(database.dsn)
    store.create()
    store.save_tables([replace(TABLE, target=None)])
    database.execute(
        "DROP TABLE wal2lake.desired_tables, wal2lake.desired_groups, wal2lake.history;"
        "ALTER TABLE wal2lake.tables DROP COLUMN kind, DROP COLUMN target_schema, DROP COLUMN target_name,"
        " DROP COLUMN replaces, DROP COLUMN resync_round;"
        "UPDATE wal2lake.version SET version = 2"
    )
    assert store.version() == 2
    assert store.tables() == [replace(TABLE, target=None)]
    store.create()
    assert store.usable
    assert store.tables() == [replace(TABLE, target=TABLE.id)]
    assert (store.table_specs(), store.group_specs(), store.history(TABLE.id)) == ({}, {}, [])
    store.close()


def test_a_request_is_later_than_the_one_before_also_when_the_clock_was_set_back(
    database: Database, store: PostgresStateStore
) -> None:
    store.save_tables([TABLE])
    database.execute("UPDATE wal2lake.tables SET resync_wanted = now() + interval '1 hour'")
    (copying,) = store.requested_resyncs("default").values()
    assert store.request_resync([TABLE]) > copying
    store.resync_done("default", TABLE.oid, copying)
    assert list(store.requested_resyncs("default")) == [TABLE.oid]


def test_an_epoch_that_can_not_be_raised_says_so_in_our_words(database: Database, store: PostgresStateStore) -> None:
    lease = store.lease("default")
    lease.take()
    database.execute("DROP SEQUENCE wal2lake.epoch")
    with pytest.raises(SourceError, match="using the state store"):
        lease.raise_epoch(above=lease.epoch)
    lease.release()


def test_a_connection_that_was_lost_since_its_last_use_fails_nothing(
    database: Database, store: PostgresStateStore
) -> None:
    """A restarted server has ended the sessions at rest of everybody."""
    config = Config(source={"dsn": database.dsn}, lake={"path": "lake"})
    source = Source(config, config.groups[0])
    store.save_tables([TABLE])
    before = source.mark()
    ours = "application_name LIKE 'wal2lake%' AND pid <> pg_backend_pid()"
    ended = database.value(f"SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE {ours}")
    assert ended == 2
    assert store.tables() == [TABLE]
    assert source.mark() >= before
    source.close()
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM wal2lake.tables").fetchone() == (1,)
