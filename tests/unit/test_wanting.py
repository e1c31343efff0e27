"""Which group has a table, under which name in the lake, and when it can go to another group."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from test_tables import SCHEMA, applied, copied, manifest, run

from wal2lake.config import Config, TableConfig
from wal2lake.control.copies import rounds
from wal2lake.control.moves import handed_at
from wal2lake.control.state import TableState
from wal2lake.control.store import GroupWish, TableWish
from wal2lake.control.wanting import Naming, arrives, enabled, groups_of, leaves, taken_targets, wanted_by
from wal2lake.position import ZERO, Lsn
from wal2lake.schema import TableId
from wal2lake.source.matching import FoundTable, Matched

T = TableId("public", "t")
ADDED = TableWish(7, T, wanted=True, group="g")
MOVING = TableWish(7, T, wanted=True, group="new", moving_from="old")


@pytest.mark.parametrize(
    ("group", "matched", "wish", "held", "wanted"),
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
    group: str, matched: bool, wish: TableWish | None, held: dict[int, str], wanted: bool
) -> None:
    wishes = {} if wish is None else {7: wish}
    means = Matched((FoundTable(7, T, False),) if matched else (), (), ())
    assert wanted_by(group, means, wishes, held) == ((7,) if wanted else ())


LEAF = FoundTable(71, TableId("public", "t_1"), False)
LEAVES = {7: (71, 72)}


@pytest.mark.parametrize(
    ("wishes", "units", "wanted"),
    [
        ([], LEAVES, (71,)),
        ([ADDED], LEAVES, (71, 72)),
        ([ADDED, TableWish(72, T, wanted=False, group="g")], LEAVES, (71,)),
        ([ADDED, TableWish(72, T, wanted=None, group="g", paused=True)], LEAVES, (71, 72)),
        ([replace(ADDED, wanted=False)], LEAVES, ()),
        ([replace(ADDED, group="other")], LEAVES, (71,)),
        ([ADDED], {71: ()}, (7,)),
        ([TableWish(71, T, wanted=True, group="g")], {71: ()}, ()),
    ],
)
def test_what_is_asked_of_a_partitioned_table_is_asked_of_what_stands_for_it(
    wishes: list[TableWish], units: dict[int, tuple[int, ...]], wanted: tuple[int, ...]
) -> None:
    """By command: of a root where leaves are tables, and of a leaf where it is none."""
    asked = {wish.oid: wish for wish in wishes}
    means = (LEAF,) if LEAF.oid not in units else ()
    assert wanted_by("g", Matched(means, (), (), units=units), asked, {}) == wanted


def test_a_table_on_its_way_is_both_groups() -> None:
    assert (leaves(MOVING, "old"), leaves(MOVING, "new")) == (True, False)
    assert (arrives(MOVING, "new"), arrives(MOVING, "old"), arrives(None, "new")) == (True, False, False)
    assert not leaves(replace(MOVING, handed_lsn=Lsn(1)), "old")


def test_a_lake_table_is_named_by_command_then_configuration_then_source() -> None:
    naming = Naming({"public.t": TableConfig(target="x.y")})
    assert naming.first(T, replace(ADDED, target=TableId("a", "b"))) == TableId("a", "b")
    assert naming.first(T, ADDED) == TableId("x", "y")
    assert Naming({}).first(T, None) == T


def test_a_rename_is_followed_only_where_the_name_was_nobodys_choice() -> None:
    old = TableId("public", "old")
    assert Naming({}).renamed(SCHEMA, old, None) is None
    assert Naming({}, "rename").renamed(SCHEMA, old, None) == SCHEMA.id
    assert Naming({}, "rename").renamed(SCHEMA, SCHEMA.id, None) is None
    assert Naming({}, "rename").renamed(SCHEMA, old, replace(ADDED, target=old)) is None
    assert Naming({"public.t": TableConfig(on_rename="keep")}, "rename").renamed(SCHEMA, old, None) is None
    assert Naming({"public.t": TableConfig(on_rename="rename")}).renamed(SCHEMA, old, None) == SCHEMA.id
    root = TableId("public", "root")
    above = Naming({"public.root": TableConfig(on_rename="rename", target="x.y")})
    assert above.renamed(replace(SCHEMA, heeds=(root,)), old, None) == SCHEMA.id
    assert above.first(SCHEMA.id, None) == SCHEMA.id


def test_the_configuration_s_group_stands_above_one_of_the_same_name() -> None:
    config = Config(source={"dsn": "postgresql://db/x"})
    wishes = {
        "default": GroupWish("default", True, ("other.*",)),
        "made": GroupWish("made", True, ("s.*",), flush_bytes=2_000_000),
        "left": GroupWish("left", False, enabled=False),
    }
    groups = groups_of(config, wishes)
    assert [(group.name, group.tables) for group in groups] == [("default", ("public.*",)), ("made", ("s.*",))]
    assert (groups[1].flush_bytes, groups[1].flush_interval) == (2_000_000, 1.0)
    assert enabled(groups[1], wishes)
    assert not enabled(groups[1], {"made": replace(wishes["made"], enabled=False)})
    assert not enabled(groups[1], {"made": replace(wishes["made"], dropping=True)})


def test_a_lake_table_that_another_source_table_has_is_taken() -> None:
    wishes = [replace(ADDED, oid=8, target=TableId("a", "b")), replace(ADDED, oid=9, wanted=False, target=T)]
    assert taken_targets([(7, T), (6, TableId("c", "d"))], wishes, but=7) == {
        TableId("c", "d"): 6,
        TableId("a", "b"): 8,
    }


def test_a_table_is_handed_over_where_both_groups_have_it() -> None:
    table = copied()
    table.become(TableState.STREAMING)
    assert handed_at(table, None, Lsn(100)) is None
    assert handed_at(table, Lsn(50), Lsn(49)) is None
    assert handed_at(table, Lsn(50), Lsn(60)) == Lsn(60)
    table.arrive(manifest(3))
    assert handed_at(table, Lsn(50), Lsn(60)) is None
    table.finish(applied(5), [manifest(6)])
    assert handed_at(table, Lsn(50), Lsn(90)) == applied(5).lsn
    table.become(TableState.PAUSED)
    assert handed_at(table, Lsn(50), Lsn(90)) is None


def test_a_table_that_needs_a_copy_anyway_is_handed_over_at_once() -> None:
    table = run()
    table.resync = True
    assert handed_at(table, None, ZERO) == ZERO


def test_tables_asked_for_together_are_copied_at_one_snapshot() -> None:
    tables = [run() for _ in range(4)]
    for number, table in enumerate(tables):
        table.schema = replace(SCHEMA, oid=number)
    tables[1].round = tables[3].round = "x"
    assert rounds(tables) == [[tables[0]], [tables[1], tables[3]], [tables[2]]]


def test_only_what_goes_away_by_itself_is_waited_for_over_a_restart() -> None:
    now = datetime.now(UTC)
    table = run(TableState.ERRORED)
    table.update(kind="transient", retry_at=now + timedelta(seconds=5))
    assert table.still_waits(now) and not table.still_waits(now + timedelta(seconds=6))
    table.update(kind="configuration")
    assert not table.still_waits(now)


def test_each_transition_is_remembered_with_its_error() -> None:
    table = copied()
    assert [(each.before, each.after) for each in table.transitions] == [
        (TableState.PENDING, TableState.SNAPSHOT), (TableState.SNAPSHOT, TableState.CATCHUP),
    ]  # fmt: skip
