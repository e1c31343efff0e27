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
import pyarrow as pa

from ..changelog.manifest import Refusal, Truncation
from ..changelog.stamp import MARKED_LSN, MARKED_US
from ..errors import SourceError
from ..position import ZERO, Lsn
from ..schema import TableSchema
from .binding import Binding, Described
from .columns import STREAM_EPOCH_US, Rows, decode_rows
from .intake import Intake, slices
from .messages import (
    BEGIN,
    COMMIT,
    DELETE,
    IGNORED,
    INSERT,
    KIND_AT,
    RELATION,
    TRUNCATE,
    UPDATE,
    Begin,
    Begins,
    Bytes,
    Commit,
    Mask,
    Messages,
    Positions,
    Raw,
    among,
    parse_begins,
    parse_commit,
    parse_relation,
    parse_truncate,
)
from .model import Cut, DecodedTable, Resolver

log = logging.getLogger(__name__)

SLICE_BYTES = 8 * 1024 * 1024
"""raw bytes that are decoded together, far below what a string column can hold"""
_PIECE_CELLS = 1 << 20
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
    refusals: dict[int, dict[tuple[str, str | None], Refusal]] = field(default_factory=dict)

    def truncate(self, table: int, truncation: Truncation) -> None:
        self.truncations.setdefault(table, []).append(truncation)

    def refuse(self, table: int, refusals: Iterable[Refusal]) -> None:
        """Of each kind of refusal a table's earliest is kept, so that a million bad values cost no memory."""
        kept = self.refusals.setdefault(table, {})
        for refusal in refusals:
            kind = refusal.error, refusal.fields.get("column")
            kept[kind] = min(refusal, kept.get(kind, refusal), key=_place)

    def stamped(self, commit_lsn: Lsn) -> _Found:
        """The same with a commit that was not known before."""
        return _Found(
            {table: [replace(t, commit_lsn=commit_lsn) for t in some] for table, some in self.truncations.items()},
            {
                table: {kind: replace(refusal, commit_lsn=commit_lsn) for kind, refusal in some.items()}
                for table, some in self.refusals.items()
            },
        )

    def absorb(self, other: _Found) -> None:
        for table, truncations in other.truncations.items():
            self.truncations.setdefault(table, []).extend(truncations)
        for table, refusals in other.refusals.items():
            self.refuse(table, refusals.values())


@dataclass(frozen=True)
class _Part:
    """Messages in one buffer, each with its transaction and its place in it."""

    raw: Raw
    kinds: Bytes
    at: Positions
    """positions of the kind bytes"""
    end: Positions
    begins: Begins
    """per transaction; the first is the one that was open before"""
    transaction: Positions
    seq: Positions
    wanted: Mask
    """not in a transaction that is logged already"""

    def numbers(self, kind: int) -> list[int]:
        return np.flatnonzero(self.kinds == kind).tolist()

    def message(self, number: int) -> bytes:
        return self.raw.data[self.at[number] - KIND_AT : self.end[number]]


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

    Transactions with a commit LSN below `position` are in the change log already and are left out whole. On one
    thread: `feed`, then `cut` or `spill`. Where reading has a thread of its own, that has an Intake, and what it takes
    out of it goes through `decode` on another, with a `boundary` wherever a manifest is to end.
    """

    def __init__(self, resolve: Resolver, position: Lsn) -> None:
        self._resolve = resolve
        self._position = position
        self._relations: dict[int, Described] = {}
        self._open: _Open | None = None
        self._found, self._uncertain = _Found(), _Found()
        self._transactions = 0
        self._commit_ts: datetime | None = None
        self._intake = Intake()

    @classmethod
    def ahead(cls, resolve: Resolver, xid: int) -> Decoder:
        """For the changes of one transaction that still runs; marks stand for its commit."""
        decoder = cls(resolve, ZERO)
        decoder._open = _Open(Begin(MARKED_LSN, MARKED_US - STREAM_EPOCH_US, xid), 0)
        return decoder

    def adopt(self, ahead: Decoder, commit: Commit) -> None:
        """Take over a transaction that was decoded ahead, as if its messages had been decoded here."""
        self._relations |= ahead._relations
        self._found.absorb(ahead._uncertain.stamped(Lsn(commit.commit_lsn)))
        self._committed(commit, 1)

    @property
    def position(self) -> Lsn:
        """Every transaction that committed below it has been decoded, or was logged before."""
        return self._position

    def decode(self, messages: Sequence[Messages], certain: bool = True) -> tuple[DecodedTable, ...]:
        """The rows of messages that continue those decoded before; an error leaves all as it was.

        Uncertain: they are an open transaction's, whose commit has not come. What is found in them waits for it.
        """
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
        return tuple(_decode(part, plan.units, found))

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
            refusals={
                table: tuple(sorted(some.values(), key=_place)) for table, some in found.refusals.items() if some
            },
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

    def _part(self, messages: Sequence[Messages]) -> _Part:
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
        return _Part(raw, kinds, at, end, begins, transaction, seq, wanted)

    def _open_after(self, part: _Part) -> _Open | None:
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

    def _plan(self, part: _Part) -> _Plan:
        described = {oid: [(0, was)] for oid, was in self._relations.items()}
        for number in part.numbers(RELATION):
            relation = parse_relation(part.message(number))
            described.setdefault(relation.oid, []).append((number, Described(relation)))
        return _Plan(
            units=list(self._units(part, described)),
            truncations=list(self._truncations(part, described)),
            relations={oid: steps[-1][1] for oid, steps in described.items()},
        )

    def _units(self, part: _Part, described: _Descriptions) -> Iterator[tuple[Binding, Positions]]:
        rows = np.flatnonzero(_IS_ROW[part.kinds] & part.wanted)
        oids = part.raw.words(part.at[rows] + 1) >> np.uint64(32)
        for oid, numbers in _by_relation(rows, oids, described):
            steps = described[oid]
            bounds = np.searchsorted(numbers, [number for number, _ in steps[1:]])
            for (_, relation), some in zip(steps, np.split(numbers, bounds), strict=True):
                if len(some) and (binding := relation.bind(self._resolve)) is not None:
                    yield binding, some

    def _truncations(self, part: _Part, described: _Descriptions) -> Iterator[tuple[int, Truncation]]:
        for number in part.numbers(TRUNCATE):
            if not part.wanted[number]:
                continue
            begin, seq = part.begins[part.transaction[number]], int(part.seq[number])
            for oid in parse_truncate(part.message(number)):
                relation = next((one for at, one in reversed(described.get(oid, [])) if at <= number), None)
                if relation is None:
                    raise SourceError(operation="reading the stream", cause=_UNDESCRIBED)
                if (binding := relation.bind(self._resolve)) is not None:
                    target = binding.target
                    yield target.schema.oid, Truncation(Lsn(begin.commit_lsn), seq, target.leaf, target.predicate)


def _place(refusal: Refusal) -> tuple[int, int]:
    return refusal.commit_lsn, refusal.seq


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


def _decode(part: _Part, units: list[tuple[Binding, Positions]], found: _Found) -> Iterator[DecodedTable]:
    """The rows of each table and schema version, from all its relations, in one batch."""
    by_table: dict[tuple[int, TableSchema], list[tuple[Binding, Positions]]] = {}
    for binding, numbers in units:
        by_table.setdefault((binding.target.version, binding.schema), []).append((binding, numbers))
    for same in by_table.values():
        pieces = [(piece, binding) for binding, numbers in same for piece in _pieces(numbers, binding)]
        decoded = [_decode_piece(part, piece, binding, found) for piece, binding in pieces]
        tables = [table for table in decoded if table is not None]
        if tables:
            yield _joined(tables)


def _pieces(numbers: Positions, binding: Binding) -> Iterator[Positions]:
    """Rows in portions that keep the working memory small however many columns they have."""
    most = max(1, _PIECE_CELLS // max(1, len(binding.relation.columns)))
    for begin in range(0, len(numbers), most):
        yield numbers[begin : begin + most]


def _decode_piece(part: _Part, numbers: Positions, binding: Binding, found: _Found) -> DecodedTable | None:
    begins = part.begins.take(part.transaction[numbers])
    rows = Rows(
        op=part.kinds[numbers],
        at=part.at[numbers],
        end=part.end[numbers],
        commit_lsn=begins.commit_lsn,
        seq=part.seq[numbers],
        commit_us=begins.commit_us,
        xid=begins.xid,
    )
    name, oid = str(binding.schema.id), binding.schema.oid
    if binding.mismatch is not None:
        found.refuse(oid, [rows.refusal(0, "SchemaChanged", table=name, cause=binding.mismatch)])
        return None
    try:
        table, refusals = decode_rows(part.raw, rows, binding)
    except MemoryError:
        raise
    except Exception as error:  # one table's trouble must not become another's
        cause = type(error).__name__
        log.warning("rows of %s could not be decoded: %s", name, cause)
        found.refuse(oid, [rows.refusal(0, "TableError", table=name, cause=cause)])
        return None
    found.refuse(oid, refusals)
    return table


def _joined(tables: list[DecodedTable]) -> DecodedTable:
    if len(tables) == 1:
        return tables[0]
    first = tables[0]
    batch = pa.Table.from_batches([table.batch for table in tables]).combine_chunks().to_batches()[0]
    lsn = batch.column(first.schema.meta.commit_lsn).to_numpy()
    seq = batch.column(first.schema.meta.seq).to_numpy()
    later = (lsn[1:] > lsn[:-1]) | ((lsn[1:] == lsn[:-1]) & (seq[1:] > seq[:-1]))
    if not later.all():
        # Rows of several partitions interleave.
        batch = batch.take(pa.array(np.lexsort((seq, lsn))))
    counts = ("inserts", "updates", "deletes", "key_changes", "unchanged")
    sums = {name: sum(getattr(table, name) for table in tables) for name in counts}
    return replace(first, batch=batch, **sums)
