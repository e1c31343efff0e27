"""Which group has a table, under which name in the lake, and when it can go to another group."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from table_runtimes import SCHEMA, applied, copied, manifest, run
from wal2lake.config import Config, TableConfig
from wal2lake.position import ZERO, Lsn
from wal2lake.reconcile.desired_tables import (
    Naming,
    by_name,
    desired_oids,
    enabled,
    groups_of,
    interim_name,
    listed,
    moves_in,
    moves_out,
    taken_targets,
)
from wal2lake.reconcile.handover import handed_at
from wal2lake.reconcile.renaming import next_name
from wal2lake.reconcile.table_runtime import TableRuntime
from wal2lake.scheduling.initial_copies import rounds
from wal2lake.schema import TableId
from wal2lake.source.tables.matching import FoundTable, Matched
from wal2lake.state import GroupSpec, TableRecord, TableSpec
from wal2lake.state.lifecycle import TableState

T = TableId("public", "t")
ADDED = TableSpec(7, T, wanted=True, group="g")
MOVING = TableSpec(7, T, wanted=True, group="new", moving_from="old")


@pytest.mark.parametrize(
    ("group", "matched", "spec", "held", "wanted"),
    [
        ("g", True, None, {}, True),
        ("g", False, None, {}, False),
        ("g", True, None, {7: "other"}, False),
        ("g", True, replace(ADDED, wanted=None, group=None, paused=True), {}, True),
        ("g", False, ADDED, {}, True),
        ("other", True, ADDED, {}, False),
        ("g", True, replace(ADDED, wanted=False), {7: "g"}, False),
        ("old", False, MOVING, {7: "old"}, True),
        ("new", False, MOVING, {7: "old"}, True),
        ("old", True, replace(MOVING, handed_lsn=Lsn(5)), {}, False),
        ("third", True, MOVING, {7: "old"}, False),
    ],
)
def test_a_table_is_of_the_group_that_was_asked_for_or_has_it(
    group: str, matched: bool, spec: TableSpec | None, held: dict[int, str], wanted: bool
) -> None:
    specs = {} if spec is None else {7: spec}
    means = Matched((FoundTable(7, T, False),) if matched else (), (), ())
    assert desired_oids(group, means, specs, held) == ((7,) if wanted else ())


LEAF = FoundTable(71, TableId("public", "t_1"), False)
LEAVES = {7: (71, 72)}


@pytest.mark.parametrize(
    ("specs", "units", "wanted"),
    [
        ([], LEAVES, (71,)),
        ([ADDED], LEAVES, (71, 72)),
        ([ADDED, TableSpec(72, T, wanted=False, group="g")], LEAVES, (71,)),
        ([ADDED, TableSpec(72, T, wanted=None, group="g", paused=True)], LEAVES, (71, 72)),
        ([replace(ADDED, wanted=False)], LEAVES, ()),
        ([replace(ADDED, group="other")], LEAVES, (71,)),
        ([ADDED], {71: ()}, (7,)),
        ([TableSpec(71, T, wanted=True, group="g")], {71: ()}, ()),
    ],
)
def test_a_spec_of_a_partitioned_table_applies_to_its_leaves(
    specs: list[TableSpec], units: dict[int, tuple[int, ...]], wanted: tuple[int, ...]
) -> None:
    """By command: of a root where leaves are tables, and of a leaf where it is none."""
    asked = {spec.oid: spec for spec in specs}
    means = (LEAF,) if LEAF.oid not in units else ()
    assert desired_oids("g", Matched(means, (), (), units=units), asked, {}) == wanted


def test_a_table_on_its_way_is_both_groups() -> None:
    assert (moves_out(MOVING, "old"), moves_out(MOVING, "new")) == (True, False)
    assert (moves_in(MOVING, "new"), moves_in(MOVING, "old"), moves_in(None, "new")) == (True, False, False)
    assert not moves_out(replace(MOVING, handed_lsn=Lsn(1)), "old")


def test_a_lake_table_is_named_by_command_then_configuration_then_source() -> None:
    naming = Naming({"public.t": TableConfig(target="x.y")})
    assert naming.first(T, replace(ADDED, target=TableId("a", "b"))) == TableId("a", "b")
    assert naming.first(T, ADDED) == TableId("x", "y")
    assert Naming({}).first(T, None) == T


def test_a_lake_table_follows_the_name_unless_it_was_chosen_or_is_to_be_kept() -> None:
    old = TableId("public", "old")
    assert Naming({}).renamed(SCHEMA, old, None) == SCHEMA.id
    assert Naming({}, "keep").renamed(SCHEMA, old, None) is None
    assert Naming({}).renamed(SCHEMA, SCHEMA.id, None) is None
    assert Naming({}).renamed(SCHEMA, old, replace(ADDED, target=old)) is None
    assert Naming({"public.t": TableConfig(on_rename="keep")}).renamed(SCHEMA, old, None) is None
    assert Naming({"public.t": TableConfig(on_rename="rename")}, "keep").renamed(SCHEMA, old, None) == SCHEMA.id
    assert Naming({"public.t": TableConfig(target="x.y")}).renamed(SCHEMA, old, None) == TableId("x", "y")
    root = TableId("public", "root")
    above = Naming({"public.root": TableConfig(on_rename="rename", target="x.y")}, "keep")
    assert above.renamed(replace(SCHEMA, settings_from=(root,)), old, None) == SCHEMA.id
    assert above.first(SCHEMA.id, None) == SCHEMA.id


def test_a_lake_table_that_made_room_gets_its_name_whatever_the_rule_says() -> None:
    away = interim_name(SCHEMA.id, SCHEMA.oid)
    assert Naming({}, "keep").renamed(SCHEMA, away, None) == SCHEMA.id


def _named(oid: int, source: str, lake: str, wanted: str | None = None, made: bool = True) -> TableRuntime:
    table = run()
    table.schema = replace(SCHEMA, oid=oid, id=TableId("public", source))
    moment = datetime.now(UTC) if made else None
    table.record = replace(
        table.record, oid=oid, id=table.schema.id, target=TableId("public", lake), last_commit_at=moment
    )
    table.set_rename(TableId("public", wanted) if wanted else None)
    return table


def _next(*tables: TableRuntime, elsewhere: dict[str, str] | None = None) -> str | None:
    """The step of the first of some tables; `elsewhere`: source tables of other groups by their lake tables."""
    others = {
        TableId("public", lake): TableRecord("g", 99, TableId("public", source), TableState.STREAMING, target=TableId("public", lake))
        for lake, source in (elsewhere or {}).items()
    }  # fmt: skip
    found = next_name(tables[0], tables, others)
    return found.name if isinstance(found, TableId) else str(found) if found is not None else None


def test_a_lake_table_is_renamed_when_its_name_is_free() -> None:
    t, new = _named(1, "t_old", "t", "t_old"), _named(2, "t", "t_new", "t")
    assert _next(t, new) == "t_old"
    assert _next(new, t) is None
    t.set_target(TableId("public", "t_old"))
    assert _next(new, t) == "t"


def test_lake_tables_that_have_each_other_s_names_move_aside() -> None:
    a, b = _named(1, "b", "a", "b"), _named(2, "a", "b", "a")
    assert _next(a, b) == "wal2lake_moving_1" and _next(b, a) == "wal2lake_moving_2"
    a.set_target(TableId("public", "wal2lake_moving_1"))
    assert _next(b, a) == "a" and _next(a, b) is None


def test_a_lake_table_that_stays_is_not_waited_for() -> None:
    table, stays = _named(1, "t", "t_new", "t"), _named(2, "kept", "t")
    assert "belongs to source table public.kept" in str(_next(table, stays))
    assert "belongs to source table public.kept" in str(_next(table, elsewhere={"t": "kept"}))


def test_a_table_that_has_no_lake_table_holds_no_name() -> None:
    assert _next(_named(1, "t_old", "t", "t_old"), _named(2, "t_old", "t_old", made=False)) == "t_old"


def test_a_dropped_table_is_waited_for() -> None:
    gone = _named(2, "t", "t")
    gone.dropped_at_source(Lsn(1))
    assert _next(_named(1, "t", "t_new", "t"), gone) is None


def test_swaps_between_groups_move_aside_too() -> None:
    assert _next(_named(1, "b", "a", "b"), elsewhere={"b": "a"}) == "wal2lake_moving_1"


@pytest.mark.parametrize(
    ("states", "meant"),
    [(("DROPPED", "STREAMING"), 2), (("STREAMING", "DROPPED"), 1), (("DROPPED", "DROPPED"), 2)],
)
def test_a_name_means_the_live_table(states: tuple[str, str], meant: int) -> None:
    records = [TableRecord("g", oid, T, TableState(state)) for oid, state in enumerate(states, 1)]
    assert by_name(records)[T].oid == meant
    assert [record.oid for record in listed(records)] == ([meant] if "STREAMING" in states else [1, 2])


def test_the_name_of_a_source_table_takes_precedence_over_that_of_a_lake_table() -> None:
    other = TableRecord("g", 8, TableId("public", "u"), TableState.STREAMING, target=T)
    assert by_name([TableRecord("g", 7, T, TableState.ERRORED), other])[T].oid == 7
    assert by_name([other])[T].oid == 8


def test_a_configured_group_takes_precedence_over_one_of_the_same_name() -> None:
    config = Config(source={"dsn": "postgresql://db/x"})
    specs = {
        "default": GroupSpec("default", True, ("other.*",)),
        "made": GroupSpec("made", True, ("s.*",), flush_bytes=2_000_000),
        "left": GroupSpec("left", False, enabled=False),
    }
    groups = groups_of(config, specs)
    assert [(group.name, group.tables) for group in groups] == [("default", ("public.*",)), ("made", ("s.*",))]
    assert (groups[1].flush_bytes, groups[1].flush_interval) == (2_000_000, 1.0)
    assert enabled(groups[1], specs)
    assert not enabled(groups[1], {"made": replace(specs["made"], enabled=False)})
    assert not enabled(groups[1], {"made": replace(specs["made"], dropping=True)})


def test_a_lake_table_that_another_source_table_has_is_taken() -> None:
    specs = [replace(ADDED, oid=8, target=TableId("a", "b")), replace(ADDED, oid=9, wanted=False, target=T)]
    assert taken_targets([(7, T), (6, TableId("c", "d"))], specs, but=7) == {
        TableId("c", "d"): 6,
        TableId("a", "b"): 8,
    }


def test_a_table_is_handed_over_where_both_groups_have_it() -> None:
    table = copied()
    assert table.caught_up(ZERO)
    assert handed_at(table, None, Lsn(100)) is None
    assert handed_at(table, Lsn(50), Lsn(49)) is None
    assert handed_at(table, Lsn(50), Lsn(60)) == Lsn(60)
    table.note_manifest(manifest(3))
    assert handed_at(table, Lsn(50), Lsn(60)) is None
    table.finish(applied(5), [manifest(6)])
    assert handed_at(table, Lsn(50), Lsn(90)) == applied(5).lsn
    table.pause()
    assert handed_at(table, Lsn(50), Lsn(90)) is None


def test_a_table_that_needs_a_copy_anyway_is_handed_over_at_once() -> None:
    table = run()
    table.request_copy()
    assert handed_at(table, None, ZERO) == ZERO


def test_tables_asked_for_together_are_copied_at_one_snapshot() -> None:
    tables = [run() for _ in range(4)]
    for number, table in enumerate(tables):
        table.schema = replace(SCHEMA, oid=number)
    tables[1].round = tables[3].round = "x"
    assert rounds(tables) == [[tables[0]], [tables[1], tables[3]], [tables[2]]]


def test_only_what_goes_away_by_itself_is_waited_for_over_a_restart() -> None:
    now = datetime.now(UTC)
    record = replace(run(TableState.ERRORED).record, kind="transient", retry_at=now + timedelta(seconds=5))
    table = TableRuntime(SCHEMA, record)
    assert table.still_waits(now) and not table.still_waits(now + timedelta(seconds=6))
    assert not TableRuntime(SCHEMA, replace(record, kind="configuration")).still_waits(now)


def test_each_transition_is_remembered_with_its_error() -> None:
    table = copied()
    assert [(each.before, each.after) for each in table.transitions] == [
        (TableState.PENDING, TableState.SNAPSHOT), (TableState.SNAPSHOT, TableState.CATCHUP),
    ]  # fmt: skip
