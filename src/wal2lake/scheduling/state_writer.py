"""Writes changes of a group and its tables into the state store, at most once a second.

It runs in the background. If the state store is unavailable, the mirror continues, and changes are written later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..changelog import Witness
from ..clock import Clock
from ..errors import advise
from ..position import Lsn
from ..reconcile import TableRegistry, Unsaved
from ..state import GroupRecord, StateStore
from ..state.lifecycle import GroupState
from .background import BackgroundTasks

log = logging.getLogger(__name__)

SAVE_SECONDS = 1.0
IDLE_SAVE_SECONDS = 30.0


class StateWriter:
    def __init__(
        self,
        group: str,
        tables: TableRegistry,
        store: StateStore,
        background: BackgroundTasks,
        clock: Clock,
        witness: Witness | None = None,
    ) -> None:
        """`witness`: of positions that were written, if the store is in the source database."""
        self._tables, self._store, self._background, self._witness = tables, store, background, witness
        self._clock = clock
        self._record = GroupRecord(group, GroupState.STARTING, "", "wal")
        self._dirty = False
        self._saved = 0.0

    def note(self, **changes: object) -> None:
        """Change the record of the group; it is written later."""
        record = replace(self._record, **changes)  # type: ignore[arg-type]  # fields are checked by the dataclass
        if record != self._record:
            self._record, self._dirty = record, True

    def save(self, logged: Lsn) -> None:
        """Write changes if it is time; tables and position are of one moment."""
        elapsed = self._clock.monotonic() - self._saved
        dirty = elapsed > SAVE_SECONDS and (self._dirty or self._tables.dirty)
        if not dirty and elapsed <= IDLE_SAVE_SECONDS:
            return
        self._note_logged(logged)
        tables, group = self._take()
        write, then = partial(self._write, tables, group), partial(self._written, tables)
        if not self._background.begin("writing the state store", write, then):
            self._written(tables, (tables, group))
        else:
            self._saved = self._clock.monotonic()

    def save_now(self, logged: Lsn) -> None:
        self._note_logged(logged)
        tables, group = self._take()
        self._written(tables, self._write(tables, group))

    def _note_logged(self, logged: Lsn) -> None:
        if logged:
            self.note(logged_lsn=logged)

    def _take(self) -> tuple[Sequence[Unsaved], GroupRecord | None]:
        group = self._record if self._dirty else None
        self._dirty = False
        return self._tables.unsaved(), group

    def _write(
        self, tables: Sequence[Unsaved], group: GroupRecord | None
    ) -> tuple[Sequence[Unsaved], GroupRecord | None]:
        """Write records; return those that could not be written."""
        try:
            self._store.save_tables(each.record for each in tables)
            self._store.add_history([entry for each in tables for entry in each.history])
            tables = ()
            if group is not None:
                # Last, so that a group's position is never ahead of its tables.
                self._write_group(group)
        except Exception as error:
            # Includes a full disk: written positions are also recorded in a file.
            log.warning("the state store could not be written: %s", advise(error).message)
            log.debug("the cause", exc_info=True)
            return tables, group
        return (), None

    def _write_group(self, group: GroupRecord) -> None:
        witness, logged = self._witness, group.logged_lsn
        if witness is None or logged is None:
            self._store.save_group(group)
            return
        witness.storing(logged)
        self._store.save_group(group)
        witness.has_stored(logged)

    def _written(self, taken: Sequence[Unsaved], left: tuple[Sequence[Unsaved], GroupRecord | None]) -> None:
        tables, group = left
        if not tables:
            self._tables.saved(taken)
        self._tables.not_saved(tables)
        self._dirty |= group is not None
