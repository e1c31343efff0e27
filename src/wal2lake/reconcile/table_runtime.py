"""A mirrored table while its group runs: its state, waiting changes and running work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ParamSpec

from ..changelog import Manifest
from ..errors import Advice, Wal2LakeError, advise
from ..executor import Future
from ..lake import Applied
from ..position import ZERO, LakeVersion, Lsn
from ..schema import Membership, TableId, TableSchema
from ..state import TableRecord, TableSpec, events, lifecycle
from ..state.lifecycle import CatchUp, Errored, Mode, TableState
from .retention import Retention, needless
from .table_life import TableLife

P = ParamSpec("P")


@dataclass(frozen=True)
class Rename:
    """A requested new name of a lake table."""

    to: TableId
    failed: bool = False
    """it waits until the table is retried"""


@dataclass
class TableRuntime(TableLife):
    applied: Applied | None = None
    job: Future[Applied] | None = field(default=None, init=False)
    began: float = field(default=0.0, init=False)
    """when its last apply did, by the monotonic clock"""
    waiting: int | None = field(default=None, init=False)
    """number of the first manifest with changes that are not applied"""
    spec: TableSpec | None = field(default=None, init=False)
    """its desired state by commands"""
    round: str | None = field(default=None, init=False)
    """the requested copy is made at one snapshot with tables that have the same word"""
    rename: Rename | None = field(default=None, init=False)
    """the requested rename of its lake table"""
    retention: Retention = field(init=False)
    _found_made: bool = field(default=False, init=False)
    """the lake has a table of it, by a commit that is in no record"""
    mode_before: Mode | None = None
    """how it was captured before this run of its group"""

    def __post_init__(self, arriving: bool) -> None:
        super().__post_init__(arriving)
        self.retention = Retention(self.record.version)

    # ---- its properties

    @property
    def target(self) -> TableId:
        """The lake table."""
        return self.record.lake_table

    @property
    def made(self) -> bool:
        """Whether the lake may have a table of it."""
        known = self.applied is not None or self.record.last_commit_at is not None or self.job is not None
        return known or self._found_made

    @property
    def paused(self) -> bool:
        return self.spec is not None and self.spec.paused

    @property
    def renaming(self) -> TableId | None:
        """The requested name of its lake table, if that differs from the present one."""
        return self.rename.to if self.rename is not None else None

    @property
    def rename_failed(self) -> bool:
        return self.rename is not None and self.rename.failed

    @property
    def is_idle(self) -> bool:
        """Whether there is no work for it until something arrives or is requested."""
        return (
            self.state is TableState.STREAMING
            and self.job is None
            and (self.waiting, self.rename, self.retention.as_partition) == (None, None, None)
            and self.applied is not None
            and not (self.resync or self.paused or self.is_leaving)
            and self.retention.stored == self.record.version
        )

    @property
    def is_leaving(self) -> bool:
        """Whether it is dropped at the source, or moves between groups."""
        return self.dropped_at is not None or (self.spec is not None and self.spec.moving_from is not None)

    def note_manifest(self, manifest: Manifest) -> bool:
        """Take in a manifest, if it names the table; return whether changes wait."""
        if self.waiting is None and self.schema.oid in manifest.tables:
            if self.applied is not None and manifest.number <= self.applied.manifest:
                return False
            self.waiting = manifest.number
            self._update(behind_since=manifest.commit_ts)
        return self.waiting is not None

    def note_partition(self, number: int | None) -> None:
        self.retention = replace(self.retention, as_partition=number)

    def advance(self, applied: Applied, remaining: Iterable[Manifest]) -> None:
        """A batch or a copy is committed: store its position and check what waits."""
        self.applied = applied
        self.waiting = None
        self.retention = replace(self.retention, gave_up=False)
        self._update(
            version=applied.version, applied_lsn=applied.lsn, rows=applied.rows, changes_applied=applied.changes,
            last_commit_at=self.clock.now(), behind_since=None,
        )  # fmt: skip
        for manifest in remaining:
            if self.note_manifest(manifest):
                break

    # ---- desired state

    def describe(self, schema: TableSchema, spec: TableSpec | None, round: str | None) -> None:
        """Set its definition in the catalog and its desired state. What an error was about may have changed with it."""
        if (schema, _members(schema)) != (self.schema, _members(self.schema)):
            self.retry_now()
        self.schema, self.spec, self.round = schema, spec, round
        self._update(id=schema.id)

    def captured_by(self, mode: Mode) -> None:
        """Set how its changes are captured."""
        self._update(mode=mode)

    def request_copy(self, requested: datetime | None = None) -> None:
        """A copy is requested; `requested`: time of the request in the state store."""
        self._on(events.copy_requested)
        if requested is not None:
            self.copy_requested_at = requested

    def note_refusal(self, refused: Wal2LakeError) -> None:
        """Nothing of it is captured; it is stopped when no work on it is running."""
        reason = advise(refused)
        if self.refusal != reason:
            self._on(events.refusal_noted, reason)
        # Whatever else it failed with: nothing heals it before this does.
        if self.state is TableState.ERRORED and not self.failed_by(reason):
            self.refuse()

    def end_refusal(self) -> None:
        """It is captured again; what failed meanwhile is retried at once."""
        if self.refusal is not None:
            self._on(events.refusal_ended)
            self.retry_now()

    def pause(self) -> None:
        self._on(events.paused)

    def dropped_at_source(self, position: Lsn) -> None:
        """The source table is dropped; all its changes are captured when the log has this position."""
        self._on(events.dropped_at_source, position)

    def is_drained(self, logged: Lsn) -> bool:
        """Whether it is dropped at the source and nothing of it will be applied any more."""
        return lifecycle.is_drained(self.life, self.waiting is not None, logged)

    def drop(self) -> None:
        """The source table is dropped, and everything captured of it is applied, or can never be."""
        self._on(events.drop_completed)
        self._update(behind_since=None)

    def set_target(self, name: TableId) -> None:
        """Its lake table has this name, or is to be made under it."""
        self._update(target=name)

    def found_made(self, name: TableId) -> None:
        """The lake has a table of it, by a copy whose commit was not reported."""
        self._found_made = True
        self._update(target=name)

    def set_rename(self, new: TableId | None) -> None:
        """Set the requested name of its lake table, None if it has it."""
        if new != self.renaming:
            self.rename = Rename(new) if new is not None else None

    # ---- moves between groups

    def taken_over(self, claimed: datetime | None) -> None:
        """It belongs to this group from now on. `claimed`: time of the request for a copy, if there is one."""
        self._on(events.taken_over)
        self.dirty = True
        # A concurrent reading of the state store may have returned a request for a copy that has been cancelled.
        self.copy_requested_at = claimed
        if self.spec is not None:
            self.spec = replace(self.spec, moving_from=None, handover_lsn=None, handed_lsn=None)

    def handed_over(self, position: Lsn) -> None:
        """It has all changes below this position, and moves to the other group."""
        assert self.spec is not None
        self.spec = replace(self.spec, handed_lsn=position)

    # ---- its position in the lake

    def await_copy(self, found: bool = True) -> None:
        """A copy is the next work on it. `found`: False if the reason is that the lake has no table for it."""
        self._on(events.copy_due if found else events.not_found_in_lake)
        self._update(applied_lsn=None)

    def found(self, applied: Applied, remaining: Iterable[Manifest]) -> None:
        """Its position in the lake is known; apply what follows. A rename that failed is retried."""
        self._on(events.found_in_lake)
        self._update(target=applied.schema.id)
        self._retry_rename()
        self.advance(applied, remaining)

    def position_unusable(self, error: Wal2LakeError, only_copy_helps: bool) -> None:
        """The lake has no usable position. `only_copy_helps`: the change log is useless to it."""
        self._on(events.position_unusable, self._attempt(advise(error)), only_copy_helps)

    def partitions_moved(self) -> None:
        """Rows of partitions are in no changes of the log, and must be exchanged."""
        self._on(events.partitions_moved)

    def caught_up(self, logged: Lsn) -> bool:
        """Whether it streams: it has what was captured when catching up began; a busy table always has more."""
        assert self.applied is not None
        if isinstance(self.life, CatchUp) and not self.life.reaches:
            copied = self.applied.visibility.until if self.applied.visibility is not None else ZERO
            self._on(events.goal_set, max(logged, self.applied.lsn, copied))
        reaches = self.life.reaches if isinstance(self.life, CatchUp) else self.applied.lsn
        if self.applied.lsn < reaches and (self.waiting is not None or logged < reaches):
            return False
        self._on(events.caught_up)
        return True

    def renamed(self, name: TableId) -> None:
        """Its lake table was renamed."""
        self._update(target=name)
        if self.applied is not None:
            self.applied = replace(self.applied, schema=replace(self.applied.schema, id=name))

    def _retry_rename(self) -> None:
        if self.rename is not None:
            self.rename = replace(self.rename, failed=False)

    def not_renamed(self) -> None:
        """The rename waits until the table is retried."""
        if self.rename is not None:
            self.rename = replace(self.rename, failed=True)

    def maintained(self, applied: Applied) -> None:
        """Maintenance has rewritten files; rows and position are the same."""
        self.applied = applied

    # ---- running work

    def start(self, job: Future[Applied], began: float | None = None) -> None:
        """A worker runs a job. `began`: when, by the monotonic clock, if changes are applied."""
        self.job = job
        if began is not None:
            self.began = began

    def end_job(self) -> Future[Applied]:
        """The job has ended; return it."""
        job, self.job = self.job, None
        assert job is not None
        return job

    def begin_copy(self, seen: int) -> None:
        """A copy is about to start; it will include every change of the manifests up to `seen`."""
        self._give_up()
        self._on(events.copy_accepted)
        self._on(events.copy_began, seen, self.copy_requested_at)

    def finish(self, applied: Applied, remaining: Iterable[Manifest]) -> None:
        """The running job has committed. If that was a copy, a rename that failed before it is retried."""
        is_copy = self.state is TableState.SNAPSHOT
        self._on(events.copy_committed if is_copy else events.batch_committed)
        if is_copy:
            self._retry_rename()
        self.advance(applied, remaining)

    def abandon(self) -> None:
        """The running job was interrupted without effect."""
        if self.state is TableState.SNAPSHOT:
            self._on(events.copy_broken_off)

    def fail(self, advice: Advice, at_once: bool = False, copy_blocked: bool = False) -> None:
        """Work on it failed; it is retried later. `copy_blocked`: the requested copy can't begin."""
        if self.state is TableState.SNAPSHOT:
            self.applied = None
        self._on(events.copy_blocked if copy_blocked else events.failed, self._attempt(advice, at_once))

    def refuse(self) -> None:
        """Nothing of it is captured; it is copied when that ends."""
        assert self.refusal is not None
        self.applied = None
        self._on(events.refused, self._attempt(self.refusal))

    def _attempt(self, advice: Advice, at_once: bool = False) -> events.FailedAttempt:
        return events.FailedAttempt(advice, self.clock.now(), self.jitter(), at_once)

    def retry_now(self) -> None:
        """Retry at once."""
        if self.state is TableState.ERRORED:
            self._on(events.retry_requested, self.clock.now())

    def spark_is_back(self) -> None:
        if isinstance(self.life, Errored) and self.life.interrupted:
            self._on(events.spark_returned, self.clock.now())

    def still_waits(self, now: datetime) -> bool:
        """Whether an error of an earlier run is waited for in this one."""
        return lifecycle.still_waits(self.life, now)

    def retry_due(self, now: datetime) -> bool:
        return lifecycle.retry_due(self.life, now)

    def failed_by(self, advice: Advice) -> bool:
        return self.state is TableState.ERRORED and self.record.error == advice.message

    # ---- what must stay in the change log, and what the state store has

    def done_with(self, last: int) -> int:
        """The highest manifest that this table does not need any more, if `last` is the newest."""
        # Running work may still use changes; a copy only those of earlier manifests.
        useless = self.held is not None or (self.only_copy_helps and self.job is None)
        if useless:
            self._give_up()
        last = last if self.held is None else self.held
        done = needless(last, useless, self.applied is not None, self.waiting)
        return self.retention.done_with(done, self.record.version)

    def _give_up(self) -> None:
        """From here on no present version of the lake table is valid, only that of a copy."""
        if not self.retention.gave_up:
            self.retention = replace(self.retention, gave_up=True, as_partition=None)
            version = self.record.version
            self._update(version=LakeVersion(version.epoch, version.commit + 1))

    def saved(self, record: TableRecord, upto: int) -> None:
        """The state store has this record, of a moment at which the table had all manifests up to `upto`."""
        self.retention = replace(self.retention, stored=record.version, stored_upto=upto)


def _members(schema: TableSchema) -> list[tuple[int, tuple[Membership, ...]]]:
    return [(heap.oid, heap.levels) for heap in schema.heaps]
