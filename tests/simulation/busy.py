"""A workload of rows and commands: what goes wrong with it has nothing to do with definitions."""

from __future__ import annotations

import random
from contextlib import suppress

from simulation.postgres_tables import Blocked, Refused
from simulation.postgres_transactions import Transaction
from simulation.remedies import ENOUGH_SLOTS
from simulation.world import World
from wal2lake.errors import Wal2LakeError

TABLES = ("a", "b", "c")
IDS = 12
LONG = "x" * 2500, "y" * 2100


class Busy:
    """Rows with long values, changes of keys and TRUNCATE, in sessions that are open together; pauses and re-copies."""

    strict = True

    def __init__(self, seed: int, standby: bool = False) -> None:
        """`standby`: more commits wait for a synchronous standby, and for longer."""
        self._chance = random.Random(f"busy {seed}")
        self._sessions = self._chance.choice((1, 2, 3))
        self._most = self._chance.choice((1, 3, 8))
        """statements of a step"""
        self._commanding = self._chance.choice((0.0, 0.0, 0.1, 0.3))
        self._truncating = self._chance.choice((0.0, 0.02, 0.2))
        self._waiting = self._chance.choice((0.0, 0.1, 0.4, 0.7) if standby else (0.0, 0.0, 0.1, 0.4))
        """how often a commit waits for a synchronous standby"""
        self._answering = self._chance.choice((0.05, 0.3)) if standby else 0.3
        """how often one that waits is answered in a step"""
        self._changing = self._chance.choice((0.05, 0.1, 0.2))
        """how often wal_level, or how many slots there may be, changes"""
        self._idling = self._chance.choice((0.0, 0.1, 0.3))
        """how often nothing is written for a while, in which capture may change its mode; transactions stay open"""
        self._open: dict[int, Transaction] = {}
        self._paused: set[str] = set()

    def setup(self, world: World) -> None:
        def make(tx: Transaction) -> None:
            for name in TABLES:
                tx.ddl.create_table(name, {"id": "int4", "v": "text", "n": "int4"}, ["id"])
            for number in range(self._chance.choice((0, 5))):
                tx.insert("a", id=str(number), v=self._chance.choice(LONG), n="0")

        world.server.run(make)
        if self._changes(world):
            self._change_server(world)

    def _changes(self, world: World) -> bool:
        """Whether the group may be captured in several ways."""
        return world.capture == "auto"

    def _change_server(self, world: World) -> None:
        server = world.server
        match self._chance.randrange(3):
            case 0:
                server.slots_max = self._chance.choice((0, ENOUGH_SLOTS))
            case _:
                server.change_wal_level("replica" if server.wal_level == "logical" else "logical")

    def step(self, world: World) -> None:
        if self._changes(world):
            if self._chance.random() < self._changing:
                self._change_server(world)
            if self._chance.random() < self._idling:
                world.executor.sleep(self._chance.choice((1.0, 4.0, 12.0)))
        if self._chance.random() < self._commanding:
            self._command(world)
            return
        number = self._chance.randrange(self._sessions)
        # A server that was restarted has ended them.
        if number not in self._open or self._open[number].ended:
            self._open[number] = world.server.begin()
        transaction = self._open[number]
        for _ in range(self._chance.randint(1, self._most)):
            with suppress(Blocked, Refused):
                transaction.attempt(self._statement)
        if self._sessions == 1 or self._chance.random() < 0.4:
            self._end(number)
        self._answer(world)

    def _answer(self, world: World) -> None:
        """The standby answers those that wait, soon or late, in any order."""
        for transaction in world.server.waiting:
            if self._chance.random() < self._answering:
                world.server.show(transaction)

    def finish(self, world: World) -> None:
        for number in list(self._open):
            self._end(number)
        for transaction in world.server.waiting:
            world.server.show(transaction)
        # What is requested can be done in either mode.
        world.server.slots_max = ENOUGH_SLOTS
        if self._changes(world) and world.server.wal_level != "logical" and self._chance.random() < 0.7:
            world.server.change_wal_level("logical")
        if self._paused:
            self._resume(world, sorted(self._paused))

    def _end(self, number: int) -> None:
        transaction = self._open.pop(number)
        if not transaction.ended:
            if self._chance.random() < 0.9:
                transaction.commit(waits=self._chance.random() < self._waiting)
            else:
                transaction.rollback()

    def _statement(self, tx: Transaction) -> None:
        table, id = self._chance.choice(TABLES), str(self._chance.randrange(IDS))
        if self._chance.random() < self._truncating:
            tx.truncate(table)
            return
        value = self._chance.choice((None, "short", *LONG))
        match self._chance.randrange(6):
            case 0 | 1:
                tx.insert(table, id=id, v=value, n="0")
            case 2:
                # The long value stays where it is, and is not sent.
                tx.update(table, {"id": id}, n=str(self._chance.randrange(100)))
            case 3:
                tx.update(table, {"id": id}, v=value)
            case 4:
                tx.update(table, {"id": id}, id=str(self._chance.randrange(IDS)))
            case _:
                tx.delete(table, {"id": id})

    # Commands

    def _command(self, world: World) -> None:
        table = self._chance.choice(TABLES)
        with suppress(Wal2LakeError):
            match self._chance.randrange(4):
                case 0:
                    world.mirror().pause([table])
                    self._paused.add(table)
                case 1:
                    world.mirror().resume([table])
                    self._paused.discard(table)
                case 2:
                    names = world.mirror().resync(all=True, together=self._chance.random() < 0.5)
                    world.requested |= dict.fromkeys(names, world.executor.clock.elapsed)
                case _:
                    names = world.mirror().resync([table])
                    world.requested |= dict.fromkeys(names, world.executor.clock.elapsed)

    def _resume(self, world: World, tables: list[str]) -> None:
        while True:
            try:
                world.mirror().resume(tables)
                return
            except Wal2LakeError:
                # A server that is being restarted is back soon.
                world.executor.sleep(1.0)
