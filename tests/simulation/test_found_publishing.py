"""Tables that leave the publication and come back while they are being copied or move to another group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from simulation.checks import records
from simulation.hooked import Call
from simulation.ports import SimulatedPorts
from simulation.postgres_transactions import Transaction
from simulation.workload import Changes
from simulation.world import World
from wal2lake.config import GroupConfig
from wal2lake.errors import ConnectionFailed
from wal2lake.reconcile import drop_group
from wal2lake.schema import ReplicaIdentity
from wal2lake.source.publishing import publication_name
from wal2lake.state import GroupSpec
from wal2lake.state.lifecycle import TableState

COLUMNS = {"id": "int4", "v": "text"}
NAMES = ("a", "b", "c", "d")


class Tables(Changes):
    """Some tables with a row each, and one course of events."""

    def __init__(self, course: Callable[[World], object] | None = None) -> None:
        self._course = course

    def setup(self, world: World) -> None:
        def make(tx: Transaction) -> None:
            for name in NAMES:
                tx.ddl.create_table(name, COLUMNS, ["id"])
                tx.insert(name, id="1", v="first")

        world.server.run(make)

    def step(self, world: World) -> None:
        course, self._course = self._course, None
        if course is not None:
            course(world)
        world.executor.sleep(1.0)


def published(world: World, group: str, name: str) -> bool:
    table = next(table for table in world.server.state.tables.values() if table.id.name == name)
    found = world.server.state.publications.get(publication_name(group))
    return found is not None and table.oid in found.tables


def until(world: World, condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        world.executor.sleep(0.1)
    raise AssertionError("it does not happen")


def update(world: World, name: str, value: str) -> None:
    world.server.run(lambda tx: tx.update(name, {"id": "1"}, v=value))


@pytest.mark.parametrize("seed", range(4))
def test_a_table_that_was_removed_and_added_while_it_waited_for_its_first_copy(seed: int) -> None:
    """The copy was made at the snapshot of the slot, and changes between the two commands were lost."""
    begun: list[str] = []
    added: list[str] = []

    def hook(call: Call) -> None:
        if call.method != "copy" or call.done:
            return
        begun.append(call.subject)
        if len(begun) == 1:
            until(world, lambda: len(begun) == 2)
            copied = {subject.split(".")[1].strip('"') for subject in begun}
            name = next(name for name in NAMES if name not in copied)
            mirror = world.mirror()
            mirror.remove([f"public.{name}"])
            until(world, lambda: not published(world, "default", name))
            update(world, name, "between")
            mirror.add([f"public.{name}"])
            until(world, lambda: published(world, "default", name))
            added.append(name)
        elif len(begun) == 2:
            until(world, lambda: added)

    world = World(seed, Tables(), hook, steps=8)
    world.run()
    assert added


@pytest.mark.parametrize("seed", range(4))
def test_a_table_that_lost_its_identity_while_it_was_handed_over_to_another_group(seed: int) -> None:
    """Its new group went on at the position of the old one, and changes that neither had captured were lost."""
    done = False

    def course(world: World) -> None:
        mirror = world.mirror()
        mirror.create_group(GroupSpec("other", made=True))
        until(world, lambda: {r.state for r in records(world)} == {TableState.STREAMING})
        mirror.move(["public.a"], "other")
        until(world, lambda: done)

    def hook(call: Call) -> None:
        nonlocal done
        if done or call.method != "note_handed" or call.done:
            return
        done = True
        world.server.run(lambda tx: tx.ddl.drop_primary_key("a"))
        until(world, lambda: not published(world, "other", "a"))
        world.server.run(lambda tx: tx.insert("a", id="2", v="between"))
        world.server.run(lambda tx: tx.ddl.set_identity("a", ReplicaIdentity.FULL))
        until(world, lambda: published(world, "other", "a"))

    world = World(seed, Tables(course), hook, steps=8)
    world.run()
    assert done


@pytest.mark.parametrize("seed", range(4))
def test_a_group_that_is_dropped_while_it_is_being_started_is_not_made_again(seed: int) -> None:
    """Its slot was made anew, and stayed."""
    dropped: list[bool] = []

    def course(world: World) -> None:
        world.mirror().create_group(GroupSpec("other", made=True))
        until(world, lambda: dropped)

    def hook(call: Call) -> None:
        starting = world.executor.current is not None and world.executor.current.name == "group-other"
        if starting and call.method == "lease.take" and not call.done and not dropped:
            dropped.append(True)
            ports = SimulatedPorts(world, "command")
            drop_group(ports.store(False), ports.source, ports.logs, GroupConfig(name="other"))

    world = World(seed, Tables(course), hook, steps=8)
    world.run()
    assert {record.name for record in world.state.contents.groups.values()} == {"default"}


def insert(number: int, tx: Transaction) -> None:
    for name in NAMES:
        tx.insert(name, id=str(number), v="later")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ended", [False, True])
def test_a_table_is_copied_and_nobody_knows_whether_its_request_was_ended(seed: int, ended: bool) -> None:
    """It waited for another copy, and its changes were deleted; the next run went on behind them."""
    failed: list[Call] = []

    def course(world: World) -> None:
        until(world, lambda: failed and sum(r.state is TableState.STREAMING for r in records(world)) >= 3)
        for number in range(2, 5):
            world.server.run(partial(insert, number))
            world.executor.sleep(2.0)
        until(world, lambda: not world.storage.peek_names("default/manifests/1.json"))
        world.crash_main()

    def hook(call: Call) -> None:
        if call.method == "resync_done" and call.done is ended and not failed:
            failed.append(call)
            raise ConnectionFailed(server="the state store", cause="the connection broke")

    World(seed, Tables(course), hook, steps=8).run()
    assert failed


def test_a_command_means_the_table_that_has_the_name_now() -> None:
    """A run had not seen yet that the paused table was renamed: the one that had the name before was resumed."""

    def course(world: World) -> None:
        until(world, lambda: {r.state for r in records(world)} == {TableState.STREAMING})
        world.mirror().pause(["public.a"])
        until(world, lambda: TableState.PAUSED in {r.state for r in records(world)})
        world.stop_main()
        world.server.run(lambda tx: tx.ddl.rename_table("b", "e"))
        world.server.run(lambda tx: tx.ddl.rename_table("a", "b"))
        world.mirror().resume(["public.b"])
        world.start_main()

    World(1, Tables(course), lambda _: None, steps=4).run()
