"""What the simulation has found, each as a history of its own: it is short, and fails whatever the order of the steps.

All that a step does happens between two looks at the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from simulation import checks
from simulation.hooked import Call
from simulation.memory_lake import Version
from simulation.postgres_tables import Blocked
from simulation.postgres_transactions import Transaction
from simulation.world import World
from wal2lake.schema import ReplicaIdentity, TableId

SEEDS = range(8)
Statements = Callable[[Transaction], object]


def do(world: World, statements: Statements) -> None:
    """One transaction, which waits for the locks of others."""
    while True:
        with suppress(Blocked):
            world.server.run(statements)
            return
        world.executor.sleep(0.05)


class History:
    """Steps, each some transactions, and time enough between them for everything to come to rest."""

    strict = False

    def __init__(self, setup: Statements, *steps: Sequence[Statements]) -> None:
        self._setup, self._steps = setup, list(steps)

    def setup(self, world: World) -> None:
        world.server.run(self._setup)

    def step(self, world: World) -> None:
        world.executor.sleep(30.0)
        for transaction in self._steps.pop(0):
            do(world, transaction)

    def finish(self, world: World) -> None:
        assert not self._steps


def run(seed: int, setup: Statements, *steps: Sequence[Statements]) -> World:
    world = World(seed, History(setup, *steps), steps=len(steps))
    world.run()
    return world


def parted(tx: Transaction) -> None:
    tx.ddl.create_table("p", {"k": "int4", "v": "text"}, ["k"], partition_by="k")
    tx.ddl.create_partition("p_0", "p", 0, 6)
    tx.ddl.create_table("t", {"k": "int4", "v": "text"}, ["k"])
    tx.insert("p", k="1", v="in p_0")
    tx.insert("t", k="7", v="in t")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_that_is_dropped_after_a_change_of_columns_that_is_unclear_is_left_as_it_was(seed: int) -> None:
    tables = [f"t{number}" for number in range(10)]

    def setup(tx: Transaction) -> None:
        for table in tables:
            tx.ddl.create_table(table, {"k": "int4", "v": "text"}, ["k"])
            tx.insert(table, k="1", v="old")

    def drop(table: str) -> Sequence[Statements]:
        return [
            lambda tx: tx.ddl.rename_column(table, "v", "n"),
            lambda tx: tx.insert(table, k="2", n="new"),
            lambda tx: tx.ddl.drop_table(table),
        ]

    class Dropping(History):
        def step(self, world: World) -> None:
            super().step(world)
            for table in tables:
                for statements in drop(table):
                    do(world, statements)
                # One of them is looked for before its changes are there.
                world.executor.sleep(1.1)

    world = World(seed, Dropping(setup, []), steps=1)
    world.run()
    assert world.calls < 20_000, "they are given up, and not tried again and again"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_that_was_a_partition_for_a_moment_is_given_the_changes_of_that_time(seed: int) -> None:
    run(
        seed, parted,
        [
            lambda tx: tx.ddl.attach("p", "t", 6, 12),
            lambda tx: tx.insert("p", k="8", v="while it was a partition"),
        ],
        [lambda tx: tx.ddl.detach("p", "t")],
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_that_were_captured_as_those_of_a_partition_are_not_lost_on_the_table(seed: int) -> None:
    class Flicker(History):
        def step(self, world: World) -> None:
            """Long enough for its rows to be captured as a partition's, too short for a look at the catalog."""
            super().step(world)
            world.executor.sleep(1.2 * seed)
            do(world, lambda tx: tx.ddl.attach("p", "t", 6, 12))
            do(world, lambda tx: tx.insert("p", k="8", v="while it was a partition"))
            world.executor.sleep(1.5)
            do(world, lambda tx: tx.ddl.detach("p", "t"))
            do(world, lambda tx: tx.insert("t", k="9", v="after"))

    World(seed, Flicker(parted, []), steps=1).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_a_partition_that_had_other_bounds_for_a_moment_do_not_stay(seed: int) -> None:
    run(
        seed, parted,
        [
            lambda tx: tx.ddl.detach("p", "p_0"),
            lambda tx: tx.ddl.attach("p", "p_0", 0, 20),
            lambda tx: tx.insert("p", k="15", v="beyond the bounds that it had"),
            lambda tx: tx.ddl.detach("p", "p_0"),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_a_partition_that_came_again_with_the_bounds_that_it_had_do_not_stay(seed: int) -> None:
    def widen(tx: Transaction) -> None:
        tx.ddl.detach("p", "p_0")
        tx.ddl.attach("p", "p_0", 0, 20)

    def narrow(tx: Transaction) -> None:
        tx.ddl.detach("p", "p_0")
        tx.delete("p_0", {"k": "15"})
        tx.ddl.attach("p", "p_0", 0, 6)

    run(seed, parted, [widen, lambda tx: tx.insert("p", k="15", v="beyond"), narrow])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("emptied", [True, False])
def test_changes_that_a_table_had_before_it_became_a_partition_are_not_made_to_the_table_above(
    seed: int, emptied: bool
) -> None:
    """They were decoded after its ATTACH, and took rows of other partitions with the same key for theirs."""

    def setup(tx: Transaction) -> None:
        parted(tx)
        tx.insert("t", k="2", v="in t")

    def forget(tx: Transaction) -> None:
        tx.delete("t", {"k": "2"})
        if emptied:
            tx.delete("t", {"k": "7"})

    run(
        seed, setup,
        [lambda tx: tx.insert("p", k="2", v="in p_0")],
        [
            forget,
            lambda tx: tx.ddl.attach("p", "t", 6, 12),
            lambda tx: tx.insert("p", k="9", v="after"),
        ],
        [lambda tx: tx.insert("p", k="10", v="last")],
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_that_a_partition_had_while_it_was_detached_are_not_made_to_the_table_above(seed: int) -> None:
    def move(tx: Transaction) -> None:
        tx.insert("p", k="2", v="in the new partition")
        tx.delete("p_0", {"k": "2"})

    run(
        seed, parted,
        [lambda tx: tx.insert("p", k="2", v="in p_0"), lambda tx: tx.ddl.detach("p", "p_0")],
        [
            lambda tx: tx.ddl.create_partition("p_1", "p", 0, 6),
            move,
            lambda tx: tx.delete("p_0", {"k": "1"}),
            lambda tx: tx.ddl.attach("p", "p_0", 20, 30),
            lambda tx: tx.insert("p", k="25", v="in p_0 again"),
        ],
        [lambda tx: tx.insert("p", k="3", v="last")],
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_is_emptied_before_its_column_is_renamed_is_empty(seed: int) -> None:
    run(
        seed, parted,
        [lambda tx: tx.truncate("p_0")],
        [lambda tx: tx.insert("p", k="2", v="new"), lambda tx: tx.truncate("p_0"), lambda tx: tx.ddl.rename_column("p", "k", "n")],
        [lambda tx: tx.insert("p", n="3", v="last")],
    )  # fmt: skip


def swap(tx: Transaction) -> None:
    tx.ddl.rename_column("p", "k", "aside")
    tx.ddl.rename_column("p", "n", "k")
    tx.ddl.rename_column("p", "aside", "n")


@pytest.mark.parametrize(
    "written", [
        [lambda tx: tx.truncate("p_0")],
        [lambda tx: tx.insert("p", k="3", n="20"), lambda tx: tx.delete("p", {"k": "1"}), lambda tx: tx.update("p", {"k": "8"}, n="2")],
    ],
    ids=["emptied", "changed"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_done_to_partitions_before_two_columns_swapped_their_names(
    seed: int, key: str | None, written: Sequence[Statements]
) -> None:
    """Values went into the other column, and the rows of another partition were removed."""

    def setup(tx: Transaction) -> None:
        tx.ddl.create_table("p", {"k": "int4", "n": "int4"}, [key] if key else [], partition_by="k")
        for name, low in (("p_0", 0), ("p_1", 6)):
            tx.ddl.create_partition(name, "p", low, low + 6)
            tx.ddl.set_identity(name, ReplicaIdentity.DEFAULT if key else ReplicaIdentity.FULL)
        for k, n in (("1", "10"), ("2", "9"), ("8", "3"), ("9", "4")):
            tx.insert("p", k=k, n=n)

    run(seed, setup, [*written, swap])


def test_the_lake_table_of_a_time_before_its_table_got_another_name_and_lake_table_is_replaced() -> None:
    """A new table of the former name was stopped for good."""
    run(
        1, parted,
        [lambda tx: tx.ddl.detach("p", "p_0")],
        [lambda tx: tx.ddl.attach("p", "p_0", 0, 6)],
        [lambda tx: tx.ddl.detach("p", "p_0"), lambda tx: tx.ddl.rename_table("p_0", "q")],
        [lambda tx: tx.ddl.create_table("p_0", {"k": "int4", "v": "text"}, ["k"]), lambda tx: tx.insert("p_0", k="1")],
    )  # fmt: skip


def run_late(
    seed: int, history: History, steps: int, due: Callable[[World], bool], act: Callable[[World], object]
) -> None:
    """Act when the capture process is about to look at the catalog, once that is due; then check each version of p."""
    acted: list[Call] = []
    applied: list[Version] = []

    def hook(call: Call) -> None:
        looks = call.method == "tables" and "/capture-" in call.process and not call.done
        if looks and not acted and due(world):
            acted.append(call)
            act(world)
        if call.method == "apply" and call.done:
            applied.append(world.lake.history(TableId("public", "p"))[-1])

    world = World(seed, history, hook, steps=steps)
    world.run()
    assert acted
    for version in applied:
        checks.check_version(world, version.record.schema.oid, version.record, version.rows)


def rows_of(world: World, name: str) -> int:
    state = world.server.state
    return sum(len(state.rows.get(table.oid, {})) for table in state.tables.values() if table.id.name == name)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_was_emptied_and_then_attached_with_other_bounds_is_emptied_within_its_own(seed: int) -> None:
    """The bounds are read when the TRUNCATE is decoded, which may be after the ATTACH: another range was emptied."""

    def setup(tx: Transaction) -> None:
        parted(tx)
        tx.ddl.create_partition("p_2", "p", 12, 18)
        tx.insert("p", k="13", v="in p_2")

    def swap(tx: Transaction) -> None:
        tx.ddl.detach("p", "p_2")
        tx.ddl.detach("p", "p_0")
        tx.ddl.attach("p", "p_0", 12, 18)

    history = History(setup, [lambda tx: tx.truncate("p_0")], [])
    run_late(seed, history, 2, lambda world: rows_of(world, "p_0") == 0, lambda world: do(world, swap))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_changes_of_a_partitioned_table_that_is_dropped_are_not_left_out(seed: int) -> None:
    """They are decoded after the DROP, which takes from the catalog what its partitions belonged to."""
    changed: list[bool] = []

    def change(tx: Transaction) -> None:
        tx.insert("p", k="2", v="last")
        tx.truncate("p")
        changed.append(True)

    history = History(parted, [lambda tx: tx.insert("p", k="3", v="earlier")], [change], [])
    run_late(
        seed, history, 3, lambda _: bool(changed), lambda world: do(world, lambda tx: tx.ddl.drop_table("p"))
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_of_a_partition_stay_with_its_table_though_it_was_detached_and_published_since(seed: int) -> None:
    """They were taken for changes of the table that it had become, and the partitioned table lacked them."""

    def setup(tx: Transaction) -> None:
        parted(tx)
        tx.ddl.create_partition("p_2", "p", 12, 18)

    def insert(tx: Transaction) -> None:
        tx.insert("p", k="2", v="before the DETACH")
        tx.insert("p", k="13", v="before the DETACH")

    def detach(world: World) -> None:
        leaf = next(table for table in world.server.state.tables.values() if table.id.name == "p_0")
        do(world, lambda tx: tx.ddl.detach("p", "p_0"))
        while not any(leaf.oid in each.tables for each in world.server.state.publications.values()):
            world.executor.sleep(0.1)

    run_late(seed, History(setup, [insert], []), 2, lambda world: rows_of(world, "p_0") == 2, detach)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_with_an_error_is_tried_again_when_its_definition_has_changed(seed: int) -> None:
    """It waited for half an hour, although the partition that the error named was none any more."""

    def setup(tx: Transaction) -> None:
        tx.ddl.create_table("p", {"k": "int4", "v": "text"}, partition_by="k")
        tx.ddl.create_partition("p_0", "p", 0, 6)
        tx.ddl.set_identity("p_0", ReplicaIdentity.FULL)
        tx.ddl.create_table("t", {"k": "int4", "v": "text"}, ["k"])
        tx.insert("p", k="1", v="in p_0")

    run(
        seed, setup,
        [lambda tx: tx.ddl.attach("p", "t", 6, 12), lambda tx: tx.insert("p", k="7", v="in t")],
        [lambda tx: tx.ddl.detach("p", "t")],
        [lambda tx: tx.insert("p", k="2", v="later")],
    )  # fmt: skip
