"""Everything that may happen to tables, while people add, remove, pause, copy and move them, and make and drop a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from simulation.workload import TABLES, Life
from simulation.world import World
from wal2lake.errors import CommandRefused, ConnectionFailed, TableMissing, Wal2LakeError
from wal2lake.state import GroupSpec

OTHER = "other"
"""the group that is made and dropped"""
CONFIGURED = "default"
AGAIN_SECONDS = 1.0
MOST_TRIES = 60


class Managed(Life):
    """`Life` with commands."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._commanding = self.chance.choice((0.1, 0.3, 0.6))
        every: Sequence[Callable[[World], object]] = (
            self._pause, self._resume, self._resync, self._resync_all, self._remove, self._add, self._move_there,
            self._move_back, self._create_group, self._drop_group, self._disable_group, self._enable_group,
        )  # fmt: skip
        self._commands = [one for one in every if self.chance.random() < 0.7] or list(every)

    def step(self, world: World) -> None:
        if self.chance.random() >= self._commanding:
            super().step(world)
            return
        command = self.chance.choice(self._commands)
        try:
            command(world)
            self.said.append(f"-- {command.__name__.strip('_')}")
        except Wal2LakeError as error:
            self.said.append(f"-- {command.__name__.strip('_')}: {error}")

    def finish(self, world: World) -> None:
        """Have everything mirrored again."""
        super().finish(world)
        for group in (CONFIGURED, OTHER):
            self._surely(world, partial(world.mirror().enable_group, group))
        for table in list(world.server.state.tables.values()):
            if table.parent is None:
                self._surely(world, partial(world.mirror().add, [str(table.id)]))
                self._surely(world, partial(world.mirror().resume, [str(table.id)]))

    def _surely(self, world: World, command: Callable[[], object]) -> None:
        """A server that is being restarted is back soon, and so is a table under a new name."""
        for _ in range(MOST_TRIES):
            try:
                command()
                return
            except (ConnectionFailed, TableMissing):
                pass
            except CommandRefused as error:
                if "lake table" not in str(error):
                    # It is as it should be.
                    return
                # The table that had the name before still has it in the lake.
            world.keep_main()
            world.executor.sleep(AGAIN_SECONDS)

    # Commands

    def _table(self, world: World) -> str:
        """One that there is, as a rule."""
        found = sorted(str(table.id) for table in world.server.state.tables.values() if table.parent is None)
        return self.chance.choice(found if found and self.chance.random() < 0.9 else list(TABLES))

    def _pause(self, world: World) -> None:
        world.mirror().pause([self._table(world)])

    def _resume(self, world: World) -> None:
        world.mirror().resume([self._table(world)])

    def _resync(self, world: World) -> None:
        world.mirror().resync([self._table(world)])

    def _resync_all(self, world: World) -> None:
        world.mirror().resync(all=True, together=self.chance.random() < 0.5)

    def _remove(self, world: World) -> None:
        world.mirror().remove([self._table(world)], drop_lake=self.chance.random() < 0.5)

    def _add(self, world: World) -> None:
        group = self.chance.choice((None, CONFIGURED, OTHER))
        world.mirror().add([self._table(world)], group, copy=True)

    def _move_there(self, world: World) -> None:
        world.mirror().move([self._table(world)], OTHER)

    def _move_back(self, world: World) -> None:
        world.mirror().move([self._table(world)], CONFIGURED)

    def _create_group(self, world: World) -> None:
        world.mirror().create_group(GroupSpec(OTHER, made=True))

    def _drop_group(self, world: World) -> None:
        world.mirror().drop_group(OTHER)

    def _disable_group(self, world: World) -> None:
        world.mirror().enable_group(self.chance.choice((CONFIGURED, OTHER)), enabled=False)

    def _enable_group(self, world: World) -> None:
        world.mirror().enable_group(self.chance.choice((CONFIGURED, OTHER)))
