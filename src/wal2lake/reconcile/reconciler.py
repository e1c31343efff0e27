"""Brings a group to its desired state: looked at now and then, and at once when a command has asked.

The source and the state store are asked beside the loop; what follows from it is done by the loop itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar

from ..errors import SourceAltered, SourceBusy
from ..position import Lsn
from ..source.locking import Patience
from ..state import TableSpec
from .desired_state import DesiredState, DesiredStateReader
from .handover import Handovers
from .registry import TableRegistry
from .schema_changes import SchemaChanges
from .table_runtime import TableRuntime

log = logging.getLogger(__name__)
T = TypeVar("T")

RELOOK_SECONDS = 10.0
"""how often the catalog is looked at for new, dropped and altered tables"""
MOVING_SECONDS = 0.5
"""how often while a table is on its way from or to another group"""


class Background(Protocol):
    """Runs what may wait for a disk or a server beside the loop of a group."""

    def begin(self, what: str, work: Callable[[], T], then: Callable[[T], object] = ...) -> bool:
        """Start `work` unless the same is running already, and call `then` in the loop; whether it was started."""


class Reconciler:
    def __init__(
        self, desired_state: DesiredStateReader, tables: TableRegistry, handovers: Handovers,
        schema_changes: SchemaChanges, background: Background,
        drop_lake: Callable[[TableSpec], object],
    ) -> None:  # fmt: skip
        self._desired_state, self._tables, self._handovers, self._background = (
            desired_state,
            tables,
            handovers,
            background,
        )
        self._schema_changes, self._drop_lake = schema_changes, drop_lake
        self._now = threading.Event()
        self._looked = 0.0

    def first_look(self, patience: Patience) -> DesiredState:
        """The desired state when a run begins; a name that means nothing is an error then.

        Tables that are being altered are waited for, as a new slot waits for open transactions.
        """
        while True:
            self._looked = monotonic()
            try:
                return self._desired_state.look(strict=True)
            except (SourceBusy, SourceAltered) as error:
                if patience.stopped():
                    raise
                log.warning("%s", error)
                patience.told(error)

    def look_now(self) -> None:
        """Something was asked for. From any thread."""
        self._now.set()

    def relook(self) -> None:
        every = MOVING_SECONDS if self._handovers.under_way else RELOOK_SECONDS
        if not self._now.is_set() and monotonic() - self._looked < every:
            return
        if self._background.begin("looking at the catalog", self._look, self.reconcile):
            self._now.clear()
            self._looked = monotonic()

    def _look(self) -> DesiredState:
        wanted = self._desired_state.look()
        self._handovers.look(wanted)
        return wanted

    def reconcile(self, wanted: DesiredState) -> None:
        self._tables.reconcile(wanted)
        self._schema_changes.looked(wanted, self._tables)
        for spec in wanted.specs.values():
            if spec.drop_lake and spec.group == self._tables.group and self._tables.get(spec.oid) is None:
                self._background.begin(f"dropping the lake table of {spec.id}", partial(self._drop_lake, spec))

    def move(self, logged: Lsn) -> None:
        """Tables that come from other groups or go to them."""
        for table in self._handovers.leaving(logged):
            self._background.begin(
                f"handing over {table.name}", partial(self._handovers.hand_over, table), self._handed_over
            )
        for table, number in self._handovers.arrived():
            work = partial(self._handovers.take_over, table, number)
            self._background.begin(f"taking over {table.name}", work, self._handovers.taken)

    def _handed_over(self, table: TableRuntime) -> None:
        self._tables.gone(table)
        self.look_now()
