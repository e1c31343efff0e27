"""Bugs of polling, of triggers and of the change to the WAL, to be planted by a test: the simulator must find each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulation.faults import Port
from simulation.planted_bugs import BUGS, Bug, Patch, bug
from wal2lake.position import ZERO, Lsn
from wal2lake.source.copies import session_snapshot
from wal2lake.source.copies.session_snapshot import SessionSnapshot, SnapshotServer
from wal2lake.source.crossing import Crossed
from wal2lake.source.polling import PollingStream
from wal2lake.source.ports import ChangeSource
from wal2lake.source.sessions.locking import Patience
from wal2lake.source.streaming import CrossingStream
from wal2lake.source.triggers import TriggerStream
from wal2lake.source.triggers.contract import Drain
from wal2lake.source.wal_crossing import WalCrossing
from wal2lake.visibility import PgSnapshot, Visibility

__all__ = ["BUGS", "Bug"]


# ---- polling


@bug(capture="poll")
def advances_a_polled_slot_before_the_bite_is_durable(patch: Patch) -> None:
    real = PollingStream._end_bite

    def end(self: PollingStream, rows: int) -> None:
        real(self, rows)
        self.acknowledge(self._given)

    patch.setattr(PollingStream, "_end_bite", end)


@bug(capture="poll")
def takes_more_of_a_polled_slot_for_read_than_was(patch: Patch) -> None:
    """The end of the WAL when a bite has ended counts, not when it began."""
    real = PollingStream._end_bite

    def end(self: PollingStream, rows: int) -> None:
        self._biting_to = max(self._biting_to, self._session.flushed())
        real(self, rows)

    patch.setattr(PollingStream, "_end_bite", end)


@bug(Port.SOURCE, Port.LAKE, capture="poll")
def connects_a_copy_of_a_session_by_its_position(patch: Patch) -> None:
    """What has its commit record below the position is taken for copied, though it waits for a standby."""
    real = session_snapshot.take

    def take(server: SnapshotServer, patience: Patience) -> SessionSnapshot:
        taken = real(server, patience)
        seen = taken.snapshot.visibility
        assert seen is not None
        taken.snapshot = replace(taken.snapshot, lsn=seen.until, visibility=None)
        return taken

    patch.setattr(session_snapshot, "take", take)


# ---- triggers


@bug(capture="trigger")
def empties_a_buffer_before_the_drain_is_durable(patch: Patch) -> None:
    real = TriggerStream._ended

    def ended(self: TriggerStream) -> None:
        drain = self._drain
        assert drain is not None
        real(self)
        self._delete([filled.buffer for filled in drain.filled], drain.snapshot)

    patch.setattr(TriggerStream, "_ended", ended)


@bug(capture="trigger")
def drains_past_an_open_transaction(patch: Patch) -> None:
    """All that began before a drain counts as drained, as by a position."""
    real = TriggerStream._ended

    def ended(self: TriggerStream) -> None:
        real(self)
        assert self._last is not None
        self._last = PgSnapshot(self._last.xmax, self._last.xmax, frozenset())

    patch.setattr(TriggerStream, "_ended", ended)


@bug(capture="trigger")
def begins_a_drain_again_that_was_durable(patch: Patch) -> None:
    """The token of the stream is where it began, not what it has drained."""
    real = TriggerStream._ended

    def ended(self: TriggerStream) -> None:
        last = self._last
        real(self)
        self._last = last

    patch.setattr(TriggerStream, "_ended", ended)


@bug(Port.LOG, Port.LANE, capture="trigger")
def grants_a_copy_a_drain_that_may_be_lost(patch: Patch) -> None:
    real = TriggerStream._start

    def start(self: TriggerStream, drain: Drain) -> None:
        real(self, drain)
        found = self._buffers.look()
        if found is not None and found.asked is not None:
            self._buffers.answer(found.asked, True)

    patch.setattr(TriggerStream, "_start", start)


# ---- from triggers to the WAL


@dataclass(frozen=True)
class ByPosition(Visibility):
    position: Lsn = ZERO

    def sees(self, commit_lsn: int, xid: int) -> bool:
        return commit_lsn < self.position


@bug(capture="auto")
def skips_by_position_where_the_stream_takes_over(patch: Patch) -> None:
    """Not what the last drain has seen is left out, but what committed below its position."""
    real = CrossingStream.__init__

    def init(self: CrossingStream, stream: ChangeSource, position: Lsn, crossing: Visibility) -> None:
        real(self, stream, position, ByPosition(crossing.snapshot, crossing.until, position))

    patch.setattr(CrossingStream, "__init__", init)


@bug(capture="auto")
def crosses_while_older_transactions_are_open(patch: Patch) -> None:
    """A transaction that wrote before the slot was made is in neither of the two."""
    patch.setattr(WalCrossing, "_seen", lambda self, token: token)


@bug(capture="auto")
def begins_the_stream_where_the_drain_ended(patch: Patch) -> None:
    """Nothing is compared: what committed at a later position than that of the last drain is taken for new."""
    real = WalCrossing.finish

    def finish(self: WalCrossing, oids: frozenset[int], token: str) -> Crossed | None:
        found = real(self, oids, token)
        return None if found is None else replace(found, seen=replace(found.seen, until=Lsn(1)))

    patch.setattr(WalCrossing, "finish", finish)


@bug(capture="auto")
def leaves_the_slot_of_a_crossing_that_is_abandoned(patch: Patch) -> None:
    patch.setattr("simulation.postgres_trigger_source.ScriptedTriggerSource.clear_other_lane", lambda self: None)
    patch.setattr(WalCrossing, "undo", lambda self: None)
