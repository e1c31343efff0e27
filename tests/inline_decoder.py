"""The product's decoder as tests use it: fed with messages and read at once, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from wal2lake.change import Refusal, Truncation
from wal2lake.decode import SLICE_BYTES, DecodedTable, Decoder, Intake, Messages, Refusals, Relation, Target, slices
from wal2lake.position import Lsn


@dataclass(frozen=True)
class Cut:
    """All complete transactions since the previous cut."""

    to_lsn: Lsn
    transactions: int
    commit_ts: datetime | None
    tables: tuple[DecodedTable, ...]
    truncations: dict[int, tuple[Truncation, ...]]
    refusals: dict[int, tuple[Refusal, ...]]


class InlineDecoder:
    """`feed`, then `cut` or `spill`. Refusals of an open transaction count when it is complete."""

    def __init__(self, resolve: Callable[[Relation], Target | None], position: Lsn, binary: bool = False) -> None:
        self._decoder, self.intake = Decoder(lambda relation, _: resolve(relation), position, binary), Intake()
        self._refusals: dict[int, Refusals] = {}
        self._open: dict[int, Refusals] = {}

    def feed(self, messages: Sequence[bytes]) -> None:
        """Take CopyData payloads of XLogData, in the order of the stream; they wait to be decoded."""
        self.intake.feed(messages)

    def decode(self, messages: Sequence[Messages], certain: bool = True) -> tuple[DecodedTable, ...]:
        """The rows of messages that continue those before."""
        tables, planned = [], self._decoder.plan(messages, certain)
        if certain:
            for table, refusals in self._open.items():
                self._refusals.setdefault(table, Refusals()).add(refusals)
            self._open = {}
        for rows in planned:
            decoded, refusals = rows.decode()
            (self._refusals if certain else self._open).setdefault(rows.schema.oid, Refusals()).add(refusals)
            if decoded is not None:
                tables.append(decoded)
        return tuple(tables)

    def boundary(self, tables: Sequence[DecodedTable] = ()) -> Cut:
        refusals, self._refusals = self._refusals, {}
        at = self._decoder.boundary()
        for table, some in at.refusals.items():
            for refusal in some:
                refusals.setdefault(table, Refusals()).note(refusal)
        kept = {table: tuple(some) for table, some in refusals.items() if some}
        return Cut(at.to_lsn, at.transactions, at.commit_ts, tuple(tables), at.truncations, kept)

    def cut(self, most_bytes: int = SLICE_BYTES) -> Cut:
        """Decode and remove all complete transactions; the open one stays."""
        tables: list[DecodedTable] = []
        for some in slices(self.intake.take_complete(), most_bytes):
            tables += self.decode(some)
        return self.boundary(tables)

    def spill(self) -> tuple[DecodedTable, ...]:
        """Decode and remove the rows of the open transaction so far; its commit must still come.

        Call `cut` before, because relations are described in the order of the stream.
        """
        if not self.intake.in_transaction and not self.intake.has_complete:
            return ()
        return self.decode(self.intake.take_open(), certain=False)
