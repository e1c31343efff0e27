"""The decoder: pgoutput messages in, cuts of complete transactions out.

    Intake: messages wait, as they came ──► decode: one buffer ──► rows by relation ──► columns
                                        └─ boundary: up to which commit, and what stands beside the rows

Nothing is done per message in Python: what a transaction is, which change has which number and which relation a row
belongs to is worked out for a slice of the stream together. A slice may end in the middle of a transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from ..changelog.manifest import Truncation
from ..changelog.stamp import MARKED_LSN, MARKED_US
from ..errors import SourceError
from ..position import ZERO, Lsn
from .binding import Binding, Described
from .intake import SLICE_BYTES, Intake, slices
from .messages import (
    BEGIN,
    COMMIT,
    DELETE,
    IGNORED,
    INSERT,
    KIND_AT,
    RELATION,
    STREAM_EPOCH_US,
    TRUNCATE,
    UPDATE,
    Begin,
    Bytes,
    Commit,
    Messages,
    Positions,
    Raw,
    among,
    parse_begins,
    parse_commit,
    parse_relation,
    parse_truncate,
)
from .model import Cut, DecodedTable, Refusals, Resolver
from .undecoded import Part, Undecoded, by_table

log = logging.getLogger(__name__)

_UNDESCRIBED = "a change came before the description of its table"
_STREAM_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_Descriptions = dict[int, list[tuple[int, Described]]]


_IS_ROW = among(bytes([INSERT, UPDATE, DELETE]))
_IS_CHANGE = among(bytes([INSERT, UPDATE, DELETE, TRUNCATE]))
_IS_KNOWN = among(bytes([INSERT, UPDATE, DELETE, TRUNCATE, BEGIN, COMMIT, RELATION]) + IGNORED)


@dataclass(frozen=True)
class _Open:
    """A transaction whose first messages are already decoded: where its counting stands."""

    begin: Begin
    changes: int


@dataclass
class _Found:
    """What stands beside the rows: kept by table until the transaction that it belongs to is cut."""

    truncations: dict[int, list[Truncation]] = field(default_factory=dict)
    refusals: dict[int, Refusals] = field(default_factory=dict)

    def truncate(self, table: int, truncation: Truncation) -> None:
        self.truncations.setdefault(table, []).append(truncation)

    def refuse(self, table: int, refusals: Refusals) -> None:
        self.refusals.setdefault(table, Refusals()).add(refusals)

    def stamped(self, commit_lsn: Lsn) -> _Found:
        """The same with a commit that was not known before."""
        return _Found(
            {table: [replace(t, commit_lsn=commit_lsn) for t in some] for table, some in self.truncations.items()},
            {table: some.stamped(commit_lsn) for table, some in self.refusals.items()},
        )

    def absorb(self, other: _Found) -> None:
        for table, truncations in other.truncations.items():
            self.truncations.setdefault(table, []).extend(truncations)
        for table, refusals in other.refusals.items():
            self.refuse(table, refusals)


@dataclass(frozen=True)
class _Plan:
    """What a part's messages ask for, with every relation bound to its target."""

    units: list[tuple[Binding, Positions]]
    """row messages, by number, of a relation as it was described at that place"""
    truncations: list[tuple[int, Truncation]]
    """by table"""
    relations: dict[int, Described]
    """as they are described at the end"""


class Decoder:
    """Takes the stream's messages in order and gives complete transactions, decoded, a cut at a time.

    Transactions with a commit LSN below `position` are in the change log already and are left out whole. `binary`: the
    stream has values in binary form; TextNeeded is raised where only text will do. On one thread: `feed`, then `cut` or
    `spill`. Where reading has a thread of its own, that has an Intake, and what it takes out of it goes through
    `decode` on another, with a `boundary` wherever a manifest is to end.
    """

    def __init__(self, resolve: Resolver, position: Lsn, binary: bool = False) -> None:
        self._resolve, self._binary = resolve, binary
        self._position = position
        self._relations: dict[int, Described] = {}
        self._open: _Open | None = None
        self._found, self._uncertain = _Found(), _Found()
        self._transactions = 0
        self._commit_ts: datetime | None = None
        self._intake = Intake()

    @classmethod
    def ahead(cls, resolve: Resolver, xid: int, binary: bool = False) -> Decoder:
        """For the changes of one transaction that still runs; marks stand for its commit."""
        decoder = cls(resolve, ZERO, binary)
        decoder._open = _Open(Begin(MARKED_LSN, MARKED_US - STREAM_EPOCH_US, xid), 0)
        return decoder

    def adopt(self, ahead: Decoder, commit: Commit) -> None:
        """Take over a transaction that was decoded ahead, as if its messages had been decoded here."""
        self._relations |= ahead._relations
        self._found.absorb(ahead._uncertain.stamped(Lsn(commit.commit_lsn)))
        self._committed(commit, 1)

    @property
    def has_found(self) -> bool:
        """Whether something stands beside the rows of whole transactions since the last boundary."""
        return bool(self._found.truncations or self._found.refusals)

    @property
    def position(self) -> Lsn:
        """Every transaction that committed below it has been decoded, or was logged before."""
        return self._position

    def decode(self, messages: Sequence[Messages], certain: bool = True) -> tuple[DecodedTable, ...]:
        """The rows of messages that continue those decoded before; an error leaves all as it was.

        Uncertain: they are an open transaction's, whose commit has not come. What is found in them waits for it.
        """
        tables = []
        for rows in self.plan(messages, certain):
            table, refusals = rows.decode()
            (self._found if certain else self._uncertain).refuse(rows.schema.oid, refusals)
            if table is not None:
                tables.append(table)
        return tuple(tables)

    def plan(self, messages: Sequence[Messages], certain: bool = True) -> tuple[Undecoded, ...]:
        """Like `decode`, but the rows are left to be decoded on any thread, and their refusals go with them."""
        part = self._part(messages)
        plan = self._plan(part)
        self._relations = plan.relations
        self._open = self._open_after(part)
        if certain:
            self._found.absorb(self._uncertain)
            self._uncertain = _Found()
        found = self._found if certain else self._uncertain
        for table, truncation in plan.truncations:
            found.truncate(table, truncation)
        if commits := part.numbers(COMMIT):
            wanted = int(np.count_nonzero(part.wanted & (part.kinds == COMMIT)))
            self._committed(parse_commit(part.message(commits[-1])), wanted)
        return tuple(by_table(part, plan.units))

    def _committed(self, last: Commit, transactions: int) -> None:
        self._transactions += transactions
        self._commit_ts = _STREAM_EPOCH + timedelta(microseconds=last.commit_us)
        self._position = Lsn(max(self._position, last.end_lsn))

    def boundary(self, tables: Sequence[DecodedTable] = ()) -> Cut:
        """What stands beside the rows of all transactions that ended since the boundary before."""
        found, self._found = self._found, _Found()
        transactions, self._transactions = self._transactions, 0
        commit_ts, self._commit_ts = self._commit_ts, None
        return Cut(
            to_lsn=self._position,
            transactions=transactions,
            commit_ts=commit_ts,
            tables=tuple(tables),
            truncations={table: tuple(found.truncations[table]) for table in found.truncations},
            refusals={table: tuple(some) for table, some in found.refusals.items() if some},
        )

    @property
    def has_complete(self) -> bool:
        return self._intake.has_complete

    @property
    def in_transaction(self) -> bool:
        return self._intake.in_transaction

    @property
    def pending_bytes(self) -> int:
        return self._intake.pending_bytes

    @property
    def open_bytes(self) -> int:
        return self._intake.open_bytes

    def feed(self, messages: Sequence[bytes]) -> None:
        """Take CopyData payloads of XLogData, in the order of the stream; they wait to be cut."""
        self._intake.feed(messages)

    def cut(self) -> Cut:
        """Decode and remove all complete transactions that wait; the open one stays."""
        tables: list[DecodedTable] = []
        for some in slices(self._intake.take_complete(), SLICE_BYTES):
            tables += self.decode(some)
        return self.boundary(tables)

    def spill(self) -> tuple[DecodedTable, ...]:
        """Decode and remove the rows that the open transaction has so far; its commit must still come.

        What is complete must be cut before, because relations are described in the order of the stream.
        """
        if not self.in_transaction and not self.has_complete:
            return ()
        return self.decode(self._intake.take_open(), certain=False)

    def _part(self, messages: Sequence[Messages]) -> Part:
        kinds = np.concatenate([np.empty(0, np.uint8), *(some.kinds for some in messages)])
        self._require_order(kinds)
        raw = Raw(messages)
        end = np.cumsum(np.concatenate([np.empty(0, np.int64), *(some.lengths for some in messages)]))
        at = np.concatenate([[0], end[:-1]]) + KIND_AT
        first = np.flatnonzero(kinds == BEGIN)
        was = self._open or _Open(Begin(0, 0, 0), 0)
        begins = parse_begins(raw, at[first], was.begin)
        transaction = np.cumsum(kinds == BEGIN)
        changes = np.cumsum(_IS_CHANGE[kinds])
        before = np.concatenate([[-was.changes], changes[first]])
        # A step of two leaves room for the insert that an update without a key ends in.
        seq = 2 * (changes - 1 - before[transaction])
        wanted = (begins.commit_lsn >= self._position)[transaction]
        return Part(raw, kinds, at, end, begins, transaction, seq, wanted)

    def _open_after(self, part: Part) -> _Open | None:
        """The transaction in whose middle the messages end."""
        kinds = part.kinds.tobytes()
        begin, commit = kinds.rfind(BEGIN), kinds.rfind(COMMIT)
        if not kinds or begin < commit or (begin == commit and self._open is None):
            return self._open if not kinds else None
        return _Open(part.begins[-1], int(part.seq[-1]) // 2 + 1)

    def _require_order(self, kinds: Bytes) -> None:
        """A row outside of a transaction, or one inside another, means that something in between was lost."""
        step = (kinds == BEGIN).astype(np.int8) - (kinds == COMMIT).astype(np.int8)
        depth = np.cumsum(step, dtype=np.int64) + (self._open is not None)
        outside = (depth != 1) & _IS_CHANGE[kinds]
        if (depth > 1).any() or (depth < 0).any() or outside.any():
            raise SourceError(operation="reading the stream", cause="its transactions do not follow each other")
        if not _IS_KNOWN[kinds].all():
            raise SourceError(operation="reading the stream", cause="it holds a message of an unknown kind")

    def _plan(self, part: Part) -> _Plan:
        described = {oid: [(0, was)] for oid, was in self._relations.items()}
        for number in part.numbers(RELATION):
            relation = parse_relation(part.message(number))
            described.setdefault(relation.oid, []).append((number, Described(relation)))
        return _Plan(
            units=list(self._units(part, described)),
            truncations=list(self._truncations(part, described)),
            relations={oid: steps[-1][1] for oid, steps in described.items()},
        )

    def _units(self, part: Part, described: _Descriptions) -> Iterator[tuple[Binding, Positions]]:
        rows = np.flatnonzero(_IS_ROW[part.kinds] & part.wanted)
        oids = part.raw.words(part.at[rows] + 1) >> np.uint64(32)
        for oid, numbers in _by_relation(rows, oids, described):
            steps = described[oid]
            bounds = np.searchsorted(numbers, [number for number, _ in steps[1:]])
            for (_, relation), some in zip(steps, np.split(numbers, bounds), strict=True):
                if len(some) and (binding := relation.bind(self._resolve, self._binary)) is not None:
                    yield binding, some

    def _truncations(self, part: Part, described: _Descriptions) -> Iterator[tuple[int, Truncation]]:
        for number in part.numbers(TRUNCATE):
            if not part.wanted[number]:
                continue
            begin, seq = part.begins[part.transaction[number]], int(part.seq[number])
            for oid in parse_truncate(part.message(number)):
                relation = next((one for at, one in reversed(described.get(oid, [])) if at <= number), None)
                if relation is None:
                    raise SourceError(operation="reading the stream", cause=_UNDESCRIBED)
                if (binding := relation.bind(self._resolve, self._binary)) is not None:
                    target = binding.target
                    yield target.schema.oid, Truncation(Lsn(begin.commit_lsn), seq, target.leaf, target.predicate)


def _by_relation(
    rows: Positions, oids: npt.NDArray[np.uint64], described: Iterable[int]
) -> Iterator[tuple[int, Positions]]:
    """Rows by relation, each relation's in their order."""
    known = np.array(sorted(described), np.uint64)
    index = np.minimum(np.searchsorted(known, oids), len(known) - 1)
    if len(rows) and (not len(known) or (known[index] != oids).any()):
        raise SourceError(operation="reading the stream", cause=_UNDESCRIBED)
    # Short integers are sorted in linear time.
    index = index.astype(np.uint16) if len(known) < 1 << 16 else index
    order = np.argsort(index, kind="stable")
    present, first = np.unique(index[order], return_index=True)
    for one, numbers in zip(present.tolist(), np.split(rows[order], first[1:]), strict=False):
        yield int(known[one]), numbers
