"""Events of a table: each leads from one state to another, or is refused. Pure.

An event declares its transitions and its cause; docs/lifecycle.md is generated from that. Any other use raises
`IllegalTransition`. Time and randomness are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from .. import retry
from ..errors import Advice, ErrorKind
from ..position import Lsn
from .lifecycle import (
    VARIANTS,
    Arriving,
    CatchUp,
    Dropped,
    Errored,
    Failure,
    LifecycleState,
    LiveState,
    Paused,
    Pending,
    Retry,
    Snapshot,
    Streaming,
    Variant,
    failure_of,
    may_be_copied,
    needs_copy,
    title,
)

P = ParamSpec("P")
S = TypeVar("S", bound=LiveState)

_AT_REST: tuple[Variant, ...] = (Pending, CatchUp, Streaming, Paused, Errored)
"""the states in which no copy is running"""
_OWN: tuple[Variant, ...] = (*_AT_REST, Snapshot)
_LIVE: tuple[Variant, ...] = (Arriving, *_OWN)


class IllegalTransition(AssertionError):
    """An event of a table whose state does not allow it: an error in the code."""


@dataclass(frozen=True)
class EventRule:
    """The description of an event."""

    name: str
    meaning: str
    by: str
    """its cause"""
    moves: Mapping[Variant, Variant]


EVENTS: list[EventRule] = []


def _event(
    by: str, moves: Mapping[Variant, Variant]
) -> Callable[[Callable[Concatenate[S, P], LifecycleState]], Callable[Concatenate[LifecycleState, P], LifecycleState]]:
    """Register an event; the decorated function refuses states that are not in `moves`, and checks its result."""

    def register(
        function: Callable[Concatenate[S, P], LifecycleState],
    ) -> Callable[Concatenate[LifecycleState, P], LifecycleState]:
        EVENTS.append(EventRule(function.__name__, (function.__doc__ or "").strip(), by, moves))

        @wraps(function)
        def checked(state: LifecycleState, /, *args: P.args, **kwargs: P.kwargs) -> LifecycleState:
            before = type(state)
            if before not in moves:
                raise IllegalTransition(f"{function.__name__} can't happen to a table that is {title(before)}")
            after = function(cast("S", state), *args, **kwargs)
            if type(after) is not moves[before]:
                raise IllegalTransition(f"{function.__name__}: {title(before)} can't become {title(type(after))}")
            return after

        return checked

    return register


def _to(target: Variant, *sources: Variant) -> Mapping[Variant, Variant]:
    return dict.fromkeys(sources, target)


def _stays(*states: Variant) -> Mapping[Variant, Variant]:
    return {state: state for state in states}


@dataclass(frozen=True)
class FailedAttempt:
    """A failure of work on a table, and its time."""

    advice: Advice
    at: datetime
    jitter: float = 0.0
    """from 0 to 1; shortens the wait, so that tables that failed together are not all retried together"""
    at_once: bool = False
    """`run --once` does not wait"""

    def after(self, failures: int) -> Failure:
        """The failure, as the n-th in a row."""
        advice = self.advice
        # Permanent errors are retried from time to time; space on a disk may become free at any moment.
        permanent = advice.kind is ErrorKind.CONFIGURATION
        seconds = retry.TABLE.most if permanent else retry.TABLE.after(failures, self.jitter)
        if self.at_once and advice.kind is ErrorKind.TRANSIENT:
            seconds = 0.0
        return Failure(advice.message, advice.remedy, advice.kind.value, self.at + timedelta(seconds=seconds))


def _errored(
    state: LiveState, attempt: FailedAttempt, what: Retry, copy_requested: bool, only_copy_helps: bool | None = None
) -> Errored:
    """`what`: what is retried. `only_copy_helps`: None: unchanged."""
    failures = state.failures + 1
    return Errored(
        copy_requested=copy_requested,
        failures=failures,
        failure=attempt.after(failures),
        retry=what,
        only_copy_helps=_only_copy_helps(state) if only_copy_helps is None else only_copy_helps,
        interrupted=attempt.advice.interrupted and failures == 1,
        source=state.source,
    )


# ---- copies


@_event("`tables resync`; the reconciler and the table work, as `needs_copy` lists", _stays(*_OWN))
def copy_requested(state: LiveState) -> LifecycleState:
    """a copy is requested; running work ends first"""
    return replace(state, copy_requested=True)


@_event("registry: at a start, a retry or a resume, where `needs_copy` says so", _to(Pending, *_AT_REST))
def copy_due(state: LiveState) -> LifecycleState:
    """a copy is the next work on it"""
    return Pending(True, state.failures, source=state.source)


@_event("table work: a worker is free for a requested copy", _to(Pending, *_AT_REST))
def copy_accepted(state: LiveState) -> LifecycleState:
    """the requested copy replaces whatever else it waits for"""
    if not may_be_copied(state):
        raise IllegalTransition("a table that is refused or dropped at the source can't be copied")
    return Pending(True, state.failures, failure_of(state), source=state.source)


@_event("table work, right after `copy_accepted`", _to(Snapshot, Pending))
def copy_began(state: Pending, upto: int, requested_at: datetime | None) -> LifecycleState:
    """a copy begins; it has every change of the manifests up to `upto`"""
    return Snapshot(False, state.failures, upto, requested_at, state.cause, source=state.source)


@_event("table work: the worker's result", _to(CatchUp, Snapshot))
def copy_committed(state: Snapshot) -> LifecycleState:
    """readers see the copy"""
    return CatchUp(state.copy_requested, source=state.source)


@_event("table work: a stop interrupted the copy", _to(Pending, Snapshot))
def copy_broken_off(state: Snapshot) -> LifecycleState:
    """the copy had no effect"""
    return Pending(True, state.failures, state.cause, source=state.source)


@_event("table work: another table has the name of the lake table", _to(Errored, *_AT_REST))
def copy_blocked(state: LiveState, attempt: FailedAttempt) -> LifecycleState:
    """the requested copy can't begin and is retried"""
    return _errored(state, attempt, Retry.COPY, copy_requested=False)


# ---- changes


@_event("table work: the worker's result", _stays(CatchUp, Streaming))
def batch_committed(state: CatchUp | Streaming) -> LifecycleState:
    """changes are applied"""
    return replace(state, failures=0)


@_event("table work: at its first check of the table", _stays(CatchUp))
def goal_set(state: CatchUp, position: Lsn) -> LifecycleState:
    """it has caught up at this position; a busy table always has changes waiting"""
    return replace(state, reaches=position)


@_event("table work", _to(Streaming, CatchUp))
def caught_up(state: CatchUp) -> LifecycleState:
    """it has everything that was captured when it began to catch up"""
    return Streaming(state.copy_requested, source=state.source)


@_event("table work: a look at the catalog", _to(CatchUp, CatchUp, Streaming))
def partitions_moved(state: CatchUp | Streaming) -> LifecycleState:
    """the lake table lacks rows of partitions that moved without changes in the stream; they are to be exchanged"""
    return state if isinstance(state, CatchUp) else CatchUp(state.copy_requested, state.failures, source=state.source)


# ---- position in the lake


@_event("registry: at a start, a retry or a resume; a table from another group", _to(CatchUp, *_AT_REST))
def found_in_lake(state: LiveState) -> LifecycleState:
    """changes are applied from the lake's position on"""
    _require_no_copy(state)
    return CatchUp(state.copy_requested, state.failures, source=state.source)


@_event("registry: at a start, a retry or a resume", _to(Pending, *_AT_REST))
def not_found_in_lake(state: LiveState) -> LifecycleState:
    """the lake has no table for it, so it is copied"""
    _require_no_copy(state)
    return Pending(True, state.failures, source=state.source)


@_event("registry: at a start, a retry or a resume", _to(Errored, *_AT_REST))
def position_unusable(state: LiveState, attempt: FailedAttempt, only_copy_helps: bool) -> LifecycleState:
    """the lake has no position for it, or one that the change log does not continue"""
    _require_no_copy(state)
    return _errored(state, attempt, Retry.POSITION, False, only_copy_helps)


# ---- errors


@_event("any work that fails", _to(Errored, *_OWN))
def failed(state: LiveState, attempt: FailedAttempt) -> LifecycleState:
    """work on it failed; it is retried later"""
    what = Retry.COPY if needs_copy(state) else Retry.POSITION
    return _errored(state, attempt, what, state.copy_requested)


@_event("registry: no work is running on a table with a refusal", _to(Errored, *_AT_REST))
def refused(state: LiveState, attempt: FailedAttempt) -> LifecycleState:
    """nothing of it is captured; it is copied when the reason is gone"""
    if state.source.refusal != attempt.advice:
        raise IllegalTransition("a table is refused for the reason that was noted")
    return _errored(state, attempt, Retry.COPY, copy_requested=False)


@_event("`tables resume`; the registry, when the table can be captured again", _stays(Errored))
def retry_requested(state: Errored, now: datetime) -> LifecycleState:
    """it is retried at once"""
    return replace(state, failure=replace(state.failure, retry_at=now))


@_event("table work", _stays(Errored))
def spark_returned(state: Errored, now: datetime) -> LifecycleState:
    """work that failed when Spark died is retried at once"""
    return replace(state, interrupted=False, failure=replace(state.failure, retry_at=now))


# ---- commands and the source


@_event("`tables pause`, through the registry", _to(Paused, Pending, CatchUp, Streaming, Errored))
def paused(state: LiveState) -> LifecycleState:
    """nothing is applied until `tables resume`"""
    what = state.retry if isinstance(state, Errored) else Retry.POSITION
    useless = _only_copy_helps(state)
    return Paused(state.copy_requested, retry=what, only_copy_helps=useless, source=state.source)


# ---- what is seen at the source


@_event("registry: the table can't be published, or must not be", _stays(*_LIVE))
def refusal_noted(state: LiveState, refusal: Advice) -> LifecycleState:
    """nothing of it is captured; running work ends first"""
    return replace(state, source=replace(state.source, refusal=refusal))


@_event("registry: the table is published", _stays(*_LIVE))
def refusal_ended(state: LiveState) -> LifecycleState:
    """it is captured again"""
    return replace(state, source=replace(state.source, refusal=None))


@_event("registry: DROP TABLE at the source", _stays(*_LIVE))
def dropped_at_source(state: LiveState, position: Lsn) -> LifecycleState:
    """the source table does not exist any more; what was captured of it up to `position` is applied"""
    return replace(state, source=replace(state.source, dropped_at=position))


@_event("registry: everything captured before the DROP is applied, or can never be", _to(Dropped, *_LIVE))
def drop_completed(state: LiveState) -> LifecycleState:
    """only its record and its lake table stay"""
    if state.source.dropped_at is None:
        raise IllegalTransition("a table that exists at the source can't end")
    return Dropped()


# ---- moves between groups


@_event("hand-over: the state store gives the table to this group", _to(Pending, Arriving))
def taken_over(state: Arriving) -> LifecycleState:
    """it belongs to this group; its position, or a request for a copy, comes next"""
    return Pending(source=state.source)


def _require_no_copy(state: LiveState) -> None:
    """A table that needs a copy must not get its position from the lake: the copy would be forgotten."""
    if needs_copy(state):
        raise IllegalTransition("a table that needs a copy can't continue from what the lake has")


def _only_copy_helps(state: LiveState) -> bool:
    return isinstance(state, Paused | Errored) and state.only_copy_helps


TRANSITIONS: Mapping[Variant, frozenset[Variant]] = {
    state: frozenset(event.moves[state] for event in EVENTS if state in event.moves) for state in VARIANTS
}
"""the states that each state can become by one event"""


def may_become(now: Variant, then: Variant) -> bool:
    return now is then or then in TRANSITIONS[now]
