"""A capture mode in a page: a list of transactions, replayed. What a new kind of ChangeSource has to do, and no more.

Each row is a change of one table: its kind (I, U or D) and its values as PostgreSQL's text.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import dataclass

from stream_encoder import begin, commit, delete, insert, relation_message, update
from wal2lake.decode import Messages, Relation
from wal2lake.position import Lsn
from wal2lake.source.ports import Capabilities

TRANSACTION_BYTES = 100
"""between the positions of two transactions"""
Row = tuple[str, tuple[str | None, ...]]


@dataclass(frozen=True)
class Replay:
    """What is replayed: the table as the rows have it, and the rows of each transaction from a position on."""

    relation: Relation
    begins: Lsn
    transactions: Sequence[Sequence[Row]]

    @property
    def end(self) -> Lsn:
        return Lsn(self.begins + TRANSACTION_BYTES * len(self.transactions))

    def messages(self, number: int) -> list[bytes]:
        """A transaction, as pgoutput writes it."""
        lsn = self.begins + TRANSACTION_BYTES * number
        changes = [_change(self.relation.oid, row) for row in self.transactions[number]]
        return [begin(lsn), relation_message(self.relation), *changes, commit(lsn, lsn + TRANSACTION_BYTES)]


def _change(oid: int, row: Row) -> bytes:
    kind, values = row
    match kind:
        case "I":
            return insert(oid, values)
        case "U":
            return update(oid, values)
        case _:
            return delete(oid, values)


class ReplayedStream:
    """Implements ChangeSource: one transaction with each `read`."""

    capabilities = Capabilities(truncate=False, key_changes=False)
    awaits_acknowledgement = False

    def __init__(self, replay: Replay, start: Lsn) -> None:
        self._replay = replay
        self.acknowledged = self.received = self.keepalive_lsn = start
        # A token includes the transactions below it, so that the next one may begin exactly there.
        self._next = max(0, -(-(start - replay.begins) // TRANSACTION_BYTES))

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        if self._next == len(self._replay.transactions):
            self.stay(timeout, wake)
            self.received = self.keepalive_lsn = max(self.keepalive_lsn, self._replay.end)
            return Messages.of([])
        messages = self._replay.messages(self._next)
        self._next += 1
        self.received = Lsn(self._replay.begins + TRANSACTION_BYTES * self._next)
        return Messages.of(messages)

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        select.select(wake, [], [], min(timeout, 0.05))

    def ask(self) -> None:
        """Every empty `read` says how far it is."""

    def acknowledge(self, lsn: Lsn) -> None:
        self.acknowledged = max(self.acknowledged, lsn)

    def finish(self, timeout: float = 2.0) -> None:
        """Nobody waits for the last acknowledgement."""

    def close(self) -> None:
        """It holds nothing."""

    def __enter__(self) -> ReplayedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
