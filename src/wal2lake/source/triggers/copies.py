"""Snapshots for copies beside triggers: what one sees is drained by itself, so that its position is the drain's.

    copy: position P, snapshot S exported, asks ──► stream: drains what S sees as position P, makes it durable, grants

A drain that came between the two is newer than S; then the copy asks again with another snapshot.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from ...errors import SourceBusy
from ..copies.session_snapshot import SessionSnapshot, SnapshotServer
from ..model import ExportedSnapshot
from ..sessions.locking import Patience
from .contract import DrainRequests

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
REPORT_SECONDS = 10.0


def take(server: SnapshotServer) -> SessionSnapshot:
    """A snapshot that a new stream begins after: what it sees need not be drained."""
    # Who becomes visible between the two is at a later position and in the snapshot: nothing is below it unseen.
    server.mark()
    position = server.written()
    holder = server.export()
    return SessionSnapshot(ExportedSnapshot(holder.name, position, token=holder.seen), holder)


def agreed(server: SnapshotServer, requests: DrainRequests, patience: Patience) -> SessionSnapshot:
    """A snapshot whose drain has become durable. Raises SourceBusy if that is to stop."""
    while True:
        taken = take(server)
        try:
            if _granted(server, requests, taken.snapshot, patience):
                return taken
        except BaseException:
            taken.close()
            raise
        taken.close()


def _granted(
    server: SnapshotServer, requests: DrainRequests, snapshot: ExportedSnapshot, patience: Patience
) -> bool:  # fmt: skip
    number = secrets.token_hex(8)
    _wait(server, lambda: requests.ask(number, snapshot), patience)
    answer: list[bool] = []

    def answered() -> bool:
        found = requests.answer()
        if found is None:
            raise SourceBusy(operation="asking for", object="a drain", cause="the triggers were removed")
        if found.asked != number:
            # It was answered, and another copy asked before the answer was read.
            answer[:] = [False]
        elif found.answered == number:
            answer[:] = [found.granted]
        return bool(answer)

    try:
        _wait(server, answered, patience)
    finally:
        requests.withdraw(number)
    return answer[0]


def _wait(server: SnapshotServer, condition: Callable[[], bool], patience: Patience) -> None:
    report_at = server.clock.monotonic() + REPORT_SECONDS
    error = SourceBusy(
        operation="taking", object="a snapshot", cause="the capture process has not drained what it sees yet"
    )
    while not condition():
        if patience.stopped():
            raise error
        if server.clock.monotonic() >= report_at:
            report_at = server.clock.monotonic() + 2 * REPORT_SECONDS
            log.warning("%s", error)
            patience.on_wait(error)
        # Notifications would need a session that listens; copies are few.
        server.sleep(LOOK_SECONDS)
