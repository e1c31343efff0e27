"""What is wanted of a group becomes what is done: looked at now and then, and at once when a command has asked.

The source and the state store are asked beside the loop; what follows from it is done by the loop itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

from ..errors import SourceAltered, SourceBusy
from ..position import Lsn
from ..source.locking import Patience
from .catalogue import Catalogue, Wanted
from .chores import Chores
from .evolving import Evolving
from .moves import Moves
from .roster import Roster
from .store import TableWish
from .tables import TableRun

log = logging.getLogger(__name__)

RELOOK_SECONDS = 10.0
"""how often the catalog is looked at for new, dropped and altered tables"""
MOVING_SECONDS = 0.5
"""how often while a table is on its way from or to another group"""


class Fulfilment:
    def __init__(
        self, catalogue: Catalogue, tables: Roster, moves: Moves, evolving: Evolving, chores: Chores,
        drop_lake: Callable[[TableWish], object],
    ) -> None:  # fmt: skip
        self._catalogue, self._tables, self._moves, self._chores = catalogue, tables, moves, chores
        self._evolving, self._drop_lake = evolving, drop_lake
        self._now = threading.Event()
        self._looked = 0.0

    def first_look(self, patience: Patience) -> Wanted:
        """What is wanted when a run begins; a name that means nothing is an error then.

        Tables that are being altered are waited for, as a new slot waits for open transactions.
        """
        while True:
            self._looked = monotonic()
            try:
                return self._catalogue.look(strict=True)
            except (SourceBusy, SourceAltered) as error:
                if patience.stopped():
                    raise
                log.warning("%s", error)
                patience.told(error)

    def look_now(self) -> None:
        """Something was asked for. From any thread."""
        self._now.set()

    def relook(self) -> None:
        every = MOVING_SECONDS if self._moves.under_way else RELOOK_SECONDS
        if not self._now.is_set() and monotonic() - self._looked < every:
            return
        if self._chores.begin("looking at the catalog", self._look, self.adopt):
            self._now.clear()
            self._looked = monotonic()

    def _look(self) -> Wanted:
        wanted = self._catalogue.look()
        self._moves.look(wanted)
        return wanted

    def adopt(self, wanted: Wanted) -> None:
        self._tables.adopt(wanted)
        self._evolving.looked(wanted, self._tables)
        for wish in wanted.wishes.values():
            if wish.drop_lake and wish.group == self._tables.group and self._tables.get(wish.oid) is None:
                self._chores.begin(f"dropping the lake table of {wish.id}", partial(self._drop_lake, wish))

    def move(self, logged: Lsn) -> None:
        """Tables that come from other groups or go to them."""
        for table in self._moves.leaving(logged):
            self._chores.begin(f"handing over {table.name}", partial(self._moves.hand_over, table), self._handed_over)
        for table, number in self._moves.arrived():
            work = partial(self._moves.take_over, table, number)
            self._chores.begin(f"taking over {table.name}", work, self._moves.taken)

    def _handed_over(self, table: TableRun) -> None:
        self._tables.gone(table)
        self.look_now()
