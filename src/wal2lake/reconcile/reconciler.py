"""Brings a group to its desired state, at intervals, and at once after a command.

The source and the state store are read in the background; the loop applies the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from ..errors import SourceAltered, SourceBusy
from ..executor import Executor
from ..position import Lsn
from ..source.sessions import Patience
from ..state import TableSpec
from .desired_state import DesiredState, DesiredStateReader
from .handover import Handovers
from .registry import TableRegistry
from .schema_changes import SchemaChanges
from .table_runtime import TableRuntime

log = logging.getLogger(__name__)
T = TypeVar("T")

REFRESH_SECONDS = 10.0
"""seconds between readings of the catalog, for new, dropped and altered tables"""
MOVING_SECONDS = 0.5
"""the same while a table moves from or to another group"""


class Background(Protocol):
    """Runs work that may wait for a disk or a server in the background of a group's loop."""

    def begin(self, what: str, work: Callable[[], T], then: Callable[[T], object] = ...) -> bool:
        """Start `work` unless the same is running or has just failed, and call `then` in the loop.

        Returns whether it was started.
        """


class Reconciler:
    def __init__(
        self, desired_state: DesiredStateReader, tables: TableRegistry, handovers: Handovers,
        schema_changes: SchemaChanges, background: Background,
        drop_lake: Callable[[TableSpec], object], executor: Executor,
    ) -> None:  # fmt: skip
        self._desired_state, self._tables, self._handovers, self._background = (
            desired_state,
            tables,
            handovers,
            background,
        )
        self._schema_changes, self._drop_lake = schema_changes, drop_lake
        self._now, self._clock = executor.event(), executor.clock
        self._read_at = 0.0

    def read_initial(self, patience: Patience) -> DesiredState:
        """The desired state when a run begins; here a name without a table is an error.

        Tables that are being altered are waited for, as a new slot waits for open transactions.
        """
        while True:
            self._read_at = self._clock.monotonic()
            try:
                desired = self._desired_state.read(strict=True)
                self._handovers.note(desired)
                return desired
            except (SourceBusy, SourceAltered) as error:
                if patience.stopped():
                    raise
                log.warning("%s", error)
                patience.on_wait(error)

    @property
    def moving(self) -> bool:
        """Whether a move of a table proceeds, as far as is known."""
        return self._handovers.advancing

    def request_refresh(self) -> None:
        """A command was given. From any thread."""
        self._now.set()

    def refresh(self) -> None:
        every = MOVING_SECONDS if self._handovers.under_way else REFRESH_SECONDS
        if not self._now.is_set() and self._clock.monotonic() - self._read_at < every:
            return
        if self._background.begin("reading the catalog", self._read, self.reconcile):
            self._now.clear()
            self._read_at = self._clock.monotonic()

    def _read(self) -> DesiredState:
        desired = self._desired_state.read()
        self._handovers.set_handover_positions(desired)
        return desired

    def reconcile(self, desired: DesiredState) -> None:
        self._tables.reconcile(desired)
        self._schema_changes.note_catalog(desired, self._tables)
        for spec in desired.specs.values():
            if spec.drop_lake and spec.group == self._tables.group and self._tables.get(spec.oid) is None:
                self._background.begin(f"dropping the lake table of {spec.id}", partial(self._drop_lake, spec))

    def move(self, logged: Lsn) -> None:
        """Start work on tables that move from or to other groups."""
        for table in self._handovers.outgoing(logged):
            self._background.begin(
                f"handing over {table.name}", partial(self._handovers.hand_over, table), self._handed_over
            )
        for table, number in self._handovers.incoming():
            work = partial(self._handovers.take_over, table, number)
            self._background.begin(f"taking over {table.name}", work, self._handovers.taken)

    def _handed_over(self, table: TableRuntime) -> None:
        self._tables.handed_off(table)
        self.request_refresh()
