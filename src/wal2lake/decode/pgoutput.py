"""The decoder: pgoutput messages in, complete transactions out.

    Intake: raw messages ──► decode: one buffer ──► rows by relation ──► columns
                         └─ boundary: the last commit, and what happened between rows

Nothing is done per message in Python: transactions, sequence numbers and relations of rows are computed for a slice of
the stream at once. A slice may end in the middle of a transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from ..change import MARKED_LSN, MARKED_US, Refusal, Truncation
from ..errors import SourceError
from ..position import ZERO, Lsn
from ..types import Bytes, Positions
from .binding import Binding, Described
from .messages import (
    BEGIN,
    COMMIT,
    DELETE,
    IGNORED,
    INSERT,
    KIND_AT,
    REFUSED,
    RELATION,
    STREAM_EPOCH_US,
    TRUNCATE,
    UPDATE,
    Begin,
    Commit,
    Messages,
    Raw,
    among,
    parse_begins,
    parse_commit,
    parse_refused,
    parse_relation,
    parse_truncate,
)
from .model import Boundary, Refusals, ResolveRelation
from .undecoded import Part, Undecoded, by_table

log = logging.getLogger(__name__)

_UNDESCRIBED = "a change arrived before the description of its table"
_STREAM_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_Descriptions = dict[int, list[tuple[int, Described]]]


_IS_ROW = among(bytes([INSERT, UPDATE, DELETE]))
_CHANGES = bytes([INSERT, UPDATE, DELETE, TRUNCATE, REFUSED])
_IS_CHANGE = among(_CHANGES)
_IS_KNOWN = among(_CHANGES + bytes([BEGIN, COMMIT, RELATION]) + IGNORED)


@dataclass(frozen=True)
class _Open:
    """A transaction whose first messages are decoded: the state of its counters."""

    begin: Begin
    changes: int


@dataclass
class _Found:
    """What happened between rows, by table."""

    truncations: dict[int, list[Truncation]] = field(default_factory=dict)
    refusals: dict[int, Refusals] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.truncations or self.refusals)

    def add(self, other: _Found) -> None:
        for table, some in other.truncations.items():
            self.truncations.setdefault(table, []).extend(some)
        for table, refusals in other.refusals.items():
            self.refusals.setdefault(table, Refusals()).add(refusals)

    def committed(self, lsn: Lsn) -> _Found:
        """The same with the commit, which was not known before."""
        return _Found(
            {table: [replace(one, commit_lsn=lsn) for one in some] for table, some in self.truncations.items()},
            {table: some.stamped(lsn) for table, some in self.refusals.items()},
        )


@dataclass(frozen=True)
class _Plan:
    """The work of a part, with every relation bound to its target."""

    units: list[tuple[Binding, Positions]]
    """row messages, by number, of a relation as it was described at that place"""
    truncations: list[tuple[int, Truncation]]
    """by table"""
    refusals: list[tuple[int, Refusal]]
    """by table"""
    relations: dict[int, Described]
    """descriptions at the end of the part"""


class Decoder:
    """Takes the stream's messages in order and returns complete transactions, decoded.

    Transactions with a commit LSN below `position` are in the change log already and are skipped. `binary`: values are
    in binary form; TextNeeded is raised for a type that needs text. A reading thread keeps whole transactions together
    with an Intake; their messages go through `plan` on another thread, with a `boundary` wherever a manifest ends.
    """

    def __init__(self, resolve: ResolveRelation, position: Lsn, binary: bool = False) -> None:
        self._resolve, self._binary = resolve, binary
        self._position = position
        self._relations: dict[int, Described] = {}
        self._open: _Open | None = None
        self._found, self._uncertain = _Found(), _Found()
        """of the open transaction, until its commit"""
        self._transactions = 0
        self._commit_ts: datetime | None = None

    @classmethod
    def speculative(cls, resolve: ResolveRelation, xid: int, binary: bool = False) -> Decoder:
        """For the changes of one open transaction; marks stand for its commit."""
        decoder = cls(resolve, ZERO, binary)
        decoder._open = _Open(Begin(MARKED_LSN, MARKED_US - STREAM_EPOCH_US, xid), 0)
        return decoder

    def append_committed(self, speculative: Decoder, commit: Commit) -> None:
        """Take over a transaction that was decoded speculatively, as if its messages had been decoded here."""
        self._relations |= speculative._relations
        self._found.add(speculative._uncertain.committed(Lsn(commit.commit_lsn)))
        self._committed(commit, 1)

    @property
    def has_found(self) -> bool:
        """Whether a complete transaction since the last boundary has emptied a table, or has a refused change."""
        return bool(self._found)

    @property
    def position(self) -> Lsn:
        """Every transaction that committed below it has been decoded, or was logged before."""
        return self._position

    def plan(self, messages: Sequence[Messages], certain: bool = True) -> tuple[Undecoded, ...]:
        """The rows of messages that continue those before, to be decoded on any thread. An error changes nothing.

        `certain` is false for an open transaction: truncations that are found in it wait for its commit.
        """
        part = self._part(messages)
        plan = self._plan(part)
        self._relations = plan.relations
        self._open = self._open_after(part)
        if certain:
            self._found.add(self._uncertain)
            self._uncertain = _Found()
        found = self._found if certain else self._uncertain
        for table, truncation in plan.truncations:
            found.truncations.setdefault(table, []).append(truncation)
        for table, refusal in plan.refusals:
            found.refusals.setdefault(table, Refusals()).note(refusal)
        if commits := part.numbers(COMMIT):
            needed = int(np.count_nonzero(part.needed & (part.kinds == COMMIT)))
            self._committed(parse_commit(part.message(commits[-1])), needed)
        return tuple(by_table(part, plan.units))

    def _committed(self, last: Commit, transactions: int) -> None:
        self._transactions += transactions
        self._commit_ts = _STREAM_EPOCH + timedelta(microseconds=last.commit_us)
        self._position = Lsn(max(self._position, last.end_lsn))

    def boundary(self) -> Boundary:
        """The end of all transactions that are complete, and their truncations since the previous boundary."""
        found, self._found = self._found, _Found()
        transactions, self._transactions = self._transactions, 0
        commit_ts, self._commit_ts = self._commit_ts, None
        truncations = {table: tuple(some) for table, some in found.truncations.items()}
        refusals = {table: tuple(some) for table, some in found.refusals.items()}
        return Boundary(self._position, transactions, commit_ts, truncations, refusals)

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
        # Steps of two leave room for the insert that an update without a key ends in.
        seq = 2 * (changes - 1 - before[transaction])
        needed = (begins.commit_lsn >= self._position)[transaction]
        return Part(raw, kinds, at, end, begins, transaction, seq, needed)

    def _open_after(self, part: Part) -> _Open | None:
        """The transaction in whose middle the messages end."""
        kinds = part.kinds.tobytes()
        begin, commit = kinds.rfind(BEGIN), kinds.rfind(COMMIT)
        if not kinds or begin < commit or (begin == commit and self._open is None):
            return self._open if not kinds else None
        return _Open(part.begins[-1], int(part.seq[-1]) // 2 + 1)

    def _require_order(self, kinds: Bytes) -> None:
        """A row outside of a transaction, or a transaction inside another, means that messages were lost."""
        step = (kinds == BEGIN).astype(np.int8) - (kinds == COMMIT).astype(np.int8)
        depth = np.cumsum(step, dtype=np.int64) + (self._open is not None)
        outside = (depth != 1) & _IS_CHANGE[kinds]
        if (depth > 1).any() or (depth < 0).any() or outside.any():
            raise SourceError(operation="reading the stream", cause="its transactions are out of order")
        if not _IS_KNOWN[kinds].all():
            raise SourceError(operation="reading the stream", cause="it has a message of an unknown kind")

    def _plan(self, part: Part) -> _Plan:
        described = {oid: [(0, was)] for oid, was in self._relations.items()}
        for number in part.numbers(RELATION):
            relation = parse_relation(part.message(number))
            described.setdefault(relation.oid, []).append((number, Described(relation)))
        return _Plan(
            units=list(self._units(part, described)),
            truncations=list(self._truncations(part, described)),
            refusals=list(self._refusals(part, described)),
            relations={oid: steps[-1][1] for oid, steps in described.items()},
        )

    def _units(self, part: Part, described: _Descriptions) -> Iterator[tuple[Binding, Positions]]:
        rows = np.flatnonzero(_IS_ROW[part.kinds] & part.needed)
        oids = part.raw.words(part.at[rows] + 1) >> np.uint64(32)
        for oid, numbers in _by_relation(rows, oids, described):
            steps = described[oid]
            bounds = np.searchsorted(numbers, [number for number, _ in steps[1:]])
            for (_, relation), some in zip(steps, np.split(numbers, bounds), strict=True):
                if not len(some):
                    continue
                begin = part.begins[part.transaction[some[0]]]
                if (binding := relation.bind(self._resolve, begin.commit_lsn, self._binary)) is not None:
                    yield binding, some

    def _truncations(self, part: Part, described: _Descriptions) -> Iterator[tuple[int, Truncation]]:
        for number, begin, seq in _places(part, TRUNCATE):
            for oid in parse_truncate(part.message(number)):
                if (binding := self._bound(oid, number, begin, described)) is not None:
                    target, lsn = binding.target, Lsn(begin.commit_lsn)
                    text, columns = (target.bounds.text, target.bounds.columns) if target.bounds else (None, None)
                    yield (
                        target.schema.oid,
                        Truncation(lsn, seq, target.leaf, text, begin.xid, columns, target.levels),
                    )

    def _refusals(self, part: Part, described: _Descriptions) -> Iterator[tuple[int, Refusal]]:
        for number, begin, seq in _places(part, REFUSED):
            oid, error, fields = parse_refused(part.message(number))
            if (binding := self._bound(oid, number, begin, described)) is not None:
                schema = binding.schema
                yield schema.oid, Refusal(Lsn(begin.commit_lsn), seq, error, {**fields, "table": str(schema.id)})

    def _bound(self, oid: int, number: int, begin: Begin, described: _Descriptions) -> Binding | None:
        """A relation as it was described before a message."""
        relation = next((one for at, one in reversed(described.get(oid, [])) if at <= number), None)
        if relation is None:
            raise SourceError(operation="reading the stream", cause=_UNDESCRIBED)
        return relation.bind(self._resolve, begin.commit_lsn, self._binary)


def _places(part: Part, kind: int) -> Iterator[tuple[int, Begin, int]]:
    """The messages of a kind: their numbers, their transactions, and their places in these."""
    for number in part.numbers(kind):
        if part.needed[number]:
            yield number, part.begins[part.transaction[number]], int(part.seq[number])


def _by_relation(
    rows: Positions, oids: npt.NDArray[np.uint64], described: Iterable[int]
) -> Iterator[tuple[int, Positions]]:
    """Rows by relation, in order within each relation."""
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
