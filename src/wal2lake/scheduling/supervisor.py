"""All groups of a run: each on a thread of its own, with a shared Spark driver and workers.

    configuration, `groups` commands ──► desired groups ──► started, stopped, dropped independently

A group that fails is retried later while others run; when none runs any more, the run ends with its error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ..config import Config, GroupConfig
from ..errors import ConfigError, ErrorKind, GroupHeld, Wal2LakeError, advise
from ..executor import Event, Executor
from ..reconcile import enabled, groups_of
from ..retry import GROUP
from ..state import StateStore, TableRecord
from .group_loop import GroupLoop

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
LASTING_SECONDS = 600.0
"""a group that ran for so long before it failed counts as failed for the first time"""
_TURN_SECONDS = 0.1

MakeGroupLoop = Callable[[GroupConfig], GroupLoop]


@dataclass
class _Stop:
    """Set for one group, or for all."""

    everything: Event
    own: Event

    def is_set(self) -> bool:
        return self.everything.is_set() or self.own.is_set()


class _Run:
    """A group's loop on its thread."""

    def __init__(
        self, group: GroupConfig, make: MakeGroupLoop, stop: Event, once: bool, executor: Executor, streamed: bool
    ) -> None:  # fmt: skip
        """`streamed`: whether an earlier loop of the group has."""
        self.group, self._make, self._clock = group, make, executor.clock
        self.records: tuple[TableRecord, ...] = ()
        self.error: BaseException | None = None
        self._loop: GroupLoop | None = None
        self._once, self._streamed = once, streamed
        self._began = self._clock.monotonic()
        self.lasted = 0.0
        """seconds"""
        self._stop = _Stop(stop, executor.event())
        self._task = executor.start(f"group-{group.name}", self._body)

    def _body(self) -> None:
        try:
            self._run_loop()
            while self._loop is not None and self._loop.begins_again and not self._stop.is_set():
                self._streamed, self._loop = self.has_streamed, None
                self._run_loop()
        except BaseException as error:
            self.error = error
        finally:
            self.lasted = self._clock.monotonic() - self._began

    def _run_loop(self) -> None:
        self._loop = self._make(self.group)
        self.records = self._loop.run(self._stop, self._once)

    @property
    def has_streamed(self) -> bool:
        """Whether the group has streamed in this run: a later failure is not an error of the configuration."""
        return self._streamed or (self._loop is not None and self._loop.has_streamed)

    @property
    def recovers(self) -> bool:
        """Whether its failure may be temporary: then it is restarted from durable state."""
        return (
            self.error is not None
            and self.has_streamed
            and advise(self.error).kind is not ErrorKind.CONFIGURATION
            and not isinstance(self.error, GroupHeld)
        )

    @property
    def alive(self) -> bool:
        return self._task.is_alive()

    def end(self) -> None:
        self._stop.own.set()
        self._task.join()

    def join(self) -> None:
        self._task.join()


class Supervisor:
    def __init__(
        self, config: Config, store: StateStore, make: MakeGroupLoop,
        drop: Callable[[GroupConfig], object], executor: Executor, only: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`drop`: removes a group's objects in the source and its change log."""
        self._config, self._store, self._make, self._only = config, store, make, frozenset(only)
        self._drop_group, self._executor = drop, executor
        self._clock = executor.clock
        self._runs: dict[str, _Run] = {}
        self._again: dict[str, tuple[int, float]] = {}
        """failed groups: number of consecutive failures, and time of the next try"""
        self._ending: set[str] = set()
        self._wake = executor.event()
        self._ended = executor.event()

    def run(self, stop: Event, once: bool) -> list[TableRecord]:
        try:
            self._store.create()
            if once:
                return self._run_once(stop)
            self._executor.start("groups-listen", self._listen, daemon=True)
            self._run(stop)
        except Wal2LakeError:
            if not stop.is_set():
                raise
            log.debug("the run was stopped", exc_info=True)
        finally:
            self._ended.set()
            for run in list(self._runs.values()):
                run.end()
        return []

    def _run_once(self, stop: Event) -> list[TableRecord]:
        for group in self._desired_groups():
            self._runs[group.name] = self._begin(group, stop, once=True)
        for run in self._runs.values():
            run.join()
        for run in self._runs.values():
            if run.error is not None:
                raise run.error
        return [record for run in self._runs.values() for record in run.records]

    def _run(self, stop: Event) -> None:
        looked = 0.0
        while not stop.is_set():
            if self._wake.is_set() or not looked or self._clock.monotonic() - looked >= LOOK_SECONDS:
                self._wake.clear()
                looked = self._clock.monotonic()
                try:
                    self._reconcile(stop)
                except Wal2LakeError as error:
                    if not self._runs:
                        raise
                    log.warning("the desired groups could not be read: %s", error)
            self._restart_failed(stop)
            stop.wait(_TURN_SECONDS)

    def _reconcile(self, stop: Event) -> None:
        """Start, stop and drop groups as desired. Waiting for a stopping group is done on another thread."""
        desired = {group.name: group for group in self._desired_groups()}
        for name, run in list(self._runs.items()):
            if desired.get(name) != run.group and name not in self._ending:
                self._ending.add(name)
                self._executor.start(f"end-{name}", partial(self._end, name), daemon=True)
        for name, group in desired.items():
            if name not in self._runs:
                log.info("group %s is started", name)
                self._runs[name] = self._begin(group, stop)
        for spec in self._store.group_specs().values():
            mine = not self._only or spec.name in self._only
            if spec.dropping and mine and spec.name not in self._runs:
                self._drop(spec.name)

    def _begin(self, group: GroupConfig, stop: Event, once: bool = False, streamed: bool = False) -> _Run:
        return _Run(group, self._make, stop, once, self._executor, streamed)

    def _end(self, name: str) -> None:
        self._runs[name].end()
        log.info("group %s has stopped", name)
        self._runs.pop(name, None)
        self._again.pop(name, None)
        self._ending.discard(name)
        self._wake.set()

    def _drop(self, name: str) -> None:
        try:
            self._drop_group(GroupConfig(name=name))
        except Wal2LakeError as error:
            log.warning("group %s could not be dropped: %s", name, error)

    def _desired_groups(self) -> Sequence[GroupConfig]:
        specs = self._store.group_specs()
        groups = groups_of(self._config, specs)
        if unknown := self._only - {group.name for group in groups}:
            raise ConfigError(
                field="--group", cause=f"there is no group {', '.join(sorted(unknown))}",
                allowed=f"one of: {', '.join(group.name for group in groups)}",
            )  # fmt: skip
        return [group for group in groups if enabled(group, specs) and (not self._only or group.name in self._only)]

    def _restart_failed(self, stop: Event) -> None:
        # Stopped groups are removed by other threads.
        runs = dict(self._runs)
        failed = [run for name, run in runs.items() if run.error is not None and name not in self._ending]
        if failed and not any(run.alive or run.recovers for run in runs.values()):
            raise failed[0].error or AssertionError("it failed")
        now = self._clock.monotonic()
        for run in failed:
            name = run.group.name
            times, at = self._again.get(name, (0, 0.0))
            if not at:
                times = 0 if run.lasted > LASTING_SECONDS else times
                advice = advise(run.error or AssertionError("it failed"))
                log.error("group %s: %s; it is restarted after a while", name, advice.message)
                self._again[name] = (times + 1, now + GROUP.after(times + 1))
            elif now >= at:
                self._again[name] = (times, 0.0)
                self._runs[name] = self._begin(run.group, stop, streamed=run.has_streamed)

    def _listen(self) -> None:
        listener = self._store.listener()
        while not self._ended.is_set():
            try:
                if listener.wait(1.0):
                    self._wake.set()
            except Wal2LakeError:
                self._ended.wait(1.0)
        listener.release()
