"""All groups under one run: each in a thread of its own, on one Spark driver and its workers.

    configuration, `groups` commands ──► wanted groups ──► started, stopped, dropped while the others go on

A group that fails is tried again later while others run; when none runs any more, the run ends with its error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import monotonic

from ..config import Config, GroupConfig
from ..errors import ConfigError, GroupHeld, Kind, Wal2LakeError, advise
from ..reconcile.desired_tables import enabled, groups_of
from ..reconcile.group_removal import drop_group
from ..retry import GROUP
from ..state import Listener, StateStore, TableRecord
from .group_loop import GroupLoop

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
LASTING_SECONDS = 600.0
"""a group that ran for so long before it failed has failed for the first time"""
_TURN_SECONDS = 0.1

MakeScheduler = Callable[[GroupConfig], GroupLoop]


@dataclass
class _Stop:
    """Set for one group, or for all."""

    everything: threading.Event
    own: threading.Event = field(default_factory=threading.Event)

    def is_set(self) -> bool:
        return self.everything.is_set() or self.own.is_set()


class _Run:
    """One group's scheduler in its thread."""

    def __init__(self, group: GroupConfig, scheduler: GroupLoop, stop: threading.Event, once: bool) -> None:
        self.group = group
        self.records: tuple[TableRecord, ...] = ()
        self.error: BaseException | None = None
        self._scheduler, self._once = scheduler, once
        self._began = monotonic()
        self.lasted = 0.0
        """seconds"""
        self._stop = _Stop(stop)
        self._thread = threading.Thread(target=self._body, name=f"group-{group.name}")
        self._thread.start()

    def _body(self) -> None:
        try:
            self.records = self._scheduler.run(self._stop, self._once)
        except BaseException as error:
            self.error = error
        finally:
            self.lasted = monotonic() - self._began

    @property
    def recovers(self) -> bool:
        """Whether it has failed of something that may pass: what it does is then begun again from what is durable."""
        return (
            self.error is not None
            and self._scheduler.proven
            and advise(self.error).kind is not Kind.CONFIGURATION
            and not isinstance(self.error, GroupHeld)
        )

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._stop.own.set()
        self._thread.join()

    def join(self) -> None:
        self._thread.join()


class Supervisor:
    def __init__(
        self, config: Config, store: StateStore, make: MakeScheduler, only: Collection[str] = ()
    ) -> None:  # fmt: skip
        self._config, self._store, self._make, self._only = config, store, make, frozenset(only)
        self._runs: dict[str, _Run] = {}
        self._again: dict[str, tuple[int, float]] = {}
        """groups that failed: how often in a row, and when they are tried again"""
        self._ending: set[str] = set()
        self._wake = threading.Event()
        self._ended = threading.Event()

    def run(self, stop: threading.Event, once: bool) -> list[TableRecord]:
        try:
            self._store.create()
            if once:
                return self._run_once(stop)
            threading.Thread(target=self._listen, name="groups-listen", daemon=True).start()
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

    def _run_once(self, stop: threading.Event) -> list[TableRecord]:
        for group in self._wanted():
            self._runs[group.name] = _Run(group, self._make(group), stop, once=True)
        for run in self._runs.values():
            run.join()
        for run in self._runs.values():
            if run.error is not None:
                raise run.error
        return [record for run in self._runs.values() for record in run.records]

    def _run(self, stop: threading.Event) -> None:
        looked = 0.0
        while not stop.is_set():
            if self._wake.is_set() or not looked or monotonic() - looked >= LOOK_SECONDS:
                self._wake.clear()
                looked = monotonic()
                try:
                    self._reconcile(stop)
                except Wal2LakeError as error:
                    if not self._runs:
                        raise
                    log.warning("the wanted groups could not be read: %s", error)
            self._look_at_failures(stop)
            stop.wait(_TURN_SECONDS)

    def _reconcile(self, stop: threading.Event) -> None:
        """Start, stop and drop groups, as is wanted. One that stops is waited for beside this."""
        wanted = {group.name: group for group in self._wanted()}
        for name, run in list(self._runs.items()):
            if wanted.get(name) != run.group and name not in self._ending:
                self._ending.add(name)
                threading.Thread(target=self._end, args=[name], name=f"end-{name}", daemon=True).start()
        for name, group in wanted.items():
            if name not in self._runs:
                log.info("group %s begins", name)
                self._runs[name] = _Run(group, self._make(group), stop, once=False)
        for spec in self._store.group_specs().values():
            mine = not self._only or spec.name in self._only
            if spec.dropping and mine and spec.name not in self._runs:
                self._drop(spec.name)

    def _end(self, name: str) -> None:
        self._runs[name].end()
        log.info("group %s has stopped", name)
        self._runs.pop(name, None)
        self._again.pop(name, None)
        self._ending.discard(name)
        self._wake.set()

    def _drop(self, name: str) -> None:
        try:
            drop_group(self._config, self._store, GroupConfig(name=name))
        except Wal2LakeError as error:
            log.warning("group %s could not be dropped: %s", name, error)

    def _wanted(self) -> Sequence[GroupConfig]:
        specs = self._store.group_specs()
        groups = groups_of(self._config, specs)
        if unknown := self._only - {group.name for group in groups}:
            raise ConfigError(
                field="--group", cause=f"there is no group {', '.join(sorted(unknown))}",
                allowed=f"one of: {', '.join(group.name for group in groups)}",
            )  # fmt: skip
        return [group for group in groups if enabled(group, specs) and (not self._only or group.name in self._only)]

    def _look_at_failures(self, stop: threading.Event) -> None:
        # Groups that have stopped are taken out by threads of their own.
        runs = dict(self._runs)
        failed = [run for name, run in runs.items() if run.error is not None and name not in self._ending]
        if failed and not any(run.alive or run.recovers for run in runs.values()):
            raise failed[0].error or AssertionError("it failed")
        now = monotonic()
        for run in failed:
            name = run.group.name
            times, at = self._again.get(name, (0, 0.0))
            if not at:
                times = 0 if run.lasted > LASTING_SECONDS else times
                advice = advise(run.error or AssertionError("it failed"))
                log.error("group %s: %s; it is started again in a while", name, advice.message)
                self._again[name] = (times + 1, now + GROUP.after(times + 1))
            elif now >= at:
                self._again[name] = (times, 0.0)
                self._runs[name] = _Run(run.group, self._make(run.group), stop, once=False)

    def _listen(self) -> None:
        listener = Listener(self._store.dsn)
        while not self._ended.is_set():
            try:
                if listener.wait(1.0):
                    self._wake.set()
            except Wal2LakeError:
                self._ended.wait(1.0)
        listener.release()
