"""The life of a table: one pure table of legal transitions, and the backoff after an error.

    PENDING ──► SNAPSHOT ──► CATCHUP ──► STREAMING
       ▲            │            │            │
       └── resync ──┴────────────┴────────────┤      ERRORED and PAUSED can be entered from any state;
                                              ▼      what is applied is in the lake, so leaving them loses nothing

| state | who sets it | what a restart does |
|---|---|---|
| PENDING | the scheduler, for a table without a copy; `tables resync` | copies it |
| SNAPSHOT | the scheduler, when the copy begins | copies it from the start: an unfinished copy was never visible |
| CATCHUP | the scheduler, when the copy is committed or an error is retried | reads the lake's position, goes on |
| STREAMING | the scheduler, when nothing that was captured waits any more | reads the lake's position, goes on |
| PAUSED | `tables pause` | stays |
| ERRORED | whoever met the error, with reason, remedy and retry time | tries again, from the change log |
"""

from __future__ import annotations

from enum import StrEnum


class TableState(StrEnum):
    PENDING = "PENDING"
    SNAPSHOT = "SNAPSHOT"
    CATCHUP = "CATCHUP"
    STREAMING = "STREAMING"
    PAUSED = "PAUSED"
    ERRORED = "ERRORED"


class Mode(StrEnum):
    """How a table's changes are captured."""

    WAL = "WAL"
    POLL = "POLL"
    TRIGGER = "TRIGGER"
    TRANSITIONING = "TRANSITIONING"


class GroupState(StrEnum):
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    ERRORED = "ERRORED"


_S = TableState
TRANSITIONS: dict[TableState, frozenset[TableState]] = {
    _S.PENDING: frozenset({_S.SNAPSHOT, _S.CATCHUP, _S.PAUSED, _S.ERRORED}),
    _S.SNAPSHOT: frozenset({_S.PENDING, _S.CATCHUP, _S.PAUSED, _S.ERRORED}),
    _S.CATCHUP: frozenset({_S.PENDING, _S.STREAMING, _S.PAUSED, _S.ERRORED}),
    _S.STREAMING: frozenset({_S.PENDING, _S.CATCHUP, _S.PAUSED, _S.ERRORED}),
    _S.PAUSED: frozenset({_S.PENDING, _S.CATCHUP, _S.ERRORED}),
    _S.ERRORED: frozenset({_S.PENDING, _S.CATCHUP, _S.PAUSED, _S.ERRORED}),
}


def may_become(now: TableState, then: TableState) -> bool:
    return now is then or then in TRANSITIONS[now]


BACKOFF_FIRST = 30.0
BACKOFF_MOST = 32 * 60.0


def backoff(failures: int) -> float:
    """Seconds to wait after the n-th failure in a row (n from 1): 30 s, doubled each time, at most 32 minutes."""
    if failures < 1:
        raise ValueError("there is nothing to wait for before the first failure")
    return float(min(BACKOFF_FIRST * 2.0 ** min(failures - 1, 16), BACKOFF_MOST))
