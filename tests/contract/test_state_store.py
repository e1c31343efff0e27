"""The contract of StateStore, in PostgreSQL and in memory: each method, also with several processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from changelogs import begun
from state_servers import KINDS, StateServer, state_server_of
from wal2lake.changelog import storage_for
from wal2lake.errors import OtherInstallation, SourceError
from wal2lake.installation import Installation
from wal2lake.position import NO_VERSION, LakeVersion, Lsn
from wal2lake.schema import TableId
from wal2lake.state import GroupRecord, GroupSpec, HistoryEntry, StateStore, TableRecord
from wal2lake.state.lifecycle import GroupState, TableState
from wal2lake.state.ports import KEPT_ENTRIES
from wal2lake.state.records import AppendCounts

TABLE = TableRecord(
    "default", 4_000_000_000, TableId("My Schema", "a.b"), TableState.STREAMING, applied_lsn=Lsn.parse("1/2"), rows=5,
    changes_applied=7, last_commit_at=datetime(2024, 1, 1, tzinfo=UTC), error="e", remedy="r", failures=2,
)  # fmt: skip
GROUP = GroupRecord(
    "default", GroupState.RUNNING, "slot", "wal", holder="h", logged_lsn=Lsn.parse("0/5"), warning="w",
    changelog_bytes=60_000_000_000,
)  # fmt: skip
ENTRY = HistoryEntry("g", 7, TableId("public", "t"), datetime(2024, 1, 1, tzinfo=UTC), "me", "PENDING", "SNAPSHOT")
MOVING = {"wanted": True, "group": "new", "moving_from": "default"}
CALLS: dict[str, Callable[[StateStore], object]] = {
    "groups": lambda store: store.groups(),
    "save_group": lambda store: store.save_group(GROUP),
    "tables": lambda store: store.tables(),
    "save_tables": lambda store: store.save_tables([TABLE]),
    "claim_tables": lambda store: store.claim_tables([TABLE]),
    "forget_tables": lambda store: store.forget_tables("default", [TABLE.oid]),
    "append_counts": lambda store: store.append_counts("default"),
    "count_appends": lambda store: store.count_appends("default", TABLE.oid, {1: 2}),
    "updates_seen": lambda store: store.updates_seen("default", TABLE.oid),
    "want_resync": lambda store: store.request_resync([TABLE]),
    "want_resync quietly": lambda store: store.request_resync([TABLE], quietly=True),
    "wanted_resyncs": lambda store: store.requested_resyncs("default"),
    "rounds": lambda store: store.rounds("default"),
    "resync_done": lambda store: store.resync_done("default", TABLE.oid, None),
    "table_specs": lambda store: store.table_specs(),
    "set_table_spec": lambda store: store.set_table_spec(TABLE.oid, TABLE.id, {"wanted": True}),
    "inherit_spec": lambda store: store.inherit_spec(TABLE.oid, 8),
    "want_resumed": lambda store: store.request_resume([(TABLE.oid, TABLE.id)]),
    "drop_lake": lambda store: store.drop_lake(TABLE.oid, lambda: None),
    "group_specs": lambda store: store.group_specs(),
    "set_group_spec": lambda store: store.set_group_spec(GroupSpec("sales", True)),
    "forget_group": lambda store: store.forget_group("default"),
    "note_handover": lambda store: store.note_handover(TABLE.oid, Lsn(1)),
    "void_handovers": lambda store: store.void_handovers("default", [TABLE.oid]),
    "note_handed": lambda store: store.note_handed(TABLE.oid, "default", Lsn(1), NO_VERSION),
    "take_over": lambda store: store.take_over(TABLE),
    "end_take_over": lambda store: store.end_take_over(TABLE.oid, "default", copied=True),
    "add_history": lambda store: store.add_history([ENTRY]),
    "history": lambda store: store.history(TABLE.id),
}
NOTIFYING = {
    "want_resync", "set_table_spec", "want_resumed", "set_group_spec", "forget_group", "note_handover", "note_handed",
    "end_take_over",
}  # fmt: skip


@pytest.fixture(params=KINDS)
def state_server(request: pytest.FixtureRequest) -> Iterator[StateServer]:
    with state_server_of(request.param, request) as server:
        yield server


@pytest.fixture
def store(state_server: StateServer) -> StateStore:
    made = state_server.connect()
    made.create()
    return made


@pytest.fixture
def other(state_server: StateServer, store: StateStore) -> StateStore:
    """The same store, as another process uses it."""
    return state_server.connect()


# ---- the store itself


def test_a_store_that_is_not_there_says_so(state_server: StateServer) -> None:
    store = state_server.connect()
    assert (store.exists(), store.usable) == (False, False)
    store.require_own()
    store.create()
    store.create()
    assert (store.exists(), store.usable) == (True, True)
    store.drop()
    assert not store.exists()
    store.drop()
    assert store.holder("default") is None


def test_without_a_store_nothing_can_be_read_or_written(state_server: StateServer) -> None:
    store = state_server.connect()
    answered = []
    for name, call in CALLS.items():
        try:
            call(store)
            answered.append(name)
        except SourceError as error:
            assert "the state store" in str(error)
    assert answered == []
    store.save_tables([])
    store.add_history([])
    assert store.claim_tables([]) == set()


def test_a_store_that_was_dropped_has_forgotten_everything(store: StateStore) -> None:
    for name in ("save_group", "save_tables", "set_table_spec", "set_group_spec", "add_history"):
        CALLS[name](store)
    store.drop()
    store.create()
    assert (store.groups(), store.tables(), store.table_specs(), store.group_specs()) == ([], [], {}, {})
    assert store.history(ENTRY.id) == []


def test_a_store_is_made_once_by_processes_that_start_together(state_server: StateServer) -> None:
    stores = [state_server.connect() for _ in range(4)]
    _at_once([store.create for store in stores])
    stores[0].save_tables([TABLE])
    assert all(store.usable and store.tables() == [TABLE] for store in stores)


def test_what_one_process_writes_another_reads(store: StateStore, other: StateStore) -> None:
    store.save_tables([TABLE])
    other.save_tables([replace(TABLE, rows=6)])
    store.set_table_spec(TABLE.oid, TABLE.id, {"paused": True})
    other.set_table_spec(TABLE.oid, TABLE.id, {"wanted": True})
    assert store.tables() == other.tables() == [replace(TABLE, rows=6)]
    (spec,) = store.table_specs().values()
    assert spec.paused and spec.wanted


def test_a_closed_store_connects_again_also_with_limited_waits(store: StateStore) -> None:
    store.save_tables([TABLE])
    store.close()
    assert store.tables() == [TABLE]
    store.limit_waits()
    store.close()
    assert store.tables() == [TABLE]


def test_calls_about_what_is_missing_change_nothing(store: StateStore) -> None:
    for name in (
        "forget_tables", "count_appends", "updates_seen", "want_resync", "resync_done", "inherit_spec", "drop_lake",
        "note_handover", "note_handed", "take_over", "end_take_over", "forget_group",
    ):  # fmt: skip
        assert not CALLS[name](store) or name == "want_resync", name
    assert (store.groups(), store.tables(), store.table_specs(), store.append_counts("default")) == ([], [], {}, {})


# ---- how groups and tables stand


def test_tables_and_groups_are_read_back_as_written(store: StateStore) -> None:
    store.save_group(GROUP)
    store.save_tables([TABLE])
    store.save_tables([replace(TABLE, rows=6)])
    assert store.tables() == [replace(TABLE, rows=6)]
    assert store.tables("another") == []
    assert [replace(one, updated_at=None) for one in store.groups()] == [GROUP]
    store.forget_tables("default", [TABLE.oid])
    assert store.tables() == []


def test_every_field_of_a_table_is_kept(store: StateStore) -> None:
    full = replace(
        TABLE, behind_since=datetime(2024, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC), kind="transient",
        retry_at=datetime(2024, 1, 3, tzinfo=UTC), target=TableId("lake", "x"), version=LakeVersion(2**40, 17),
        changes_applied=2**40,
    )  # fmt: skip
    store.save_tables([full])
    assert store.tables() == [full]


def test_many_tables_are_written_as_one(store: StateStore) -> None:
    tables = [replace(TABLE, oid=oid, id=TableId("s", f"t{oid:03}"), error=None) for oid in range(1, 301)]
    store.save_tables(tables)
    store.save_tables([replace(table, rows=9) for table in tables[:2]])
    assert [table.rows for table in store.tables()] == [9, 9, *[5] * 298]


def test_tables_come_by_group_and_name_and_groups_by_name(store: StateStore) -> None:
    keys = [("b", "s", "a"), ("a", "t", "a"), ("a", "s", "b"), ("a", "s", "a")]
    store.save_tables(
        replace(TABLE, group=group, oid=oid, id=TableId(schema, name)) for oid, (group, schema, name) in enumerate(keys)
    )
    for name in ("b", "a"):
        store.save_group(replace(GROUP, name=name))
    assert [(each.group, each.id.schema, each.id.name) for each in store.tables()] == sorted(keys)
    assert [each.oid for each in store.tables("a")] == [3, 2, 1]
    assert [each.name for each in store.groups()] == ["a", "b"]


def test_a_group_keeps_the_position_that_it_knew(store: StateStore) -> None:
    store.save_group(GROUP)
    (first,) = store.groups()
    store.save_group(replace(GROUP, logged_lsn=None, state=GroupState.STOPPED, warning=None))
    (second,) = store.groups()
    assert (second.logged_lsn, second.state, second.warning) == (GROUP.logged_lsn, GroupState.STOPPED, None)
    assert first.updated_at is not None and second.updated_at is not None and first.updated_at < second.updated_at


def test_a_character_that_text_can_not_hold_is_left_out(store: StateStore) -> None:
    store.save_tables([replace(TABLE, error="a\0b")])
    store.save_group(replace(GROUP, error="c\0d"))
    store.add_history([replace(ENTRY, detail="e\0f")])
    assert [table.error for table in store.tables()] == ["ab"]
    assert [group.error for group in store.groups()] == ["cd"]
    assert [entry.detail for entry in store.history(ENTRY.id)] == ["ef"]


def test_a_table_is_claimed_by_one_group(store: StateStore) -> None:
    other = replace(TABLE, group="other")
    assert store.claim_tables([TABLE]) == {TABLE.oid}
    assert store.claim_tables([other]) == set()
    assert [record.group for record in store.tables()] == ["default"]
    assert list(store.requested_resyncs("default")) == [TABLE.oid]
    store.forget_tables("default", [TABLE.oid])
    assert store.claim_tables([other], copy=False) == {TABLE.oid}
    assert store.requested_resyncs("other") == {}


def test_of_groups_that_claim_the_same_tables_at_once_each_table_has_one(
    state_server: StateServer, store: StateStore
) -> None:
    claimed: dict[str, set[int]] = {}

    def claim(group: str) -> None:
        tables = [replace(TABLE, group=group, oid=oid, id=TableId("s", f"t{oid}")) for oid in range(1, 41)]
        mine = state_server.connect()
        claimed[group] = set().union(*(mine.claim_tables(tables[n : n + 4]) for n in range(0, 40, 4)))

    _at_once([partial(claim, group) for group in ("a", "b", "c")])
    assert sorted(oid for oids in claimed.values() for oid in oids) == list(range(1, 41))
    assert {(record.group, record.oid) for record in store.tables()} == {
        (group, oid) for group, oids in claimed.items() for oid in oids
    }


def test_counts_of_an_append_only_table_are_kept_until_it_is_counted_again(store: StateStore) -> None:
    store.save_tables([TABLE, replace(TABLE, oid=9)])
    assert store.append_counts("default") == {}
    store.count_appends("default", TABLE.oid, {1: 2, 4_000_000_000: 2**40})
    assert store.append_counts("default") == {TABLE.oid: AppendCounts({1: 2, 4_000_000_000: 2**40}, None)}
    assert store.append_counts("another") == {}
    store.updates_seen("default", TABLE.oid)
    first = store.append_counts("default")[TABLE.oid].seen_at
    store.updates_seen("default", TABLE.oid)
    assert first is not None and store.append_counts("default")[TABLE.oid].seen_at == first
    store.save_tables([TABLE])
    assert store.append_counts("default")[TABLE.oid].seen_at == first
    store.count_appends("default", TABLE.oid, {1: 3})
    assert store.append_counts("default") == {TABLE.oid: AppendCounts({1: 3}, None)}


# ---- requests for copies


def test_a_new_table_has_a_copy_request_until_one_is_committed(store: StateStore) -> None:
    store.save_tables([TABLE])
    (asked,) = store.requested_resyncs("default").values()
    store.save_tables([replace(TABLE, state=TableState.SNAPSHOT)])
    assert store.requested_resyncs("default") == {TABLE.oid: asked}
    store.resync_done("default", TABLE.oid, asked)
    assert store.requested_resyncs("default") == {}


def test_a_resync_asked_for_during_a_copy_is_not_forgotten(store: StateStore, other: StateStore) -> None:
    store.save_tables([TABLE])
    (first,) = store.requested_resyncs("default").values()
    asked = other.request_resync([TABLE])
    store.resync_done("default", TABLE.oid, first)
    (second,) = store.requested_resyncs("default").values()
    assert asked == second > first
    store.resync_done("default", TABLE.oid, None)
    assert store.requested_resyncs("default") == {TABLE.oid: second}
    store.resync_done("default", TABLE.oid, second)
    assert store.requested_resyncs("default") == {}


def test_tables_that_are_asked_for_together_have_one_round_and_time(store: StateStore) -> None:
    tables = [replace(TABLE, oid=oid, id=TableId("s", f"t{oid}")) for oid in (1, 2, 3)]
    store.save_tables([*tables, replace(TABLE, group="another", oid=1)])
    assert store.rounds("default") == {}
    asked = store.request_resync(tables[:2], "word")
    assert store.rounds("default") == {1: "word", 2: "word"}
    assert store.rounds("another") == {}
    wanted = store.requested_resyncs("default")
    assert wanted[1] == wanted[2] == asked > wanted[3]
    store.resync_done("default", 1, asked)
    assert store.rounds("default") == {2: "word"}
    store.request_resync(tables[:2])
    assert store.rounds("default") == {}


def test_a_table_that_began_without_its_rows_has_them_after_a_copy(store: StateStore) -> None:
    store.set_table_spec(TABLE.oid, TABLE.id, {"wanted": True, "copy": False})
    assert store.claim_tables([TABLE], copy=False) == {TABLE.oid}
    asked = store.request_resync([TABLE])
    assert not store.table_specs()[TABLE.oid].copy
    store.resync_done("default", TABLE.oid, asked)
    assert store.table_specs()[TABLE.oid].copy


# ---- desired state


def test_fields_of_a_table_spec_change_one_by_one(store: StateStore) -> None:
    store.set_table_spec(7, TableId("public", "t"), {"wanted": True, "group": "g", "target": TableId("a", "b")})
    store.set_table_spec(7, TableId("public", "t"), {"paused": True})
    (spec,) = store.table_specs().values()
    assert (spec.wanted, spec.group, spec.target, spec.paused) == (True, "g", TableId("a", "b"), True)
    store.request_resume([(7, TableId("public", "t"))])
    (spec,) = store.table_specs().values()
    assert not spec.paused and spec.resumed_at is not None and spec.wanted


def test_a_spec_takes_the_new_name_of_its_table_and_gives_up_a_target(store: StateStore) -> None:
    store.set_table_spec(7, TableId("public", "t"), {"target": TableId("a", "b")})
    store.set_table_spec(7, TableId("public", "renamed"), {})
    assert (store.table_specs()[7].id, store.table_specs()[7].target) == (
        TableId("public", "renamed"),
        TableId("a", "b"),
    )
    store.set_table_spec(7, TableId("public", "renamed"), {"target": None})
    assert store.table_specs()[7].target is None


def test_a_resume_ends_the_wait_of_a_table_without_a_run(store: StateStore) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    store.save_tables([replace(TABLE, state=TableState.ERRORED, retry_at=later, kind="transient")])
    store.request_resume([(TABLE.oid, TABLE.id)])
    (record,) = store.tables()
    assert record.retry_at is not None and record.retry_at < later


def test_a_second_resume_is_later_and_keeps_the_name(store: StateStore) -> None:
    store.request_resume([(7, TableId("public", "t"))])
    first = store.table_specs()[7]
    store.request_resume([(7, TableId("public", "other"))])
    second = store.table_specs()[7]
    assert first.resumed_at is not None and second.resumed_at is not None and first.resumed_at < second.resumed_at
    assert second.id == TableId("public", "t")


def test_a_table_of_the_same_name_inherits_the_spec_but_no_move(store: StateStore) -> None:
    store.set_table_spec(7, TABLE.id, {**MOVING, "paused": True})
    store.note_handover(7, Lsn(5))
    store.inherit_spec(7, 8)
    ((oid, spec),) = store.table_specs().items()
    assert (oid, spec.oid, spec.id, spec.paused, spec.group) == (8, 8, TABLE.id, True, "new")
    assert (spec.moving_from, spec.handover_lsn, spec.handed_lsn) == (None, None, None)
    store.set_table_spec(9, TABLE.id, {"paused": False})
    store.inherit_spec(8, 9)
    assert {oid: spec.paused for oid, spec in store.table_specs().items()} == {8: True, 9: False}


def test_a_lake_table_is_dropped_only_while_that_is_requested(store: StateStore) -> None:
    dropped: list[int] = []
    store.set_table_spec(7, TABLE.id, {"wanted": False, "drop_lake": True})
    store.set_table_spec(8, TABLE.id, {"wanted": False, "drop_lake": True})
    store.set_table_spec(8, TABLE.id, {"wanted": True})
    answers = [store.drop_lake(oid, partial(dropped.append, oid)) for oid in (7, 7, 8)]
    assert dropped == [7]
    assert answers == [True, False, False]


def test_a_drop_that_fails_stays_requested(store: StateStore) -> None:
    store.set_table_spec(7, TABLE.id, {"wanted": False, "drop_lake": True})

    def fail() -> None:
        raise OSError("the lake is away")

    with pytest.raises(OSError, match="the lake is away"):
        store.drop_lake(7, fail)
    assert store.table_specs()[7].drop_lake
    assert store.drop_lake(7, lambda: None)
    assert not store.table_specs()[7].drop_lake


def test_a_table_that_is_added_again_waits_until_its_lake_table_is_dropped(
    store: StateStore, other: StateStore
) -> None:
    store.set_table_spec(7, TABLE.id, {"wanted": False, "drop_lake": True})
    began, may_end, order = threading.Event(), threading.Event(), list[str]()

    def drop() -> None:
        began.set()
        assert may_end.wait(10)
        order.append("dropped")

    def add() -> None:
        other.set_table_spec(7, TABLE.id, {"wanted": True})
        order.append("added")

    dropping = threading.Thread(target=store.drop_lake, args=[7, drop])
    dropping.start()
    assert began.wait(10)
    store.set_table_spec(8, TABLE.id, {"wanted": True})
    adding = threading.Thread(target=add)
    adding.start()
    adding.join(0.2)
    assert adding.is_alive()
    may_end.set()
    for thread in (dropping, adding):
        thread.join(10)
    assert order == ["dropped", "added"]
    assert (store.table_specs()[7].wanted, store.table_specs()[7].drop_lake) == (True, False)


def test_a_group_that_a_command_made_is_read_back_and_forgotten(store: StateStore) -> None:
    spec = GroupSpec("sales", True, ("public.a", "s.*"), ("s.x",), 0.5, 2_000_000)
    store.set_group_spec(spec)
    store.set_group_spec(replace(spec, enabled=False))
    assert store.group_specs() == {"sales": replace(spec, enabled=False)}
    store.save_group(replace(GROUP, name="sales"))
    store.save_tables([replace(TABLE, group="sales"), replace(TABLE, group="default", oid=9)])
    store.forget_group("sales")
    assert store.group_specs() == {}
    assert store.groups() == []
    assert [record.group for record in store.tables()] == ["default"]


def test_groups_that_commands_have_named_come_by_name(store: StateStore) -> None:
    for name in ("b", "c", "a"):
        store.set_group_spec(GroupSpec(name, made=False, dropping=name == "b"))
    assert [(name, spec.dropping) for name, spec in store.group_specs().items()] == [
        ("a", False), ("b", True), ("c", False),
    ]  # fmt: skip


def test_a_dropped_group_lets_tables_stay_that_were_to_come_and_gives_up_those_that_go(store: StateStore) -> None:
    changes: dict[int, dict[str, Any]] = {
        1: {"group": "going", "moving_from": "default"},
        2: {"group": "default", "moving_from": "going"},
        3: {"group": "going"},
        4: {"group": "going", "wanted": False},
    }
    for oid, spec in changes.items():
        store.set_table_spec(oid, TABLE.id, {"wanted": True, **spec})
    store.forget_group("going")
    specs = store.table_specs()
    assert set(specs) == {1, 2, 4}
    assert (specs[1].group, specs[1].moving_from) == ("default", None)
    assert (specs[2].group, specs[2].moving_from, specs[2].handed_lsn) == ("default", "going", Lsn(0))


# ---- moves


def test_a_hand_over_is_one_step(store: StateStore) -> None:
    store.save_tables([TABLE])
    store.set_table_spec(TABLE.oid, TABLE.id, MOVING)
    store.note_handover(TABLE.oid, Lsn(5))
    store.note_handover(TABLE.oid, Lsn(9))
    store.note_handed(TABLE.oid, "default", Lsn(8), LakeVersion(3, 4))
    (spec,) = store.table_specs().values()
    assert (spec.handover_lsn, spec.handed_lsn, spec.handed_version) == (Lsn(5), Lsn(8), LakeVersion(3, 4))
    assert store.tables() == []
    moved = replace(TABLE, group="new")
    assert not store.take_over(replace(TABLE, group="third"))
    assert store.take_over(moved) and store.take_over(moved), "it may be taken over again after a crash"
    assert list(store.requested_resyncs("new")) == [TABLE.oid], "a re-copy, unless it is known to need none"
    assert store.end_take_over(TABLE.oid, "new", copied=True)
    assert not store.end_take_over(TABLE.oid, "new", copied=True)
    assert store.requested_resyncs("new") == {}
    (spec,) = store.table_specs().values()
    assert (spec.group, spec.moving_from, spec.handover_lsn, spec.handed_lsn) == ("new", None, None, None)


def test_a_hand_over_below_the_handover_position_is_one_with_a_copy(store: StateStore) -> None:
    store.set_table_spec(TABLE.oid, TABLE.id, MOVING)
    store.note_handover(TABLE.oid, Lsn(5))
    store.note_handed(TABLE.oid, "default", Lsn(4), LakeVersion(3, 4))
    assert store.table_specs()[TABLE.oid].handed_lsn == Lsn(0)


def test_a_position_from_which_nothing_is_captured_any_more_does_not_count(store: StateStore) -> None:
    store.set_table_spec(TABLE.oid, TABLE.id, MOVING)
    store.note_handover(TABLE.oid, Lsn(5))
    assert store.void_handovers("default", [TABLE.oid]) == frozenset()
    assert store.void_handovers("new", [TABLE.oid, 9]) == {TABLE.oid}
    assert store.table_specs()[TABLE.oid].handover_lsn is None
    store.note_handover(TABLE.oid, Lsn(9))
    assert store.table_specs()[TABLE.oid].handover_lsn == Lsn(9), "a later one counts again"
    store.note_handed(TABLE.oid, "default", Lsn(9), LakeVersion(3, 4))
    assert store.take_over(replace(TABLE, group="new"))
    assert store.void_handovers("new", [TABLE.oid]) == {TABLE.oid}, "also while the table is taken over"
    assert store.table_specs()[TABLE.oid].handed_lsn == Lsn(0)
    assert not store.end_take_over(TABLE.oid, "new", copied=True)
    assert list(store.requested_resyncs("new")) == [TABLE.oid]
    assert store.end_take_over(TABLE.oid, "new", copied=False)
    assert store.void_handovers("new", [TABLE.oid]) == frozenset()


def test_a_table_that_needs_a_copy_where_it_goes_keeps_the_request(store: StateStore) -> None:
    store.set_table_spec(TABLE.oid, TABLE.id, MOVING)
    store.note_handed(TABLE.oid, "default", Lsn(8), NO_VERSION)
    since = store.take_over(replace(TABLE, group="new"))
    assert store.requested_resyncs("new") == {TABLE.oid: since}
    assert store.end_take_over(TABLE.oid, "new", copied=False)
    assert store.requested_resyncs("new") == {TABLE.oid: since}


def test_only_the_group_that_a_table_comes_from_hands_it_over(store: StateStore) -> None:
    store.set_table_spec(TABLE.oid, TABLE.id, MOVING)
    store.note_handed(TABLE.oid, "third", Lsn(8), NO_VERSION)
    assert store.table_specs()[TABLE.oid].handed_lsn is None
    assert store.take_over(replace(TABLE, group="new")) is None
    assert store.tables() == []


def test_a_table_that_was_removed_on_its_way_is_not_taken_over(store: StateStore, other: StateStore) -> None:
    store.set_table_spec(TABLE.oid, TABLE.id, MOVING)
    store.note_handed(TABLE.oid, "default", Lsn(8), NO_VERSION)
    moved = replace(TABLE, group="new")
    assert store.take_over(moved) is not None
    other.set_table_spec(TABLE.oid, TABLE.id, {"wanted": False})
    assert not store.end_take_over(TABLE.oid, "new", copied=True)
    assert list(store.requested_resyncs("new")) == [TABLE.oid]
    assert store.take_over(moved) is None


def test_a_table_that_another_group_has_is_not_taken_over(store: StateStore) -> None:
    store.set_table_spec(TABLE.oid, TABLE.id, MOVING)
    store.note_handed(TABLE.oid, "default", Lsn(8), NO_VERSION)
    store.save_tables([replace(TABLE, group="third")])
    assert store.take_over(replace(TABLE, group="new")) is None
    assert [record.group for record in store.tables()] == ["third"]


# ---- history


def test_the_history_of_a_table_is_bounded_and_found_by_any_of_its_names(store: StateStore) -> None:
    def entry(number: int, name: str, oid: int = 7) -> HistoryEntry:
        at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        return HistoryEntry("g", oid, TableId("public", name), at, "me", "PENDING", "SNAPSHOT", f"{number}")

    store.add_history([entry(number, "old") for number in range(KEPT_ENTRIES + 10)])
    store.add_history([entry(1000, "new"), entry(1, "another", oid=8)])
    for name in ("old", "new"):
        entries = store.history(TableId("public", name))
        assert [int(each.detail or 0) for each in entries] == [*range(11, KEPT_ENTRIES + 10), 1000]
    assert len(store.history(TableId("public", "another"))) == 1
    assert store.history(TableId("public", "missing")) == []


def test_history_is_read_back_as_written_by_time_and_by_the_present_name(store: StateStore) -> None:
    late, early = replace(ENTRY, at=ENTRY.at + timedelta(seconds=1), detail="why"), replace(ENTRY, after=None)
    store.add_history([late, early])
    assert store.history(ENTRY.id) == [early, late]
    store.save_tables([replace(TABLE, oid=ENTRY.oid, id=TableId("public", "renamed"))])
    assert store.history(TableId("public", "renamed")) == [early, late]


# ---- notifications


def test_what_is_asked_for_wakes_whoever_listens(state_server: StateServer, store: StateStore) -> None:
    listener = state_server.listener()
    listener.take()
    for name, call in CALLS.items():
        call(store)
        heard = listener.wait(10) if name in NOTIFYING else listener.wait(0.02)
        assert heard == (name in NOTIFYING), name


# ---- whose store it is


def _lake(path: Path) -> Installation:
    return Installation.of(path / "_wal2lake")


def test_a_store_is_refused_to_another_installation(state_server: StateServer, tmp_path: Path) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    first = state_server.connect(_lake(mine))
    first.create()
    assert _lake(mine).id is not None
    state_server.connect(_lake(mine)).require_own()
    for id in (None, "of its own"):
        second = state_server.connect(_lake(others))
        for use in (second.require_own, second.create):
            with pytest.raises(OtherInstallation, match="mine"):
                use()
        assert (_lake(others).id is None) == (id is None)
        Installation.made(_lake(others).root)
    first.create()
    state_server.connect().require_own()
    first.drop()
    second.create()
    with pytest.raises(OtherInstallation, match="others"):
        first.create()


def test_of_installations_that_start_together_one_has_the_store(state_server: StateServer, tmp_path: Path) -> None:
    stores = [state_server.connect(_lake(tmp_path / f"lake{n}")) for n in range(3)]
    refused: list[StateStore] = []

    def create(store: StateStore) -> None:
        try:
            store.create()
        except OtherInstallation:
            refused.append(store)

    _at_once([partial(create, store) for store in stores])
    assert len(refused) == 2
    for store in refused:
        with pytest.raises(OtherInstallation):
            store.create()
    (owner,) = (store for store in stores if store not in refused)
    owner.create()


def test_a_lake_that_was_begun_again_in_its_place_has_the_store(state_server: StateServer, tmp_path: Path) -> None:
    first = state_server.connect(_lake(tmp_path))
    first.create()
    (_lake(tmp_path).root / "installation.json").unlink()
    again = state_server.connect(_lake(tmp_path))
    again.require_own()
    again.create()
    with pytest.raises(OtherInstallation):
        first.require_own()


def test_a_lake_that_was_moved_keeps_the_store(state_server: StateServer, tmp_path: Path) -> None:
    state_server.connect(_lake(tmp_path / "old")).create()
    (tmp_path / "old").rename(tmp_path / "new")
    state_server.connect(_lake(tmp_path / "new")).create()
    with pytest.raises(OtherInstallation, match="new"):
        state_server.connect(_lake(tmp_path / "third")).require_own()


def test_a_store_that_does_not_say_whose_it_is_belongs_to_the_lake_with_its_logs(
    state_server: StateServer, store: StateStore, tmp_path: Path
) -> None:
    begun(storage_for(_lake(tmp_path / "mine").root))
    state_server.connect(_lake(tmp_path / "other")).require_own()
    store.save_group(replace(GROUP, name="g"))
    with pytest.raises(OtherInstallation, match="unknown"):
        state_server.connect(_lake(tmp_path / "other")).create()
    state_server.connect(_lake(tmp_path / "mine")).create()
    with pytest.raises(OtherInstallation, match="mine"):
        state_server.connect(_lake(tmp_path / "third")).require_own()


def _at_once(works: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
