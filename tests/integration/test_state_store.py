"""The state store on a real server: what is written is read back, requests survive, a group has one holder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from servers import Database
from waiting import wait_until
from wal2lake.errors import GroupHeld
from wal2lake.position import NO_VERSION, Lsn
from wal2lake.schema import TableId
from wal2lake.state import GroupLease, GroupRecord, GroupSpec, HistoryEntry, StateStore, TableRecord
from wal2lake.state.history import KEPT
from wal2lake.state.lifecycle import GroupState, TableState
from wal2lake.state.migrate import LATEST

TABLE = TableRecord(
    "default", 4_000_000_000, TableId("My Schema", "a.b"), TableState.STREAMING, applied_lsn=Lsn.parse("1/2"), rows=5,
    changes_applied=7, last_commit_at=datetime(2024, 1, 1, tzinfo=UTC), error="e", remedy="r", failures=2,
)  # fmt: skip


@pytest.fixture
def store(database: Database) -> Iterator[StateStore]:
    made = StateStore(database.dsn)
    made.create()
    yield made
    made.close()


def test_a_store_that_is_not_there_says_so(database: Database) -> None:
    store = StateStore(database.dsn)
    assert not store.exists()
    store.create()
    store.create()
    assert store.exists()
    store.drop()
    assert not store.exists()
    store.close()


def test_tables_and_groups_are_read_back_as_written(store: StateStore) -> None:
    group = GroupRecord(
        "default", GroupState.RUNNING, "slot", "wal", holder="h", logged_lsn=Lsn.parse("0/5"), warning="w",
        changelog_bytes=60_000_000_000,
    )  # fmt: skip
    store.save_group(group)
    store.save_tables([TABLE])
    store.save_tables([replace(TABLE, rows=6)])
    assert store.tables() == [replace(TABLE, rows=6)]
    assert store.tables("another") == []
    assert [replace(one, updated_at=None) for one in store.groups()] == [group]
    store.forget_tables("default", [TABLE.oid])
    assert store.tables() == []


def test_many_tables_are_written_as_one(store: StateStore) -> None:
    tables = [replace(TABLE, oid=oid, id=TableId("s", f"t{oid:03}"), error=None) for oid in range(1, 301)]
    store.save_tables(tables)
    store.save_tables([replace(table, rows=9) for table in tables[:2]])
    assert [table.rows for table in store.tables()] == [9, 9, *[5] * 298]
    stamps = "SELECT count(DISTINCT updated_at) FROM wal2lake.tables"
    with psycopg.connect(store.dsn) as conn:
        assert conn.execute(stamps).fetchone() == (2,)


def test_a_store_of_the_first_version_is_brought_up_to_date(database: Database) -> None:
    store = StateStore(database.dsn)
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
    store = StateStore(database.dsn)
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


def test_a_table_is_claimed_by_one_group(store: StateStore) -> None:
    other = replace(TABLE, group="other")
    assert store.claim_tables([TABLE]) == {TABLE.oid}
    assert store.claim_tables([other]) == set()
    assert [record.group for record in store.tables()] == ["default"]
    assert list(store.wanted_resyncs("default")) == [TABLE.oid]
    store.forget_tables("default", [TABLE.oid])
    assert store.claim_tables([other], copy=False) == {TABLE.oid}
    assert store.wanted_resyncs("other") == {}


def test_what_is_wanted_of_a_table_changes_bit_by_bit(store: StateStore) -> None:
    store.set_table_spec(7, TableId("public", "t"), {"wanted": True, "group": "g", "target": TableId("a", "b")})
    store.set_table_spec(7, TableId("public", "t"), {"paused": True})
    (spec,) = store.table_specs().values()
    assert (spec.wanted, spec.group, spec.target, spec.paused) == (True, "g", TableId("a", "b"), True)
    store.want_resumed([(7, TableId("public", "t"))])
    (spec,) = store.table_specs().values()
    assert not spec.paused and spec.resumed_at is not None and spec.wanted


def test_a_resume_ends_the_waiting_of_a_table_that_nobody_runs(store: StateStore) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    store.save_tables([replace(TABLE, state=TableState.ERRORED, retry_at=later, kind="transient")])
    store.want_resumed([(TABLE.oid, TABLE.id)])
    (record,) = store.tables()
    assert record.retry_at is not None and record.retry_at < later


def test_a_hand_over_is_one_step(store: StateStore) -> None:
    store.save_tables([TABLE])
    store.set_table_spec(TABLE.oid, TABLE.id, {"wanted": True, "group": "new", "moving_from": "default"})
    store.note_handover(TABLE.oid, Lsn(5))
    store.note_handover(TABLE.oid, Lsn(9))
    store.note_handed(TABLE.oid, "default", Lsn(8), NO_VERSION)
    (spec,) = store.table_specs().values()
    assert (spec.handover_lsn, spec.handed_lsn) == (Lsn(5), Lsn(8))
    assert store.tables() == []
    moved = replace(TABLE, group="new")
    assert not store.take_over(replace(TABLE, group="third"))
    assert store.take_over(moved) and store.take_over(moved), "it may be taken over again after a crash"
    assert list(store.wanted_resyncs("new")) == [TABLE.oid], "a re-copy, unless it is known to need none"
    assert store.end_take_over(TABLE.oid, "new", copied=True)
    assert not store.end_take_over(TABLE.oid, "new", copied=True)
    assert store.wanted_resyncs("new") == {}
    (spec,) = store.table_specs().values()
    assert (spec.group, spec.moving_from, spec.handover_lsn, spec.handed_lsn) == ("new", None, None, None)


def test_a_lake_table_is_dropped_only_while_that_is_wanted(store: StateStore) -> None:
    dropped: list[int] = []
    store.set_table_spec(7, TABLE.id, {"wanted": False, "drop_lake": True})
    store.set_table_spec(8, TABLE.id, {"wanted": False, "drop_lake": True})
    store.set_table_spec(8, TABLE.id, {"wanted": True})
    for oid in (7, 7, 8):
        store.drop_lake(oid, lambda oid=oid: dropped.append(oid))  # type: ignore[misc]
    assert dropped == [7]


def test_a_dropped_group_lets_tables_stay_that_were_to_come_and_gives_up_those_that_go(store: StateStore) -> None:
    for oid, spec in {
        1: {"group": "going", "moving_from": "default"},
        2: {"group": "default", "moving_from": "going"},
        3: {"group": "going"},
    }.items():
        store.set_table_spec(oid, TABLE.id, {"wanted": True, **spec})
    store.forget_group("going")
    specs = store.table_specs()
    assert set(specs) == {1, 2}
    assert (specs[1].group, specs[1].moving_from) == ("default", None)
    assert (specs[2].group, specs[2].moving_from, specs[2].handed_lsn) == ("default", "going", Lsn(0))


def test_the_history_of_a_table_is_bounded_and_found_by_any_of_its_names(store: StateStore) -> None:
    def entry(number: int, name: str, oid: int = 7) -> HistoryEntry:
        at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        return HistoryEntry("g", oid, TableId("public", name), at, "me", "PENDING", "SNAPSHOT", f"{number}")

    store.add_history([entry(number, "old") for number in range(KEPT + 10)])
    store.add_history([entry(1000, "new"), entry(1, "another", oid=8)])
    for name in ("old", "new"):
        entries = store.history(TableId("public", name))
        assert [int(each.detail or 0) for each in entries] == [*range(11, KEPT + 10), 1000]
    assert len(store.history(TableId("public", "another"))) == 1


def test_a_group_that_a_command_made_is_read_back_and_forgotten(store: StateStore) -> None:
    spec = GroupSpec("sales", True, ("public.a", "s.*"), ("s.x",), 0.5, 2_000_000)
    store.set_group_spec(spec)
    store.set_group_spec(replace(spec, enabled=False))
    assert store.group_specs() == {"sales": replace(spec, enabled=False)}
    store.save_tables([replace(TABLE, group="sales"), replace(TABLE, group="default", oid=9)])
    store.forget_group("sales")
    assert store.group_specs() == {}
    assert [record.group for record in store.tables()] == ["default"]


def test_a_new_table_wants_a_copy_until_one_is_committed(store: StateStore) -> None:
    store.save_tables([TABLE])
    (asked,) = store.wanted_resyncs("default").values()
    store.save_tables([replace(TABLE, state=TableState.SNAPSHOT)])
    assert store.wanted_resyncs("default") == {TABLE.oid: asked}
    store.resync_done("default", TABLE.oid, asked)
    assert store.wanted_resyncs("default") == {}


def test_a_resync_asked_for_during_a_copy_is_not_forgotten(store: StateStore) -> None:
    store.save_tables([TABLE])
    (first,) = store.wanted_resyncs("default").values()
    store.want_resync([TABLE])
    store.resync_done("default", TABLE.oid, first)
    (second,) = store.wanted_resyncs("default").values()
    assert second > first


def test_a_group_has_one_holder_who_is_named_to_the_other(database: Database) -> None:
    holder, other, third = (GroupLease(database.dsn, name) for name in ("default", "default", "another"))
    holder.take()
    with pytest.raises(GroupHeld, match=r"default is already mirrored by wal2lake on .*process"):
        other.take()
    third.take()
    third.release()
    holder.release()
    other.take()
    other.release()


def test_each_holder_has_a_higher_epoch_than_those_before(database: Database, store: StateStore) -> None:
    first, second = GroupLease(database.dsn, "default"), GroupLease(database.dsn, "default")
    first.take()
    assert 0 < first.epoch == first.raise_epoch() < first.raise_epoch(above=first.epoch)
    far = first.epoch + 10**12
    assert first.raise_epoch(above=far) > far
    database.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'wal2lake on%'")
    second.take()
    assert second.epoch > first.epoch
    with pytest.raises(GroupHeld):
        first.raise_epoch(above=second.epoch)
    first.release()
    second.release()


def test_a_lease_that_is_not_confirmed_is_not_recent(
    database: Database, store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = GroupLease(database.dsn, "default")
    recent = [lease.recent]
    lease.take()
    recent.append(lease.recent)
    monkeypatch.setattr("wal2lake.state.lease.LEASE_SECONDS", 0.0)
    recent.append(lease.recent)
    assert recent == [False, True, False]
    lease.release()


def test_a_request_wakes_the_holder(database: Database, store: StateStore) -> None:
    lease = GroupLease(database.dsn, "default")
    lease.take()
    woken: list[bool] = []
    watcher = threading.Thread(target=lambda: woken.append(lease.wait(20)))
    watcher.start()
    store.want_resync([TABLE])
    watcher.join(10)
    assert woken == [True]
    lease.release()


def test_a_lost_session_takes_the_group_again(database: Database) -> None:
    lease = GroupLease(database.dsn, "default")
    lease.take()
    database.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'wal2lake on%'")
    wait_until(lambda: not lease.wait(0.05) and not lease.held, 10, "the loss is noticed")
    assert lease.wait(0.05) is False
    assert lease.held
    lease.release()


def test_a_store_connects_again_after_a_lost_connection(database: Database, store: StateStore) -> None:
    store.save_tables([TABLE])
    database.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'wal2lake state'")

    def answers() -> bool:
        try:
            return store.tables() == [TABLE]
        except Exception as error:
            assert "the state store" in str(error), error
            return False

    wait_until(answers, 10, "the store answers again")
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM wal2lake.tables").fetchone() == (1,)
