"""Names of lake tables that a crash or a lost answer has left in an unexpected state."""

from __future__ import annotations

import pytest

from simulation.hooked import Call
from simulation.postgres_transactions import Transaction
from simulation.test_found_histories import SEEDS, History, Statements, do
from simulation.world import World
from wal2lake.errors import CommitUnknown

TABLES = ("t", "u")


def two_tables(tx: Transaction) -> None:
    for name in TABLES:
        tx.ddl.create_table(name, {"id": "int4", "v": "text"}, ["id"])
        tx.insert(name, id="1", v=f"in {name}")


def swap(tx: Transaction) -> None:
    tx.ddl.rename_table("t", "aside")
    tx.ddl.rename_table("u", "t")
    tx.ddl.rename_table("aside", "u")


def rotate(tx: Transaction) -> None:
    """One of the names becomes that of a new table."""
    swap(tx)
    tx.ddl.rename_table("t", "v")
    tx.ddl.create_table("t", {"id": "int4", "v": "text"}, ["id"])
    tx.insert("t", id="1", v="in the new t")


class Renamed(History):
    """Names change while nobody knows that the copies of both tables are committed."""

    def __init__(self, change: Statements, crashes: bool) -> None:
        super().__init__(two_tables)
        self._change, self._crashes = change, crashes
        self.world: World | None = None
        self.copied: set[str] = set()
        self.changed = False

    def hook(self, call: Call) -> None:
        world = self.world
        if world is None or self.changed or (call.port, call.method, call.done) != ("lake", "copy", True):
            return
        self.copied.add(call.subject)
        while len(self.copied) < len(TABLES):
            world.executor.sleep(0.01)
        if self._crashes:
            world.crash_main()
        raise CommitUnknown(table=call.subject, cause="its answer did not arrive")

    def step(self, world: World) -> None:
        while len(self.copied) < len(TABLES):
            world.executor.sleep(0.01)
        do(world, self._change)
        self.changed = True

    def finish(self, world: World) -> None:
        assert self.changed


@pytest.mark.parametrize("crashes", [True, False])
@pytest.mark.parametrize("change", [swap, rotate])
@pytest.mark.parametrize("seed", SEEDS)
def test_tables_whose_names_are_swapped_while_nobody_knows_that_they_are_copied(
    seed: int, change: Statements, crashes: bool
) -> None:
    """Each was stopped for good: the other one's lake table had its name."""
    history = Renamed(change, crashes)
    world = history.world = World(seed, history, history.hook, steps=1)
    world.run()
