"""One mirrored table while its group runs: where it stands, what waits for it, what is under way."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from .. import retry
from ..changelog.manifest import Manifest
from ..errors import Advice, Kind, Wal2LakeError, advise
from ..lake.model import Applied
from ..position import NO_VERSION, ZERO, LakeVersion, Lsn
from ..schema import TableId, TableSchema
from ..state import TableRecord, TableSpec
from ..state.lifecycle import TableState, Transition, may_become


@dataclass
class TableRuntime:
    schema: TableSchema
    """as the catalog has it"""
    record: TableRecord
    applied: Applied | None = None
    resync: bool = False
    """a re-copy is wanted and has not begun"""
    resync_wanted: datetime | None = None
    """when the last copy was asked for"""
    copying_for: datetime | None = None
    """when the copy that is under way was asked for"""
    job: Future[Applied] | None = None
    began: float = 0.0
    """when its last work on the lake did, by the clock that only goes forward"""
    catch_up: Lsn = ZERO
    """a table that has this position has caught up"""
    copy_failed: bool = False
    """what is tried again is the copy"""
    interrupted: bool = False
    """its first failure came with Spark's end: it is tried again as soon as Spark is back"""
    detached: bool = False
    """the change log can't help it any more, only a re-copy can"""
    held: int | None = None
    """while a copy runs: the last manifest that the copy will hold"""
    waiting: int | None = None
    """number of the first manifest with changes that are not applied"""
    dirty: bool = True
    """the state store has an older record"""
    spec: TableSpec | None = None
    """what commands have asked for it"""
    round: str | None = None
    """the wanted copy is made at one snapshot with those of the same word"""
    leaving: Lsn | None = None
    """the source table is gone; all of it was captured when the log has this position"""
    refused: Wal2LakeError | None = None
    """why nothing of it is captured; as long as it is so, nothing is tried"""
    arriving: bool = False
    """another group still has it; its changes are kept here until it is handed over"""
    renaming: TableId | None = None
    """the name that its lake table is to have, where that is another than it has"""
    rename_failed: bool = False
    """the rename is left until the table is tried again"""
    transitions: list[Transition] = field(default_factory=list)
    """those that the state store does not know of"""
    stored: LakeVersion = NO_VERSION
    """the version that the state store knows of"""
    stored_upto: int = 0
    """the last manifest that this version has"""
    gave_up: bool = False
    """changes that are not applied may be deleted: no version in the lake will do until a copy is made"""

    def __post_init__(self) -> None:
        self.stored = self.record.version

    @property
    def state(self) -> TableState:
        return self.record.state

    @property
    def name(self) -> str:
        return str(self.schema.id)

    @property
    def target(self) -> TableId:
        """The lake table."""
        return self.record.lake_table

    @property
    def made(self) -> bool:
        """Whether the lake may have a table of it."""
        return self.applied is not None or self.record.last_commit_at is not None or self.job is not None

    @property
    def paused(self) -> bool:
        return self.spec is not None and self.spec.paused

    @property
    def active(self) -> bool:
        return self.state in (TableState.CATCHUP, TableState.STREAMING)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is to be done for it before something arrives or is asked for."""
        return (
            self.state is TableState.STREAMING
            and self.job is None
            and self.waiting is None
            and not self.resync
            and self.renaming is None
            and self.applied is not None
            and not self.paused
            and not self.on_the_way
            and self.stored == self.record.version
        )

    @property
    def on_the_way(self) -> bool:
        """Whether it goes: from the source, or from group to group."""
        return self.leaving is not None or (self.spec is not None and self.spec.moving_from is not None)

    def become(self, state: TableState, **changes: object) -> None:
        if not may_become(self.state, state):
            raise AssertionError(f"{self.name}: {self.state} can't become {state}")
        before = self.state
        self.update(state=state, **changes)
        if state is not before or state is TableState.ERRORED:
            error = self.record.error if state is TableState.ERRORED else None
            self.transitions.append(Transition(datetime.now(UTC), before, state, error))

    def update(self, **changes: object) -> None:
        record = replace(self.record, **changes)  # type: ignore[arg-type]  # fields are checked by the dataclass
        if record != self.record:
            self.record, self.dirty = record, True

    def arrive(self, manifest: Manifest) -> bool:
        """Take notice of a manifest; nothing happens for a table that it does not name. Whether something waits."""
        if self.waiting is None and self.schema.oid in manifest.tables:
            if self.applied is not None and manifest.number <= self.applied.manifest:
                return False
            self.waiting = manifest.number
            self.update(behind_since=manifest.commit_ts)
        return self.waiting is not None

    def advance(self, applied: Applied, remaining: Iterable[Manifest]) -> None:
        """A batch or a copy is committed: remember its position and look at what still waits."""
        self.applied = applied
        self.waiting = None
        self.gave_up = False
        self.update(
            version=applied.version,
            applied_lsn=applied.lsn,
            rows=applied.rows,
            changes_applied=applied.changes,
            last_commit_at=datetime.now(UTC),
            behind_since=None,
        )
        for manifest in remaining:
            if self.arrive(manifest):
                break

    # ---- what was asked of it

    def describe(self, schema: TableSchema, spec: TableSpec | None, round: str | None) -> None:
        """The catalog and the commands say this of it now."""
        self.schema, self.spec, self.round = schema, spec, round
        self.update(id=schema.id)

    def request_copy(self, asked: datetime | None = None) -> None:
        """A copy is wanted; `asked`: since when the state store knows of it."""
        self.resync = True
        if asked is not None:
            self.resync_wanted = asked

    def set_refusal(self, refused: Wal2LakeError | None) -> Wal2LakeError | None:
        """Why nothing of it is captured, None if it is; what was said before."""
        before, self.refused = self.refused, refused
        return before

    def dropped_at_source(self, position: Lsn) -> None:
        """The source table is gone; all of it was captured when the log has this position."""
        self.leaving = position

    def aim_at(self, new: TableId | None) -> None:
        """The name that its lake table is to have, None if it has it."""
        if new != self.renaming:
            self.renaming, self.rename_failed = new, False

    # ---- from group to group

    def taken_over(self, claimed: datetime | None) -> None:
        """It is this group's now. `claimed`: when a copy of it was asked for, if one was."""
        self.arriving, self.dirty = False, True
        # A look at the store that was under way meanwhile may have found that it wants a copy since then.
        self.resync_wanted = claimed
        if self.spec is not None:
            self.spec = replace(self.spec, moving_from=None, handover_lsn=None, handed_lsn=None)

    def handed_over(self, position: Lsn) -> None:
        """It has all changes below this position, and goes to the other group."""
        assert self.spec is not None
        self.spec = replace(self.spec, handed_lsn=position)

    # ---- where it stands in the lake

    def try_again(self) -> None:
        """The lake is about to be asked where it stands, after an error or at the start of a run."""
        self.update(error=None, remedy=None, retry_at=None)
        self.detached = False

    def await_copy(self) -> None:
        """The lake has nothing of it that could be continued."""
        self.become(TableState.PENDING, applied_lsn=None)
        self.resync = True

    def await_retry(self, copy: bool) -> None:
        """An error of an earlier run is waited for; `copy`: what is tried again then is its copy."""
        self.copy_failed = copy

    def found(self, applied: Applied) -> None:
        """The lake has it; what follows is to be advanced to."""
        self.become(TableState.CATCHUP, target=applied.schema.id)
        self.rename_failed = False

    def not_found(self, detached: bool) -> None:
        """The lake can't say where it stands. `detached`: the change log can't help it any more."""
        self.detached = detached

    def caught_up(self, logged: Lsn) -> bool:
        """Whether it streams now: it has what was captured as its catching up began; a busy one always has more."""
        assert self.applied is not None
        if not self.catch_up:
            self.catch_up = max(logged, self.applied.lsn)
        if self.applied.lsn < self.catch_up and (self.waiting is not None or logged < self.catch_up):
            return False
        self.catch_up = ZERO
        self.become(TableState.STREAMING)
        self.succeed()
        return True

    def renamed(self, name: TableId) -> None:
        """Its lake table has another name."""
        self.update(target=name)
        if self.applied is not None:
            self.applied = replace(self.applied, schema=replace(self.applied.schema, id=name))

    def not_renamed(self) -> None:
        """The rename is left until the table is tried again."""
        self.rename_failed = True

    def maintained(self, applied: Applied) -> None:
        """It has the same rows and position in other files."""
        self.applied = applied

    # ---- work on it

    def start(self, job: Future[Applied], began: float | None = None) -> None:
        """A worker has it. `began`: when, by the clock that only goes forward, if changes are brought into it."""
        self.job = job
        if began is not None:
            self.began = began

    def end_job(self) -> Future[Applied]:
        """Its work has ended; what came of it."""
        job, self.job = self.job, None
        assert job is not None
        return job

    def hinder_copy(self) -> None:
        """The copy that was wanted can't begin; it is tried again with the table."""
        self.resync, self.copy_failed = False, True

    def begin_copy(self, seen: int) -> None:
        """A copy is about to start; it will hold every change of the manifests up to `seen`."""
        self.resync, self.held, self.copying_for = False, seen, self.resync_wanted
        self._give_up()
        self.become(TableState.PENDING)
        self.become(TableState.SNAPSHOT)

    def finish(self, applied: Applied, remaining: Iterable[Manifest]) -> None:
        """The job under way has committed."""
        if self.state is TableState.SNAPSHOT:
            self.become(TableState.CATCHUP)
        self.copy_failed = self.detached = False
        self.held = None
        self.succeed()
        self.advance(applied, remaining)

    def abandon(self) -> None:
        """The job under way was broken off; it leaves nothing behind."""
        self.held = None
        if self.state is TableState.SNAPSHOT:
            self.become(TableState.PENDING)
            self.resync = True

    def fail(self, advice: Advice, at_once: bool = False) -> None:
        """Put the table aside with the reason; it is tried again later, from where the lake says that it is."""
        if self.state is TableState.SNAPSHOT:
            self.copy_failed, self.applied = True, None
        self.held = None
        failures = self.record.failures + 1
        self.interrupted = advice.interrupted and failures == 1
        # What stays until somebody changes something is looked at now and then; room on a disk may come at any time.
        seconds = (
            retry.TABLE.most if advice.kind is Kind.CONFIGURATION else retry.TABLE.after(failures, random.random())
        )
        if at_once and advice.kind is Kind.TRANSIENT:
            seconds = 0.0
        self.become(
            TableState.ERRORED,
            error=advice.message,
            remedy=advice.remedy,
            failures=failures,
            kind=advice.kind.value,
            retry_at=datetime.now(UTC) + timedelta(seconds=seconds),
        )

    def refuse(self) -> None:
        """Put it aside because nothing of it is captured; when that has an end, it is copied."""
        assert self.refused is not None
        self.applied, self.copy_failed, self.resync = None, True, False
        self.fail(advise(self.refused))

    def succeed(self) -> None:
        self.update(error=None, remedy=None, retry_at=None, failures=0, kind=None)

    def retry_now(self) -> None:
        """Whatever it waits for after an error is over."""
        if self.state is TableState.ERRORED:
            self.update(retry_at=datetime.now(UTC))

    def spark_is_back(self) -> None:
        if self.interrupted:
            self.interrupted = False
            self.retry_now()

    def still_waits(self, now: datetime) -> bool:
        """Whether an error of an earlier run is to be waited for in this one: what goes away by itself, is."""
        retry_at = self.record.retry_at
        return (
            self.state is TableState.ERRORED
            and self.record.kind == Kind.TRANSIENT
            and retry_at is not None
            and retry_at > now
        )

    def retry_due(self, now: datetime) -> bool:
        retry_at = self.record.retry_at
        return self.state is TableState.ERRORED and self.refused is None and retry_at is not None and retry_at <= now

    def done_with(self, last: int) -> int:
        """The highest manifest that this table has no more need of, when `last` is the newest.

        Nothing is deleted before the state store knows which version of the lake table makes it superfluous: an older
        one that somebody puts back later would continue over the hole.
        """
        if self._needs_copy:
            self._give_up()
        done = self._needless(last)
        return done if self.stored == self.record.version else min(done, self.stored_upto)

    @property
    def _needs_copy(self) -> bool:
        """Whether only a copy can help it; work that is under way may still make use of its changes."""
        asked = self.resync or self.copy_failed or self.detached
        return self.held is not None or (asked and self.job is None)

    def _give_up(self) -> None:
        """From here on no version that the lake has will do, only that of a copy."""
        if not self.gave_up:
            self.gave_up = True
            version = self.record.version
            self.update(version=LakeVersion(version.epoch, version.commit + 1))

    def _needless(self, last: int) -> int:
        if self.held is not None:
            return self.held
        if self._needs_copy:
            return last
        if self.applied is None:
            # The lake has not said yet where the table stands, so everything may still be needed.
            return 0
        return last if self.waiting is None else self.waiting - 1

    def take_unsaved(self) -> list[Transition]:
        """Its record is about to be saved, with these transitions."""
        transitions, self.transitions, self.dirty = self.transitions, [], False
        return transitions

    def not_saved(self, transitions: Sequence[Transition]) -> None:
        """The state store could not be told."""
        self.dirty = True
        self.transitions[:0] = transitions

    def saved(self, record: TableRecord, upto: int) -> None:
        """The state store has this record, of a moment at which the table had all manifests up to one."""
        self.stored, self.stored_upto = record.version, upto

    def failed_by(self, advice: Advice) -> bool:
        return self.state is TableState.ERRORED and self.record.error == advice.message
