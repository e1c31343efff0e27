"""The mirror: what the command line does, with objects.

    from wal2lake import Mirror, load_config
    Mirror(load_config()).run_once()

Only `run` and `run_once` start Spark; all else asks the state store and the source, whether or not a run is active.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .changelog import ChangeLog, logged_groups
from .config import Config, GroupConfig
from .installation import Installation
from .observe.progress import Progress, Silent
from .observe.status import GroupStatus, Status, TableStatus
from .position import Lsn
from .preflight.collect import Finding
from .preflight.collect import check as preflight
from .reconcile.desired_tables import enabled, groups_of, listed, named
from .source.database import Source
from .state import GroupRecord, GroupSpec, HistoryEntry, StateStore, TableRecord
from .state.lifecycle import GroupState, Mode, TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession  # noqa: TID251 - for the type alone

    from .lake import Lake
    from .observe.tail import Change
    from .reconcile.commands import Commands, GroupSummary

log = logging.getLogger(__name__)

CANCELLED_SECONDS = 5.0
"""how long work on the lake may take to end after it was cancelled"""
_STOP_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class OnceResult:
    """How a `run_once` ended: tables that reached the position, and those that did not, with their errors."""

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
    """re-copy tables when the stream has a gap, without being asked"""


class Mirror:
    def __init__(self, config: Config, spark: SparkSession | None = None, progress: Progress | None = None) -> None:
        self._config, self._spark = config, spark
        self._progress: Progress = progress or Silent()

    def run(self, stop: threading.Event | None = None, options: RunOptions | None = None) -> None:
        """Mirror until `stop` is set."""
        self._run(stop or threading.Event(), False, options or RunOptions())

    def run_once(self, stop: threading.Event | None = None, options: RunOptions | None = None) -> OnceResult:
        """Copy what is pending, and bring all that was committed before the start into the lake."""
        records = self._run(stop or threading.Event(), True, options or RunOptions())
        now = datetime.now(UTC)
        tables = [_table_status(record, None, None, now) for record in records]
        done = {TableState.CATCHUP, TableState.STREAMING, TableState.PAUSED}
        return OnceResult(
            reached=tuple(table for table in tables if table.state in done),
            missed=tuple(table for table in tables if table.state not in done),
        )

    def status(self) -> Status:
        """How far each group and table is; starts nothing."""
        with self._store() as store:
            known = store.exists()
            groups = {record.name: record for record in store.groups()} if known else {}
            records = store.tables() if known else []
            specs = store.group_specs() if store.usable else {}
            configured = groups_of(self._config, specs)
            holders = {group.name: store.holder(group.name) for group in configured}
        now = datetime.now(UTC)
        statuses: list[GroupStatus] = []
        tables: list[TableStatus] = []
        for group in configured:
            with self._source(group) as source:
                place = source.standing()
                record = groups.get(group.name)
                mine = [r for r in listed(records) if r.group == group.name]
                if record is None and not mine:
                    mine = _unstarted(source, group)
            running = record is not None and holders[group.name] is not None
            logged = record.logged_lsn if record is not None else None
            # What is committed while nothing can be captured has come to no table yet, and may be of any.
            still = record.still_since if record is not None and running and place.lag_bytes else None
            rows = [_table_status(r, logged if running else None, still, now) for r in mine]
            behind = max((row.lag_seconds for row in rows if row.lag_seconds is not None), default=0.0)
            if record is not None and not running and place.lag_bytes and record.updated_at is not None:
                behind = max(behind, (now - record.updated_at).total_seconds())
            tables += rows
            statuses.append(
                GroupStatus(
                    name=group.name,
                    state=_group_state(record, running, enabled(group, specs)),
                    slot=source.slot_name,
                    capture=group.capture,
                    received_lsn=place.received_lsn,
                    logged_lsn=max(logged or Lsn(0), place.acknowledged_lsn or Lsn(0)) or None,
                    acknowledged_lsn=place.acknowledged_lsn,
                    lag_bytes=place.lag_bytes,
                    lag_seconds=behind if place.lag_bytes else 0.0,
                    retained_wal_bytes=place.retained_wal_bytes,
                    holder=holders[group.name],
                    error=record.error if record is not None else None,
                    remedy=record.remedy if record is not None else None,
                    warning=record.warning if record is not None else None,
                    changelog_bytes=record.changelog_bytes if record is not None else None,
                    changelog_max_bytes=self._config.changelog.max_bytes,
                )
            )
        return Status(tuple(statuses), tuple(tables))

    def tables(self) -> tuple[TableStatus, ...]:
        return self.status().tables

    def check(self) -> tuple[Finding, ...]:
        """What blocks a run, object by object, with the fix."""
        return preflight(self._config)

    def resync(self, names: Sequence[str] = (), all: bool = False, together: bool = False) -> tuple[str, ...]:
        """Ask for re-copies of tables; a run that is active begins at once, otherwise the next one does."""
        with self._commands() as commands:
            return commands.resync(names, all, together)

    def add(
        self, names: Sequence[str], group: str | None = None, copy: bool = True, target: str | None = None
    ) -> tuple[str, ...]:
        """Mirror tables from now on, beside those that the configuration wants."""
        with self._commands() as commands:
            return commands.add(names, group, copy, target)

    def remove(self, names: Sequence[str], drop_lake: bool = False) -> tuple[str, ...]:
        """Mirror tables no more, whatever the configuration wants; their lake tables stay, or go."""
        with self._commands() as commands:
            return commands.remove(names, drop_lake)

    def pause(self, names: Sequence[str]) -> tuple[str, ...]:
        """Let tables be as they are; their changes are kept in the change log."""
        with self._commands() as commands:
            return commands.pause(names)

    def resume(self, names: Sequence[str]) -> tuple[str, ...]:
        """Go on with paused tables, and try those at once that wait after an error."""
        with self._commands() as commands:
            return commands.resume(names)

    def move(self, names: Sequence[str], group: str) -> tuple[str, ...]:
        """Mirror tables in another group, without a re-copy where that is exact."""
        with self._commands() as commands:
            return commands.move(names, group)

    def history(self, name: str) -> tuple[HistoryEntry, ...]:
        """The last things that happened to a table, oldest first."""
        with self._commands(reading=True) as commands:
            return tuple(commands.history(name))

    def groups(self) -> tuple[GroupSummary, ...]:
        """All groups, those of the configuration first."""
        with self._commands(reading=True) as commands:
            return commands.groups()

    def stored_groups(self) -> tuple[GroupConfig, ...]:
        """The groups that commands made."""
        with self._store() as store:
            specs = store.group_specs() if store.usable else {}
        return groups_of(self._config, specs)[len(self._config.groups) :]

    def create_group(self, group: GroupSpec) -> None:
        """Make a group that is kept in the state store."""
        with self._commands() as commands:
            commands.create_group(group)

    def drop_group(self, name: str) -> bool:
        """Drop a group with its slot and publication; whether it is gone. A run that is active may take longer."""
        with self._commands() as commands:
            return commands.drop_group(name, _wait)

    def enable_group(self, name: str, enabled: bool = True) -> None:
        """Have a group run, or not: then its slot stays, and holds the WAL."""
        with self._commands() as commands:
            commands.enable_group(name, enabled)

    def tail(self, names: Sequence[str] = (), lines: int = 10, stop: threading.Event | None = None) -> Iterator[Change]:
        """The last changes that the change log still holds, then each new one until `stop`; without it no new ones."""
        from .observe.tail import tail

        tables = None
        if names:
            with self._store() as store:
                by_id = {record.id: record for record in (store.tables() if store.exists() else [])}
            tables = frozenset(record.id for record in named(by_id, names))
        names_of_groups = dict.fromkeys(group.name for group in self._config.groups)
        # Groups that a command made have logs here, too; the source need not be asked for them.
        names_of_groups |= dict.fromkeys(logged_groups(self._config.changelog_path))
        logs = [ChangeLog(self._config.changelog_path, name) for name in names_of_groups]
        return tail(logs, tables, lines, stop)

    def teardown(self, other: bool = False) -> None:
        """Drop slots, publications and our schema, and the change log; lake tables stay as they are.

        `other`: what was made for another lake, which is gone.
        """
        if other:
            with self._store(other=True) as store:
                from .reconcile.group_removal import drop_other

                drop_other(self._config, store)
            return
        with self._store() as store:
            from .reconcile.group_removal import drop_group, leftovers

            store.create()
            groups = [*groups_of(self._config, store.group_specs())]
            groups += [GroupConfig(name=record.name) for record in leftovers(self._config, store)]
            for group in groups:
                drop_group(self._config, store, group)
            store.drop()

    # ----

    def _run(self, stop: threading.Event, once: bool, options: RunOptions) -> list[TableRecord]:
        from .lake import Lake
        from .scheduling.group_loop import GroupLoop
        from .scheduling.supervisor import Supervisor
        from .scheduling.worker_pool import Workers, apply_workers

        # A run that is to end when all is applied may find that it is: then no JVM is worth its start.
        on_demand = once and all(
            ChangeLog(self._config.changelog_path, group.name).started for group in self._config.groups
        )
        lake = Lake(self._config, self._spark, on_demand)
        spark = self._config.spark
        workers = Workers.of(apply_workers(spark.master, spark.apply_workers), spark.copy_workers)
        with self._store() as store:

            def scheduler(group: GroupConfig) -> GroupLoop:
                return GroupLoop(self._config, group, lake, store, self._progress, workers, options.resync_on_gap)

            ended = threading.Event()
            try:
                # The JVM takes seconds to start; meanwhile the source is looked at. The scheduler meets its errors.
                threading.Thread(target=_quietly_begin, args=[lake], name="spark-start", daemon=True).start()
                threading.Thread(target=_hasten, args=[stop, ended, lake, store], name="stop", daemon=True).start()
                return Supervisor(self._config, store, scheduler, options.groups).run(stop, once)
            finally:
                workers.close()
                lake.stop()
                ended.set()

    @contextmanager
    def _commands(self, reading: bool = False) -> Iterator[Commands]:
        from .reconcile.commands import Commands

        with self._store() as store:
            commands = Commands(self._config, store)
            if not reading:
                commands.prepare()
            yield commands

    @contextmanager
    def _store(self, other: bool = False) -> Iterator[StateStore]:
        """The state store. `other`: whichever installation it is of."""
        dsn = (self._config.state.dsn or self._config.source.dsn).get_secret_value()
        mine = None if other else Installation.of(self._config.changelog_path)
        store = StateStore(dsn, self._config.source.connect_timeout, mine)
        try:
            store.require_own()
            yield store
        finally:
            store.close()

    @contextmanager
    def _source(self, group: GroupConfig) -> Iterator[Source]:
        source = Source(self._config, group)
        try:
            yield source
        finally:
            source.close()


def _quietly_begin(lake: Lake) -> None:
    try:
        lake.begin()
    except Exception as error:
        log.debug("Spark did not start: %s", error)


def _hasten(stop: threading.Event, ended: threading.Event, lake: Lake, store: StateStore) -> None:
    """See to it that a run ends soon after it was told to. Work is cancelled by whoever began it, as far as it can be.

    What can't be cancelled ends with the JVM: it may end at any moment without a commit that is half made.
    """
    while not stop.wait(_STOP_LOOK_SECONDS):
        if ended.is_set():
            return
    store.limit_waits()
    # While it starts it has nothing to finish.
    if not lake.ready or not ended.wait(CANCELLED_SECONDS):
        lake.kill()


def _group_state(record: GroupRecord | None, running: bool, wanted: bool) -> str:
    if record is not None and wanted and (running or record.state is GroupState.ERRORED):
        return record.state.value
    return GroupState.STOPPED.value if wanted else GroupState.DISABLED.value


def _wait(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait for what another process does; whether it was done in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def _unstarted(source: Source, group: GroupConfig) -> list[TableRecord]:
    return [TableRecord(group.name, s.oid, s.id, TableState.PENDING, Mode.WAL) for s in source.discover()]


def _table_status(record: TableRecord, logged: Lsn | None, still: datetime | None, now: datetime) -> TableStatus:
    follows = record.state in (TableState.STREAMING, TableState.CATCHUP)
    unknown = record.state in (TableState.PENDING, TableState.SNAPSHOT, TableState.ERRORED)
    since = min((moment for moment in (record.behind_since, still if follows else None) if moment), default=now)
    caught_up = record.state is TableState.STREAMING and record.behind_since is None
    applied = record.applied_lsn
    if caught_up and logged is not None and applied is not None:
        applied = max(applied, logged)
    return TableStatus(
        name=str(record.id),
        group=record.group,
        state=record.state.value,
        mode=record.mode.value,
        applied_lsn=applied,
        rows=record.rows,
        changes_applied=record.changes_applied,
        lag_seconds=None if unknown and record.behind_since is None else max(0.0, (now - since).total_seconds()),
        last_commit_at=record.last_commit_at,
        error=record.error,
        remedy=record.remedy,
        retry_at=record.retry_at,
    )
