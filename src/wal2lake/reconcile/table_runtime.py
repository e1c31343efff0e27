"""One mirrored table while its group runs: where it stands, what waits for it, what is under way."""

from __future__ import annotations

import random
from collections.abc import Iterable
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
from ..state.lifecycle import TableState, may_become


@dataclass(frozen=True)
class Transition:
    """A table has become something else: when, and the error if there was one."""

    at: datetime
    before: TableState
    after: TableState
    error: str | None = None


@dataclass
class TableRuntime:
    schema: TableSchema
    """as the catalog has it"""
    record: TableRecord
    applied: Applied | None = None
    resync: bool = False
    """a re-copy is wanted and has not begun"""
    resync_wanted: datetime | None = None
    """when the copy that is wanted, or under way, was asked for"""
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

    def begin_copy(self, seen: int) -> None:
        """A copy is about to start; it will hold every change of the manifests up to `seen`."""
        self.resync, self.held = False, seen
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

    def saved(self, record: TableRecord, upto: int) -> None:
        """The state store has this record, of a moment at which the table had all manifests up to one."""
        self.stored, self.stored_upto = record.version, upto

    def failed_by(self, advice: Advice) -> bool:
        return self.state is TableState.ERRORED and self.record.error == advice.message
