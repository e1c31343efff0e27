"""What campaigns have found, each as the shortest course of events that shows it.

Seeds stand for another run as soon as a call more is made, so what is kept of them is the fault that mattered.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest

from simulation.checks import records
from simulation.disturbances import Disturbances, Kind
from simulation.hooked import Call
from simulation.postgres_transactions import Transaction
from simulation.workload import Changes
from simulation.world import World
from wal2lake.errors import ConnectionFailed, CopyFailed
from wal2lake.schema import ReplicaIdentity

COLUMNS = {"id": "int4", "v": "text"}


def meeting(error: Exception, when: Callable[[World, Call], bool]) -> World:
    """A world in which the first call that meets a condition fails."""
    left = [error]

    def hook(call: Call) -> None:
        if left and call.process.startswith("main-") and when(world, call):
            raise left.pop()

    world = World(1, Changes(), hook, steps=10)
    world.run()
    assert not left, "the call was never made"
    return world


def test_the_snapshot_of_a_new_slot_is_closed_when_the_change_log_can_not_begin() -> None:
    """It stayed open until the group was started again, and held back vacuum."""

    def begins(world: World, call: Call) -> bool:
        slots = [slot for slot in world.server.slots.values() if not slot.temporary]
        return bool(slots) and call.method == "put" and call.subject.endswith("group.json") and not call.done

    world = meeting(OSError(errno.EIO, "Input/output error", "group.json"), begins)
    assert not world.server.snapshots


class Keyless(Changes):
    """A table loses its key, and with it its replica identity, while the stream has a gap."""

    def step(self, world: World) -> None:
        world.executor.sleep(5.0)
        if not self.lost:
            self.lost = True
            Disturbances(world)(Kind.LOSE_SLOT, 0.0)
            world.executor.sleep(5.0)
            world.server.run(lambda tx: tx.ddl.drop_primary_key("a"))
        super().step(world)

    lost = False

    def finish(self, world: World) -> None:
        world.executor.sleep(30.0)
        errors = {record.id.name: record.error or "" for record in records(world)}
        assert "it has no replica identity" in errors["a"], errors
        assert "was invalidated" in errors["b"], errors
        world.server.run(lambda tx: tx.ddl.set_identity("a", ReplicaIdentity.FULL))


def test_a_table_that_can_not_be_captured_says_so_also_while_the_stream_is_lost() -> None:
    """It went on showing that the slot was lost; the re-copy that this asks for could not heal it."""
    World(2, Keyless(), steps=8).run()


class Unheard(Changes):
    """A column is added while the stream is silent, and no row tells of it."""

    done = False

    def step(self, world: World) -> None:
        world.executor.sleep(5.0)
        if not self.done:
            self.done = True
            Disturbances(world)(Kind.HALF_OPEN, 60.0)
            world.server.run(lambda tx: tx.ddl.add_column("a", "added", "int4"))
            world.executor.sleep(50.0)
        super().step(world)


def test_a_group_asks_a_silent_stream_for_its_position_now_and_then_only() -> None:
    """It asked again at each answer, without a pause: both processes were busy until the stream was heard of again."""
    World(1, Unheard(), steps=4).run()


class Attached(Changes):
    """A partition is attached with rows."""

    def setup(self, world: World) -> None:
        def make(tx: Transaction) -> None:
            tx.ddl.create_table("p", COLUMNS, ["id"], partition_by="id")
            tx.ddl.create_partition("p_1", "p", 0, 10)
            tx.insert("p", id="1", v="first")

        world.server.run(make)

    def step(self, world: World) -> None:
        world.executor.sleep(60.0)
        if "p_2" in {table.id.name for table in world.server.state.tables.values()}:
            return

        def attach(tx: Transaction) -> None:
            tx.ddl.create_table("p_2", COLUMNS, ["id"])
            tx.insert("p_2", id="11", v="second")
            tx.ddl.attach("p", "p_2", 10, 20)

        world.server.run(attach)

    def finish(self, world: World) -> None:
        self.passed = [
            (entry.before, entry.after)
            for entry in world.state.contents.history
            if entry.id.name == "p" and entry.after
        ]


def test_a_table_does_not_stream_while_it_lacks_rows_of_a_partition() -> None:
    """It did at each retry, while the rows of the partition could not be copied."""
    failures = 0

    def hook(call: Call) -> None:
        nonlocal failures
        if call.method == "exchange" and not call.done:
            failures += 1
            raise CopyFailed(table=call.subject, cause="Spark reports an error", sqlstate=None, unfit=False)

    workload = Attached()
    World(1, workload, hook, steps=8).run()
    assert failures > 2
    began = workload.passed.index(("STREAMING", "CATCHUP"))
    assert set(workload.passed[began + 1 :]) == {("CATCHUP", "ERRORED"), ("ERRORED", "CATCHUP")}


def test_the_stream_is_replaced_also_if_it_is_lost_while_partitions_are_exchanged() -> None:
    """The exchange waited for changes that the lost stream could not capture, and the new slot for its end."""

    def hook(call: Call) -> None:
        attached = any(table.id.name == "p_2" for table in world.server.state.tables.values())
        if attached and not lost and call.method == "open_snapshot" and call.done:
            lost.append(call)
            Disturbances(world)(Kind.LOSE_SLOT, 0.0)

    lost: list[Call] = []
    world = World(1, Attached(), hook, steps=4)
    world.run()
    assert lost, "no partitions were exchanged"


class Filled(Changes):
    """A table is created, and the storage is full when the catalog is read."""

    done = False

    def step(self, world: World) -> None:
        world.executor.sleep(5.0)
        if not self.done:
            self.done = True
            world.server.run(lambda tx: tx.ddl.create_table("added", COLUMNS, ["id"]))
            Disturbances(world)(Kind.FILL_STORAGE, 60.0)
            world.executor.sleep(60.0)
            self.calls = world.calls
        super().step(world)


def test_a_new_table_that_can_not_be_noted_in_the_change_log_is_tried_again_after_a_while() -> None:
    """Each reading requested its copy before it failed, and woke the loop by that for the next reading."""
    workload = Filled()
    World(1, workload, steps=2).run()
    assert workload.calls < 5_000


def test_applied_changes_that_can_not_be_deleted_are_deleted_after_a_while() -> None:
    """The run tried it again and again, without a pause."""
    failures = 0

    def hook(call: Call) -> None:
        nonlocal failures
        manifest = call.method == "delete" and "manifests/" in call.subject
        if manifest and not call.done and call.process.startswith("main-") and world.executor.clock.elapsed < 60.0:
            failures += 1
            raise PermissionError(errno.EACCES, "Permission denied", call.subject)

    world = World(1, Changes(), hook, steps=60)
    world.run()
    assert 2 < failures < 20


@pytest.mark.parametrize("seed", [4, 6])
def test_changes_that_are_captured_before_the_first_copies_begin_are_applied_after_them(seed: int) -> None:
    """They counted as copied, and were lost: the copies are made at the snapshot of the slot, which is older."""
    waited: list[Call] = []

    def hook(call: Call) -> None:
        captures = world.executor.processes(lambda process: "capture" in process)
        if captures and not waited and (call.process, call.subject) == ("main-1", "default/manifests"):
            assert not world.copied
            waited.append(call)
            world.executor.sleep(10.0)

    world = World(seed, Changes(), hook, steps=10)
    world.run()
    assert waited


class Renamed(Changes):
    """A table is renamed, and another one gets its name, while no process mirrors them."""

    done = False

    def setup(self, world: World) -> None:
        for name in ("a0", "c0"):
            world.server.run(lambda tx, name=name: tx.ddl.create_table(name, COLUMNS, ["id"]))  # type: ignore[misc]  # mypy knows no types of defaults

    def step(self, world: World) -> None:
        world.executor.sleep(4.0)
        if not self.done:
            self.done = True
            world.server.run(lambda tx: tx.ddl.rename_table("a0", "b1"))
            world.server.run(lambda tx: tx.ddl.rename_table("c0", "a0"))

    def finish(self, world: World) -> None:
        """All that matters has happened."""


@pytest.mark.parametrize("seed", range(6))
def test_a_lake_table_that_its_table_has_left_is_given_to_the_next_of_that_name(seed: int) -> None:
    """The next one said that the lake table was made by somebody else."""
    copied: list[str] = []

    def hook(call: Call) -> None:
        if call.method == "copy" and call.done:
            copied.append(call.subject)
            if len(copied) == 2:
                Disturbances(world)(Kind.LOSE_LEASE, 12.0)

    world = World(seed, Renamed(), hook, steps=4)
    world.run()


class Disabled(Changes):
    """The group is disabled for a moment while it takes its lost lease again."""

    taking = done = False

    def step(self, world: World) -> None:
        super().step(world)
        if self.taking and not self.done:
            self.done = True
            world.mirror().enable_group("default", enabled=False)
            world.executor.sleep(1.0)
            world.mirror().enable_group("default")


def test_a_group_that_ends_while_it_takes_its_lost_lease_again_can_begin_again() -> None:
    """The thread that took it held it for ever, so the group was refused as run by the very same process."""
    workload = Disabled()

    def hook(call: Call) -> None:
        if workload.taking or world.executor.clock.elapsed < 5.0:
            return
        if call.method == "lease.wait":
            raise ConnectionFailed(server="the state store", cause="it was lost")
        if call.method == "lease.take" and call.done:
            workload.taking = True
            world.executor.sleep(4.0)

    world = World(1, workload, hook, steps=30)
    world.run()
    assert workload.done and not world.ended


def test_the_snapshot_of_a_new_slot_is_closed_when_its_copies_can_not_begin() -> None:
    """It stayed open until the group was started again, and held back vacuum."""
    snapshots: list[int] = []

    def begins(world: World, call: Call) -> bool:
        watched = any(task.name == "lease-default" for task in world.executor._tasks)
        return call.method == "stat" and call.subject.endswith("group.json") and watched and not call.done

    def hook(world: World, call: Call) -> bool:
        found = begins(world, call)
        if found:
            snapshots.append(len(world.server.snapshots))
        return found

    world = meeting(OSError(errno.EIO, "Input/output error", "group.json"), hook)
    assert snapshots and snapshots[-1] == 1, "it was open then"
    assert not world.server.snapshots


class RenamedInTurn(Changes):
    """A table is renamed while nobody knows that it has been copied, and another one gets its name later."""

    def setup(self, world: World) -> None:
        for name in ("b0", "p0", "a1"):
            world.server.run(lambda tx, name=name: tx.ddl.create_table(name, COLUMNS, ["id"]))  # type: ignore[misc]  # mypy knows no types of defaults

    def step(self, world: World) -> None:
        world.executor.sleep(30.0)
        if not self.done:
            self.done = True
            world.server.run(lambda tx: tx.insert("c1", id="1", v="later"))
            world.executor.sleep(20.0)
            # Between two looks at the catalog.
            for old, new in (("b0", "c0"), ("p0", "a1"), ("c1", "b0")):
                world.server.run(lambda tx, old=old, new=new: tx.ddl.rename_table(old, new))  # type: ignore[misc]  # as above

    done = False

    def finish(self, world: World) -> None:
        """All that matters has happened."""


@pytest.mark.parametrize("seed", range(6))
def test_a_lake_table_that_was_left_behind_never_takes_the_name_of_the_right_one(seed: int) -> None:
    """It was renamed to what its table was called by then, and taken for the table that was to get this name."""
    crashed: list[Call] = []

    def hook(call: Call) -> None:
        if call.method == "copy" and call.done and call.subject.endswith("a1") and not crashed:
            crashed.append(call)
            rename = partial(world.server.run, lambda tx: tx.ddl.rename_table("a1", "c1"))
            world.executor.spawn("renames", "outside", rename, daemon=True)
            world.crash_main()

    world = World(seed, RenamedInTurn(), hook, steps=4)
    world.run()
    assert crashed
