"""The state of a table in its lifecycle, and its record for the state store."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from datetime import datetime
from typing import Concatenate, ParamSpec

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import Advice
from ..position import Lsn
from ..schema import TableSchema
from ..state import TableRecord, events, lifecycle
from ..state.lifecycle import Arriving, Dropped, LifecycleState, Snapshot, TableState, Transition

P = ParamSpec("P")


@dataclass
class TableLife:
    schema: TableSchema
    """its schema in the catalog"""
    record: TableRecord
    """its record for the state store; fields of its state follow from `life`"""
    copy_requested_at: datetime | None = None
    """time of the last request for a copy in the state store"""
    arriving: InitVar[bool] = False
    """another group still has it"""
    clock: Clock = SYSTEM_CLOCK
    jitter: Callable[[], float] = random.random
    """from 0 to 1, for the spread of retries"""
    life: LifecycleState = field(init=False)
    """its state; changed only by the events of `state/events.py`"""
    dirty: bool = field(default=True, init=False)
    """the state store has an older record"""
    transitions: list[Transition] = field(default_factory=list, init=False)
    """those that the state store lacks"""

    def __post_init__(self, arriving: bool) -> None:
        requested = self.copy_requested_at is not None
        self.life = Arriving() if arriving else lifecycle.restored(self.record, requested)

    @property
    def name(self) -> str:
        return str(self.schema.id)

    @property
    def state(self) -> TableState:
        return self.life.state

    @property
    def resync(self) -> bool:
        """Whether a copy is requested that has not begun."""
        return not isinstance(self.life, Dropped) and self.life.copy_requested

    @property
    def needs_copy(self) -> bool:
        """Whether a copy is the next work on it."""
        return lifecycle.needs_copy(self.life)

    @property
    def only_copy_helps(self) -> bool:
        """Whether captured changes are useless to it."""
        return lifecycle.changes_are_useless(self.life)

    @property
    def moving_in(self) -> bool:
        """Whether another group still has it; its changes are kept here until it is handed over."""
        return isinstance(self.life, Arriving)

    @property
    def refusal(self) -> Advice | None:
        """Why nothing of it is captured."""
        return None if isinstance(self.life, Dropped) else self.life.source.refusal

    @property
    def dropped_at(self) -> Lsn | None:
        """The source table was dropped; all its changes are captured when the log has this position."""
        return None if isinstance(self.life, Dropped) else self.life.source.dropped_at

    @property
    def copy_may_begin(self) -> bool:
        """Whether a copy is requested, and the source has the table."""
        return self.resync and lifecycle.may_be_copied(self.life)

    @property
    def copying_for(self) -> datetime | None:
        """The time of the request that the running copy serves."""
        return self.life.requested_at if isinstance(self.life, Snapshot) else None

    @property
    def held(self) -> int | None:
        """During a copy: the last manifest that the copy will include."""
        return self.life.upto if isinstance(self.life, Snapshot) else None

    @property
    def active(self) -> bool:
        return self.state in (TableState.CATCHUP, TableState.STREAMING)

    def _on(
        self, event: Callable[Concatenate[LifecycleState, P], LifecycleState], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Apply an event to its state."""
        try:
            self.life = event(self.life, *args, **kwargs)
        except events.IllegalTransition as illegal:
            raise events.IllegalTransition(f"{self.name}: {illegal}") from None
        before, failed = self.record.state, self.record.failures
        self._update(**lifecycle.to_store(self.life))
        if self.state is not before or (self.state is TableState.ERRORED and self.record.failures != failed):
            error = self.record.error if self.state is TableState.ERRORED else None
            self.transitions.append(Transition(self.clock.now(), before, self.state, error))

    def _update(self, **changes: object) -> None:
        record = replace(self.record, **changes)  # type: ignore[arg-type]  # fields are checked by the dataclass
        if record != self.record:
            self.record, self.dirty = record, True

    def take_unsaved(self) -> list[Transition]:
        """Its record is about to be saved, with these transitions."""
        transitions, self.transitions, self.dirty = self.transitions, [], False
        return transitions

    def not_saved(self, transitions: Sequence[Transition]) -> None:
        """The state store could not be written."""
        self.dirty = True
        self.transitions[:0] = transitions
