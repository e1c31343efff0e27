"""The mirror: what the command line does, as a Python API.

    from wal2lake import Mirror, load_config
    Mirror(load_config()).run_once()

Only `run` and `run_once` start Spark; the other methods read the state store and the source, with or without a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .changelog import ChangeLog, logged_groups
from .config import Config, GroupConfig
from .executor import Event
from .observe import (
    EventQuery,
    EventReader,
    GroupFacts,
    Progress,
    Silent,
    Status,
    TableStatus,
    chosen,
    status_of,
    table_status,
)
from .ports import MirrorPorts, SystemPorts
from .preflight import Finding
from .preflight import check as preflight
from .reconcile import choose, enabled, groups_of, listed, named
from .source import SourceDatabase
from .state import GroupSpec, HistoryEntry, StateStore, TableRecord
from .state.lifecycle import TableState, mode_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession  # noqa: TID251 - as a type only

    from .lake import LakeTables
    from .observe import Change
    from .reconcile import Commands, GroupSummary
    from .scheduling import GroupLoop, Workers

log = logging.getLogger(__name__)

CANCELLED_SECONDS = 5.0
"""limit for work on the lake to end after it was cancelled"""
_STOP_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class OnceResult:
    """Result of `run_once`: tables that reached the position, and those that did not, with their errors."""

    reached: tuple[TableStatus, ...]
    missed: tuple[TableStatus, ...]

    @property
    def ok(self) -> bool:
        return not self.missed


@dataclass(frozen=True)
class RunOptions:
    groups: tuple[str, ...] = ()
    """the groups to run; none: all"""
    resync_on_gap: bool = False
    """re-copy tables without a command when their slot was lost"""


class Mirror:
    def __init__(
        self, config: Config, spark: SparkSession | None = None, progress: Progress | None = None,
        ports: MirrorPorts | None = None,
    ) -> None:  # fmt: skip
        """`ports`: what it works with, instead of a PostgreSQL, a lake on Spark and threads."""
        self._config = config
        self._ports: MirrorPorts = ports or SystemPorts(config, spark)
        self._executor = self._ports.executor
        self._progress: Progress = progress or Silent()

    def run(self, stop: Event | None = None, options: RunOptions | None = None) -> None:
        """Mirror until `stop` is set."""
        self._run(stop or self._executor.event(), False, options or RunOptions())

    def run_once(self, stop: Event | None = None, options: RunOptions | None = None) -> OnceResult:
        """Copy pending tables, and apply everything that was committed before the start."""
        records = self._run(stop or self._executor.event(), True, options or RunOptions())
        now = self._executor.clock.now()
        tables = [table_status(record, None, None, now) for record in records]
        done = {TableState.CATCHUP, TableState.STREAMING, TableState.PAUSED}
        return OnceResult(
            reached=tuple(table for table in tables if table.state in done),
            missed=tuple(table for table in tables if table.state not in done),
        )

    def status(self) -> Status:
        """The positions and states of groups and tables; starts nothing."""
        with self._store() as store:
            known = store.exists()
            records = {record.name: record for record in store.groups()} if known else {}
            tables = listed(store.tables()) if known else []
            specs = store.group_specs() if store.usable else {}
            configured = groups_of(self._config, specs)
            holders = {group.name: store.holder(group.name) for group in configured}
        facts = []
        for group in configured:
            with self._source(group) as source:
                record = records.get(group.name)
                mine = [table for table in tables if table.group == group.name]
                if record is None and not mine:
                    mine = _unstarted(source, group)
                facts.append(
                    GroupFacts(
                        name=group.name,
                        capture=group.capture,
                        slot=source.slot_name,
                        standing=source.standing(),
                        record=record,
                        tables=tuple(mine),
                        holder=holders[group.name],
                        enabled=enabled(group, specs),
                        changelog_max_bytes=self._config.changelog.max_bytes,
                    )
                )
        return status_of(facts, self._executor.clock.now())

    def tables(self) -> tuple[TableStatus, ...]:
        return self.status().tables

    def check(self) -> tuple[Finding, ...]:
        """Everything that blocks a run, per object, with its fix."""
        return preflight(self._config)

    def resync(self, names: Sequence[str] = (), all: bool = False, together: bool = False) -> tuple[str, ...]:
        """Request re-copies of tables; an active run starts them at once, otherwise the next run does."""
        with self._commands() as commands:
            return commands.resync(names, all, together)

    def add(
        self, names: Sequence[str], group: str | None = None, copy: bool = True, target: str | None = None
    ) -> tuple[str, ...]:
        """Mirror tables beside those that the configuration names."""
        with self._commands() as commands:
            return commands.add(names, group, copy, target)

    def remove(self, names: Sequence[str], drop_lake: bool = False) -> tuple[str, ...]:
        """Stop mirroring tables, even if the configuration names them; their lake tables are kept or dropped."""
        with self._commands() as commands:
            return commands.remove(names, drop_lake)

    def pause(self, names: Sequence[str]) -> tuple[str, ...]:
        """Pause tables; their changes are kept in the change log."""
        with self._commands() as commands:
            return commands.pause(names)

    def resume(self, names: Sequence[str]) -> tuple[str, ...]:
        """Resume paused tables, and retry those that wait after an error."""
        with self._commands() as commands:
            return commands.resume(names)

    def move(self, names: Sequence[str], group: str) -> tuple[str, ...]:
        """Mirror tables in another group, without a re-copy where that is exact."""
        with self._commands() as commands:
            return commands.move(names, group)

    def history(self, name: str) -> tuple[HistoryEntry, ...]:
        """The latest events of a table, oldest first."""
        with self._commands(reading=True) as commands:
            return tuple(commands.history(name))

    def groups(self) -> tuple[GroupSummary, ...]:
        """All groups, those of the configuration first."""
        with self._commands(reading=True) as commands:
            return commands.groups()

    def stored_groups(self) -> tuple[GroupConfig, ...]:
        """The groups that were created by commands."""
        with self._store() as store:
            specs = store.group_specs() if store.usable else {}
        return groups_of(self._config, specs)[len(self._config.groups) :]

    def create_group(self, group: GroupSpec) -> None:
        """Create a group in the state store."""
        with self._commands() as commands:
            commands.create_group(group)

    def drop_group(self, name: str) -> bool:
        """Drop a group with its slot and publication; False if an active run has not done it yet."""
        with self._commands() as commands:
            return commands.drop_group(name, self._wait)

    def enable_group(self, name: str, enabled: bool = True) -> None:
        """Enable or disable a group. The slot of a disabled group stays and holds the WAL."""
        with self._commands() as commands:
            commands.enable_group(name, enabled)

    def tail(self, names: Sequence[str] = (), lines: int = 10, stop: Event | None = None) -> Iterator[Change]:
        """The last changes in the change log, then each new one until `stop`; without `stop`, no new ones."""
        from .observe import captured_changes

        records = self._records_of(names)
        tables = frozenset(record.id for record in records) if names else None
        return captured_changes(self._logs(), tables, lines, stop)

    def events(
        self, tables: Sequence[str] = (), start: str = "now", *, group: str | None = None, ops: Sequence[str] = (),
        limit: int | None = None, follow: bool = True, stop: Event | None = None,
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """Changes as flat events, in the order of their commits, from a position on.

        `start`: "beginning", "now" or a position: an LSN, or the `_position` of an event, behind which it goes on.
        `ops`: insert, update, delete, truncate; none: all. `limit`: at most so many. Without `follow` it ends with what
        has been captured. EventsGone is raised where the change log does not hold all of it any more.
        """
        return self.read_events(EventQuery(tables, start, group, ops, limit, follow), stop).dictionaries()

    def read_events(self, query: EventQuery, stop: Event | None = None) -> EventReader:
        """A reader of the same events, also as lines of JSON; what is new is counted from here on."""
        records = self._records_of(query.tables)
        oids = frozenset(record.oid for record in records) if query.tables else None
        groups = {record.group for record in records} if query.tables else None
        logs = [log for log in chosen(self._logs(), query.group) if groups is None or log.group in groups]
        return EventReader(query, logs, oids, stop or self._executor.event())

    def _records_of(self, names: Sequence[str]) -> list[TableRecord]:
        if not names:
            return []
        with self._store() as store:
            by_id = {record.id: record for record in (store.tables() if store.exists() else [])}
        return named(by_id, names)

    def _logs(self) -> list[ChangeLog]:
        names = dict.fromkeys(group.name for group in self._config.groups)
        # Groups that a command made have logs here, too, so the source need not be queried.
        return [self._log(name) for name in names | dict.fromkeys(logged_groups(self._ports.logs))]

    def teardown(self, other: bool = False) -> None:
        """Drop slots, publications, the schema wal2lake and the change log; lake tables stay.

        `other`: drop those of another installation, whose lake does not exist any more.
        """
        if other:
            with self._store(other=True) as store:
                from .reconcile import drop_other

                drop_other(self._config, store)
            return
        with self._store() as store:
            from .reconcile import drop_group, leftovers

            store.create()
            groups = [*groups_of(self._config, store.group_specs())]
            groups += [GroupConfig(name=record.name) for record in leftovers(self._config, store)]
            for group in groups:
                drop_group(store, self._ports.source, self._ports.logs, group, wholly=True)
            store.drop()

    # ----

    def _run(self, stop: Event, once: bool, options: RunOptions) -> list[TableRecord]:
        from .reconcile import drop_group
        from .scheduling import Supervisor, Workers, apply_workers

        # If everything is applied already, `run_once` ends without a JVM.
        on_demand = once and all(self._log(group.name).started for group in self._config.groups)
        lake = self._ports.lake(on_demand)
        spark = self._config.spark
        executor = self._executor
        workers = Workers.of(apply_workers(spark.master, spark.apply_workers), spark.copy_workers, executor)
        with self._store() as store:
            supervisor = Supervisor(
                self._config, store, partial(self._group_loop, lake, store, workers, options.resync_on_gap),
                drop=partial(drop_group, store, self._ports.source, self._ports.logs),
                executor=executor, only=options.groups,
            )  # fmt: skip
            ended = executor.event()
            try:
                # The JVM takes seconds to start, so the source is read meanwhile. The scheduler reports its errors.
                executor.start("spark-start", partial(_quietly_begin, lake), daemon=True)
                executor.start("stop", partial(_hasten, stop, ended, lake, store), daemon=True)
                return supervisor.run(stop, once)
            finally:
                workers.close()
                lake.stop()
                ended.set()

    def _group_loop(
        self, lake: LakeTables, store: StateStore, workers: Workers, resync_on_gap: bool, group: GroupConfig
    ) -> GroupLoop:
        from .scheduling import GroupLoop, GroupPorts

        changelog = self._log(group.name)
        with self._source(group) as source:
            choice = choose(group, changelog, source)
        if choice.group.triggers and choice.obstacles:
            log.warning("group %s is captured by triggers: %s", group.name, "; ".join(choice.obstacles))
        group = choice.group
        ports = GroupPorts(
            executor=self._executor,
            source=self._ports.source(group),
            log=changelog,
            lake=lake,
            store=store,
            lease=store.lease(group.name),
            make_capture=partial(self._ports.capture, group),
            workers=workers,
            progress=self._progress,
        )
        return GroupLoop(self._config, group, ports, resync_on_gap, choice.chosen)

    def _log(self, group: str) -> ChangeLog:
        return ChangeLog(self._ports.logs, group)

    @contextmanager
    def _commands(self, reading: bool = False) -> Iterator[Commands]:
        from .reconcile import Commands

        with self._store() as store:
            commands = Commands(self._config, store, self._ports.source, self._ports.logs, self._executor.clock)
            if not reading:
                commands.prepare()
            yield commands

    @contextmanager
    def _store(self, other: bool = False) -> Iterator[StateStore]:
        """The state store. `other`: accept the store of another installation."""
        store = self._ports.store(other)
        try:
            store.require_own()
            yield store
        finally:
            store.close()

    def _wait(self, condition: Callable[[], bool], seconds: float = 60.0) -> bool:
        """Wait until a condition holds that another process changes; return whether it does."""
        clock = self._executor.clock
        until = clock.monotonic() + seconds
        while not condition():
            if clock.monotonic() > until:
                return False
            self._executor.sleep(0.2)
        return True

    @contextmanager
    def _source(self, group: GroupConfig) -> Iterator[SourceDatabase]:
        source = self._ports.source(group)
        try:
            yield source
        finally:
            source.close()


def _quietly_begin(lake: LakeTables) -> None:
    try:
        lake.begin()
    except Exception as error:
        log.debug("Spark did not start: %s", error)


def _hasten(stop: Event, ended: Event, lake: LakeTables, store: StateStore) -> None:
    """End a run soon after the stop request. Each component cancels its own work where it can.

    Work that can't be cancelled ends with the JVM, which may end at any moment: commits are atomic.
    """
    while not stop.wait(_STOP_LOOK_SECONDS):
        if ended.is_set():
            return
    store.limit_waits()
    # A JVM that is still starting has no work to finish.
    if not lake.ready or not ended.wait(CANCELLED_SECONDS):
        lake.kill()


def _unstarted(source: SourceDatabase, group: GroupConfig) -> list[TableRecord]:
    return [TableRecord(group.name, s.oid, s.id, TableState.PENDING, mode_of(group)) for s in source.discover()]
