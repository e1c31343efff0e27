"""A partition that moves between partitioned tables before its changes are decoded: which table they are made to.

The catalog has its later table by then, and the stream does not say which one it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from simulation import checks
from simulation.hooked import Call
from simulation.memory_lake import Version
from simulation.postgres_transactions import Transaction
from simulation.test_found_histories import SEEDS, History, Statements, do
from simulation.world import DEFAULT_GROUPS, World
from wal2lake.changelog.manifest import Manifest
from wal2lake.schema import TableId
from wal2lake.state.lifecycle import TableState

ROOTS = ("p", "q")
Groups = tuple[tuple[tuple[str, Any], ...], ...]


def two_roots(tx: Transaction) -> None:
    """Both have a row with the key 2."""
    for root in ROOTS:
        tx.ddl.create_table(root, {"k": "int4", "v": "text"}, ["k"], partition_by="k")
        tx.ddl.create_partition(f"{root}_0", root, 0, 6)
        tx.insert(root, k="2", v=f"in {root}_0")
    tx.ddl.create_partition("p_1", "p", 6, 12)
    tx.insert("p", k="7", v="in p_1")


def move(leaf: str, before: str, after: str, low: int, high: int) -> Statements:
    def statements(tx: Transaction) -> None:
        tx.ddl.detach(before, leaf)
        tx.ddl.attach(after, leaf, low, high)

    return statements


def run_late(
    seed: int, setup: Statements, change: Statements, moves: Sequence[Statements], last: Statements,
    looked_at: bool = False, groups: Groups = DEFAULT_GROUPS, history: type[History] = History,
) -> set[tuple[str, str]]:  # fmt: skip
    """Make the moves when the capture process is about to look at the catalog because of the change; then check each
    version of both tables. `looked_at`: the main process looks at the catalog after each move.

    Returns each group with the tables that its change log has had changes of."""
    acted: list[Call] = []
    applied: list[Version] = []
    changed: list[bool] = []
    named: set[tuple[str, str]] = set()

    def changing(tx: Transaction) -> None:
        change(tx)
        changed.append(True)

    def hook(call: Call) -> None:
        looks = call.method == "tables" and "/capture-" in call.process and not call.done
        if looks and changed and not acted:
            acted.append(call)
            for statements in moves:
                do(world, statements)
                if looked_at:
                    world.executor.sleep(20.0)
        if call.method == "put_new" and "/manifests/" in call.subject and call.done:
            text = world.storage.peek(call.subject)
            assert text is not None
            named.update(
                (call.subject.split("/")[0], cut.name) for cut in Manifest.from_json(text.decode()).tables.values()
            )
        if call.method == "apply" and call.done:
            applied.extend(
                world.lake.history(TableId("public", root))[-1]
                for root in ROOTS if TableId("public", root) in world.lake.tables()
            )  # fmt: skip

    world = World(seed, history(setup, [changing], [last]), hook, steps=2, groups=groups)
    world.run()
    assert acted, "the capture process has not looked"
    for version in applied:
        checks.check_version(world, version.record.schema.oid, version.record, version.rows)
    return named


def inserted(root: str, k: str) -> Statements:
    return lambda tx: tx.insert(root, k=k, v=f"in {root}")


def last(tx: Transaction) -> None:
    for root in ROOTS:
        tx.insert(root, k="5", v="last")


def in_p_1(tx: Transaction) -> None:
    tx.insert("p", k="8", v="before the move")
    tx.update("p", {"k": "7"}, v="changed before the move")


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_changes_of_a_partition_from_before_it_moved_are_not_made_to_the_table_that_has_it_later(
    seed: int, looked_at: bool
) -> None:
    """They were: keys of the one table took rows of the other for theirs."""

    def setup(tx: Transaction) -> None:
        two_roots(tx)
        # With bounds that have the key 2, which is in another partition of q.
        tx.ddl.create_partition("p_2", "p", 12, 18)
        tx.insert("p", k="13", v="in p_2")

    def change(tx: Transaction) -> None:
        in_p_1(tx)
        tx.delete("p", {"k": "13"})

    run_late(seed, setup, change, [move("p_1", "p", "q", 6, 12), move("p_2", "p", "q", 12, 18)], last, looked_at)


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_keys_of_a_partition_that_moves_do_not_touch_rows_of_other_partitions_with_the_same_key(
    seed: int, looked_at: bool
) -> None:
    def setup(tx: Transaction) -> None:
        two_roots(tx)
        tx.insert("q", k="3", v="in q_0")
        tx.insert("p", k="3", v="in p_0")

    def change(tx: Transaction) -> None:
        tx.delete("p", {"k": "2"})
        tx.delete("p", {"k": "3"})

    run_late(seed, setup, change, [move("p_0", "p", "q", 20, 30)], last=lambda tx: tx.insert("q", k="5", v="last"),
             looked_at=looked_at)  # fmt: skip


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_comes_back_has_the_changes_of_the_time_in_which_it_was_away(
    seed: int, looked_at: bool
) -> None:
    def change(tx: Transaction) -> None:
        tx.ddl.detach("p", "p_1")
        tx.ddl.attach("q", "p_1", 6, 12)
        tx.insert("q", k="9", v="while it was away")
        tx.delete("q", {"k": "7"})

    def back(tx: Transaction) -> None:
        tx.ddl.detach("q", "p_1")
        tx.delete("p_1", {"k": "9"})
        tx.ddl.attach("p", "p_1", 6, 12)

    run_late(seed, two_roots, change, [back], last, looked_at)


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_is_a_table_of_its_own_after_two_roots(seed: int, looked_at: bool) -> None:
    run_late(
        seed, two_roots, in_p_1,
        [move("p_1", "p", "q", 6, 12), lambda tx: tx.ddl.detach("q", "p_1")],
        last, looked_at,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_moves_back_and_forth_between_looks(seed: int) -> None:
    """All is decoded in its time, or late, as the seed has it."""

    def setup(tx: Transaction) -> None:
        two_roots(tx)
        tx.insert("q", k="3", v="in q_0")

    class Moving(History):
        def step(self, world: World) -> None:
            super().step(world)
            for number, (before, after) in enumerate([("p", "q"), ("q", "p"), ("p", "q")]):
                do(world, inserted(before, str(8 + number)))
                do(world, move("p_1", before, after, 6, 12))
                world.executor.sleep(0.3 * seed)
            do(world, lambda tx: tx.insert("q", k="11", v="at last"))

    World(seed, Moving(setup, []), steps=1).run()


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_changes_of_a_partition_that_went_to_a_table_of_another_group(seed: int, looked_at: bool) -> None:
    """They were taken for changes of that table, which the group does not have, and were lost."""
    groups: Groups = tuple((("name", f"of_{root}"), ("tables", (f"public.{root}",))) for root in ROOTS)

    named = run_late(seed, two_roots, in_p_1, [move("p_1", "p", "q", 6, 12)], last, looked_at, groups)
    assert ("of_p", "public.p") in named and ("of_p", "public.q") not in named


class Kept(History):
    """Rows of partitions that are gone are kept, so the lake table is not what the source is."""

    def finish(self, world: World) -> None:
        world.executor.sleep(60.0)
        (record,) = (record for record in checks.records(world) if record.id.name == "p")
        assert record.state is TableState.ERRORED, record
        assert "on_partition_drop can't keep them" in (record.error or "")
        assert 'on_partition_drop = "delete"' in (record.remedy or "")
        for root in ROOTS:
            do(world, lambda tx, root=root: tx.ddl.drop_table(root))  # type: ignore[misc]  # its own root


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_are_kept_may_lack_their_last_changes_and_the_table_says_so(seed: int, looked_at: bool) -> None:
    groups: Groups = ((*DEFAULT_GROUPS[0], ("on_partition_drop", "keep")),)
    run_late(seed, two_roots, in_p_1, [move("p_1", "p", "q", 6, 12)], last, looked_at, groups, Kept)
