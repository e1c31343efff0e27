"""The lifecycle of a table: one pure table of legal transitions.

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
| PAUSED | the scheduler, as `tables pause` asks; ended by `tables resume` | stays |
| ERRORED | whoever met the error, with reason, remedy and retry time | tries again, from the change log |
| DROPPED | the scheduler, when the source table is gone and all that was captured of it is applied | stays |
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


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


class GroupState(StrEnum):
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    ERRORED = "ERRORED"
    DISABLED = "DISABLED"


@dataclass(frozen=True)
class Transition:
    """A table has become something else: when, and the error if there was one."""

    at: datetime
    before: TableState
    after: TableState
    error: str | None = None


_S = TableState
TRANSITIONS: dict[TableState, frozenset[TableState]] = {
    _S.PENDING: frozenset({_S.SNAPSHOT, _S.CATCHUP, _S.PAUSED, _S.ERRORED, _S.DROPPED}),
    _S.SNAPSHOT: frozenset({_S.PENDING, _S.CATCHUP, _S.PAUSED, _S.ERRORED, _S.DROPPED}),
    _S.CATCHUP: frozenset({_S.PENDING, _S.STREAMING, _S.PAUSED, _S.ERRORED, _S.DROPPED}),
    _S.STREAMING: frozenset({_S.PENDING, _S.CATCHUP, _S.PAUSED, _S.ERRORED, _S.DROPPED}),
    _S.PAUSED: frozenset({_S.PENDING, _S.CATCHUP, _S.ERRORED, _S.DROPPED}),
    _S.ERRORED: frozenset({_S.PENDING, _S.CATCHUP, _S.PAUSED, _S.ERRORED, _S.DROPPED}),
    # An oid never comes back: a table of the same name is another one.
    _S.DROPPED: frozenset(),
}


def may_become(now: TableState, then: TableState) -> bool:
    return now is then or then in TRANSITIONS[now]
