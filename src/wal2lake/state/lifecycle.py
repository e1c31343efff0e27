"""The states of a table, each with its data, and what follows from them. Pure.

    PENDING ──► SNAPSHOT ──► CATCHUP ──► STREAMING
       ▲            │            │            │
       └── resync ──┴────────────┴────────────┘      ERRORED and PAUSED can be entered from any state

The events that lead from one to another are in `events.py`, and as a table in docs/lifecycle.md. The state store has
the name of a state, its failure, and the time of the last request for a copy (`resync_wanted`); the rest is restored at
a restart, because applied positions are in the lake's own commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Protocol

from ..config import GroupConfig
from ..errors import Advice, ErrorKind
from ..position import ZERO, Lsn


class TableState(StrEnum):
    PENDING = "PENDING"
    SNAPSHOT = "SNAPSHOT"
    CATCHUP = "CATCHUP"
    STREAMING = "STREAMING"
    PAUSED = "PAUSED"
    ERRORED = "ERRORED"
    DROPPED = "DROPPED"


class Mode(StrEnum):
    """How a table's changes are captured."""

    WAL = "WAL"
    POLL = "POLL"
    TRIGGER = "TRIGGER"
    TRANSITIONING = "TRANSITIONING"


def mode_of(group: GroupConfig) -> Mode:
    """How the changes of a group's tables are captured."""
    return Mode.TRIGGER if group.triggers else Mode.POLL if group.polls else Mode.WAL


class GroupState(StrEnum):
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    ERRORED = "ERRORED"
    DISABLED = "DISABLED"


@dataclass(frozen=True)
class Transition:
    """A change of a table's state: its time, and the error, if any."""

    at: datetime
    before: TableState
    after: TableState
    error: str | None = None


class Retry(StrEnum):
    """What is retried after an error or a pause."""

    POSITION = "place"
    """read the table's position from the lake, and apply changes from there"""
    COPY = "copy"


@dataclass(frozen=True)
class Failure:
    """A failed attempt, as it is shown."""

    error: str | None
    remedy: str | None
    kind: str | None
    """the class of the error (`errors.Kind`)"""
    retry_at: datetime | None


@dataclass(frozen=True)
class AtSource:
    """What the last reading of the catalog says about a table; every state keeps it.

    - `refusal`: why nothing of it is captured; it is ERRORED, without retries, and copied when the refusal ends
    - `dropped_at`: the source table was dropped; the change log has all its changes when it has this position
    """

    refusal: Advice | None = None
    dropped_at: Lsn | None = None


@dataclass(frozen=True)
class _Live:
    """The data of every state but DROPPED."""

    copy_requested: bool = False
    """a copy is requested and has not begun; it begins as soon as a worker is free and nothing blocks it"""
    failures: int = 0
    """consecutive failures, which lengthen the next wait; a commit or catching up resets them"""
    source: AtSource = field(default=AtSource(), kw_only=True)


@dataclass(frozen=True)
class Arriving(_Live):
    """Another group still has the table; its changes are kept here until it is handed over.

    Set by the registry for a table that moves to this group. Stored: nothing; until it is taken over, the state store
    has the record of the other group, and that is shown. A restart finds the move in the desired state.
    Requests for a copy wait in the state store until the table is taken over.
    """

    state: ClassVar = TableState.PENDING


@dataclass(frozen=True)
class Pending(_Live):
    """Waits for a copy, or for its position from the lake.

    Set by the registry. Stored: the request for the copy.
    A restart copies it if a copy is requested, and otherwise reads its position from the lake.
    """

    state: ClassVar = TableState.PENDING
    cause: Failure | None = None
    """the failure that the copy will repair, shown until the copy is committed"""


@dataclass(frozen=True)
class Snapshot(_Live):
    """A copy is running; the lake is unchanged until it is committed.

    Set by the table work when a worker begins the copy. Stored: the request for the copy, until it is committed.
    A restart copies from the start: an unfinished copy is never visible. `copy_requested` requests one more copy.
    """

    state: ClassVar = TableState.SNAPSHOT
    upto: int = 0
    """the last manifest whose changes the copy has"""
    requested_at: datetime | None = None
    """time of the request that this copy serves; a later request stays"""
    cause: Failure | None = None
    """the failure that the copy will repair, shown until the copy is committed"""


@dataclass(frozen=True)
class CatchUp(_Live):
    """The lake has a position; changes that were captured when catching up began are being applied, or rows of
    partitions that moved are being exchanged.

    Set by the registry when it has the position from the lake (at a start, a retry, a resume, a hand-over), and by the
    table work when a copy is committed or partitions moved. Stored: the name. A restart reads the position from the
    lake and continues.
    """

    state: ClassVar = TableState.CATCHUP
    reaches: Lsn = ZERO
    """the position at which the table has caught up; ZERO: not determined yet"""


@dataclass(frozen=True)
class Streaming(_Live):
    """The table has caught up; changes are applied as they are captured.

    Set by the table work. Stored: the name. A restart reads the position from the lake and continues from CATCHUP.
    """

    state: ClassVar = TableState.STREAMING


@dataclass(frozen=True)
class Paused(_Live):
    """Changes are not applied; they wait in the change log.

    Set by the registry after `tables pause`, when no work is running. Stored: the name; the pause itself is desired
    state. A restart reads the position from the lake, as for any table, and pauses it again.
    `tables resume` copies it if `needs_copy` says so, and otherwise reads its position from the lake.
    """

    state: ClassVar = TableState.PAUSED
    retry: Retry = Retry.POSITION
    """what a resume does, unless a copy is requested"""
    only_copy_helps: bool = False
    """its captured changes are useless"""


@dataclass(frozen=True)
class Errored(_Live):
    """An attempt failed and is retried at `failure.retry_at`; other tables are not affected.

    Set by the work that failed. Stored: error, remedy, kind, number of failures and the time of the next attempt.
    A restart keeps the wait if the error is transient, and otherwise retries at once; `run --once` always does.
    """

    state: ClassVar = TableState.ERRORED
    failure: Failure = Failure(None, None, None, None)
    retry: Retry = Retry.POSITION
    only_copy_helps: bool = False
    """its captured changes are useless: the change log does not continue its lake table"""
    interrupted: bool = False
    """the first failure came when Spark died: it is retried as soon as Spark is available"""


@dataclass(frozen=True)
class Dropped:
    """The source table was dropped, and everything captured of it is applied. The lake table stays.

    Set by the registry. Stored: the name. A restart keeps it, because an oid is not reused. Only a source that was
    restored to a time before the DROP has the table again; then it is treated as PENDING.
    """

    state: ClassVar = TableState.DROPPED


LiveState = Arriving | Pending | Snapshot | CatchUp | Streaming | Paused | Errored
LifecycleState = LiveState | Dropped
Variant = type[LifecycleState]

VARIANTS: tuple[Variant, ...] = (Arriving, Pending, Snapshot, CatchUp, Streaming, Paused, Errored, Dropped)


def title(variant: Variant) -> str:
    """The name of a state in texts; it is shown and stored as its `TableState`."""
    return variant.__name__.upper()


class StoredState(Protocol):
    """A state as it is stored: a part of `TableRecord`."""

    @property
    def state(self) -> TableState: ...
    @property
    def error(self) -> str | None: ...
    @property
    def remedy(self) -> str | None: ...
    @property
    def kind(self) -> str | None: ...
    @property
    def retry_at(self) -> datetime | None: ...
    @property
    def failures(self) -> int: ...


def to_store(state: LifecycleState) -> dict[str, object]:
    """A state as fields of `TableRecord`."""
    shown = failure_of(state)
    return {
        "state": state.state,
        "error": shown and shown.error,
        "remedy": shown and shown.remedy,
        "kind": shown and shown.kind,
        "retry_at": shown and shown.retry_at,
        "failures": 0 if isinstance(state, Dropped) else state.failures,
    }


def restored(stored: StoredState, copy_requested: bool) -> LifecycleState:
    """The state of a table when a run begins. `copy_requested`: whether the state store has a request for a copy."""
    match stored.state:
        case TableState.CATCHUP:
            return CatchUp(copy_requested, stored.failures)
        case TableState.STREAMING:
            return Streaming(copy_requested)
        case TableState.PAUSED:
            return Paused(copy_requested)
        case TableState.ERRORED:
            # A failed copy is stored as its request; it waits for its time like any other retry.
            failure = Failure(stored.error, stored.remedy, stored.kind, stored.retry_at)
            retry = Retry.COPY if copy_requested else Retry.POSITION
            return Errored(failures=stored.failures, failure=failure, retry=retry)
        case TableState.PENDING | TableState.SNAPSHOT | TableState.DROPPED:
            return Pending(copy_requested, stored.failures)


def needs_copy(state: LifecycleState) -> bool:
    """Whether a copy is the next work on a table: the only such rule, for starts, retries and resumes.

    A copy is requested (`copy_requested`; the state store has it as `resync_wanted`)
    - for a table that is new in its group (`new_table_needs_copy`)
    - for a table that came from another group without a position to continue from
    - by `tables resync`
    - after a change of its columns, key or partitions that the lake table can't follow (`CopyNeeded`)
    - when it was missing in the publication, or the stream was opened without its publication
    - after the slot was lost, with `run --resync-on-gap`
    - when its copy was committed after the stream was lost
    - when the lake has no table for it

    and a copy is what is retried (`Retry.COPY`)
    - after a copy that failed, was blocked or was interrupted
    - after nothing of the table could be captured for some time

    If only a copy helps but none of this is true, the table waits for a request.
    """
    match state:
        case Snapshot():
            return True
        case Paused() | Errored():
            return state.copy_requested or state.retry is Retry.COPY
        case Dropped() | Arriving():
            return False
    return state.copy_requested


def may_be_copied(state: LifecycleState) -> bool:
    """Whether the source has the table, and its changes are captured."""
    return not isinstance(state, Dropped) and state.source == AtSource()


def is_drained(state: LifecycleState, waits: bool, logged: Lsn) -> bool:
    """Whether a dropped table has everything that was captured of it, or can never have it.

    `waits`: changes wait to be applied; `logged`: the position of the change log.
    """
    if isinstance(state, Dropped) or state.source.dropped_at is None:
        return False
    if isinstance(state, CatchUp | Streaming) and not changes_are_useless(state):
        return not waits and logged >= state.source.dropped_at
    return True


def new_table_needs_copy(replaces_dropped: bool, may_replace: bool) -> bool:
    """Whether a table that is new in its group is copied without a request.

    `replaces_dropped`: its lake table has the rows of a dropped table, and `may_replace` allows replacing them
    (`on_recreate`).
    """
    return may_replace or not replaces_dropped


def changes_are_useless(state: LifecycleState) -> bool:
    """Whether captured changes that are not applied are useless, because only a copy helps."""
    return needs_copy(state) or (isinstance(state, Paused | Errored) and state.only_copy_helps)


def failure_of(state: LifecycleState) -> Failure | None:
    """The failure to show."""
    match state:
        case Errored():
            return state.failure
        case Pending() | Snapshot():
            return state.cause
    return None


def retry_due(state: LifecycleState, now: datetime) -> bool:
    """Whether the time of the next attempt has come."""
    if not isinstance(state, Errored) or state.source.refusal is not None:
        return False
    return state.failure.retry_at is not None and state.failure.retry_at <= now


def still_waits(state: LifecycleState, now: datetime) -> bool:
    """Whether a new run waits for the next attempt of an earlier one: only for a transient error."""
    if not isinstance(state, Errored) or state.failure.kind != ErrorKind.TRANSIENT:
        return False
    return state.failure.retry_at is not None and state.failure.retry_at > now
