"""What another plugin writes, as pgoutput would have written it.

    feed ──► parsed messages wait ──► translate(reading of the catalog) ──► pgoutput's messages, in the same XLogData

A message waits until the catalog has been read at a moment at which its transaction had ended: a stream may tell of a
transaction a moment before others see it. `asked` are the tables to be read for those that wait.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from ...errors import SourceError
from ...visibility import PgSnapshot
from .. import protocol
from ..messages import KIND_AT, Messages
from ..model import Relation
from . import describing, plugin
from .chronicle import Chronicle, Writing
from .describing import Refused
from .facts import Reading, RelationFacts, SlotMark
from .told import Began, CommitPoint, Ended, NotUnderstood, RowTold, TableName, Told, Truncated

HOLD_BYTES = 16 * 1024 * 1024
"""limit of a transaction whose commit is known at its end only; a longer one goes out in a block of protocol 2"""
_START = struct.Struct(">xQ")


@dataclass(slots=True)
class _Waiting:
    header: bytes
    told: Told

    @property
    def lsn(self) -> int:
        (lsn,) = _START.unpack_from(self.header)
        return int(lsn)

    def continued_by(self, header: bytes, told: Told) -> bool:
        """Take another message in, if it is of the same TRUNCATE: one plugin tells each table by itself."""
        if not isinstance(told, Truncated) or not isinstance(self.told, Truncated) or self.header[:9] != header[:9]:
            return False
        self.told = Truncated(self.told.tables + told.tables)
        return True


@dataclass
class _Open:
    """The transaction that is being translated."""

    writing: Writing
    header: bytes
    commit: CommitPoint | None
    held: list[tuple[bytes, bytes]] = field(default_factory=list)
    """headers and messages that wait for the commit"""
    held_bytes: int = 0
    begun: bool = False
    """whether a message of it was given"""


@dataclass(frozen=True)
class _Known:
    """A table as the catalog was read last; None: there was none of that name."""

    facts: RelationFacts | None
    snapshot: PgSnapshot
    published: tuple[RelationFacts, ...] | None
    """every relation of the stream at that moment, if it was asked for"""


class Translator:
    """Of one stream, from its beginning. Sans I/O: whoever has it reads the catalog when `asked` is not empty."""

    def __init__(
        self, plugin_name: str, server_version: int, marks: Iterable[SlotMark] = (), *, blocks: bool,
        exact: bool = True, hold_bytes: int = HOLD_BYTES,
    ) -> None:  # fmt: skip
        """`marks`: of the slot, from before. `blocks`: a long transaction may go out before its commit is known.

        `exact`: the plugin was asked for what `EXACT` has.
        """
        self._name, self._parse = plugin_name, plugin.parser(plugin_name, exact)
        self._server_version, self._hold_bytes = server_version, hold_bytes
        self.gives_blocks = blocks and not plugin.tells_commits_early(plugin_name)
        self._chronicle = Chronicle(tuple(marks))
        self._waiting: deque[_Waiting] = deque()
        self._open: _Open | None = None
        self._known: dict[TableName, _Known] = {}
        self._sent: dict[int, Relation] = {}
        self._asks_all = False
        self.passed = 0
        """end of the last transaction that was translated; one without a change is passed over"""

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def settled(self) -> bool:
        """Whether all that was fed has been given, and is of whole transactions."""
        return not self._waiting and self._open is None

    def feed(self, messages: Messages) -> None:
        for message in messages:
            header, payload = message[:KIND_AT], message[KIND_AT:]
            try:
                told = self._parse(payload)
            except (NotUnderstood, ValueError):
                raise SourceError(
                    operation="reading the stream", cause=f"a message is not in the form of {self._name}"
                ) from None
            if told is None:
                continue
            last = self._waiting[-1] if self._waiting else None
            if last is not None and last.continued_by(header, told):
                continue
            self._waiting.append(_Waiting(header, told))

    @property
    def asked(self) -> frozenset[TableName]:
        """The tables that are to be read of the catalog, for what waits."""
        if self._ready(self._waiting[0].told if self._waiting else None):
            return frozenset()
        return frozenset(name for one in self._waiting for name in _names(one.told))

    @property
    def asks_all(self) -> bool:
        """Whether every relation of the stream is to be read with them: a name does not tell which one is meant."""
        return self._asks_all

    def read(self, reading: Reading) -> None:
        self._chronicle.read(reading)
        self._asks_all = False
        for name in reading.asked:
            self._known[name] = _Known(reading.tables.get(name), reading.snapshot, reading.published)

    def translate(self) -> Messages:
        """What can be said by now."""
        out: list[bytes] = []
        while self._waiting and self._ready(self._waiting[0].told):
            one = self._waiting.popleft()
            told = one.told
            if isinstance(told, Began):
                self._begin(told, one)
            elif isinstance(told, Ended):
                out += self._end(told, one)
            else:
                for message in self._row(told) if isinstance(told, RowTold) else self._truncate(told):
                    out += self._put(one.header, message)
        return Messages.of(out)

    def _ready(self, told: Told | None) -> bool:
        """Whether the catalog has been read late enough for a change."""
        if self._open is None:
            return True
        for name in _names(told):
            known = self._known.get(name)
            if known is None or not known.snapshot.sees(known.snapshot.full(self._open.writing.xid)):
                return False
            if known.published is None and self._certain(name) is None:
                self._asks_all = True
                return False
        return True

    def _begin(self, told: Began, one: _Waiting) -> None:
        if self._open is not None:
            raise _disorder()
        self._open = _Open(Writing(told.xid, one.lsn), one.header, told.commit)

    def _end(self, told: Ended, one: _Waiting) -> Iterator[bytes]:
        ended, self._open = self._open, None
        if ended is None or ended.writing.xid != told.xid:
            raise _disorder()
        # Only the end of the commit record is known: its last byte is as good as its first, because positions
        # lie between records.
        commit = told.commit or CommitPoint(one.lsn - 1, one.lsn, told.commit_us)
        self._chronicle.ended(told.xid, commit.end_lsn)
        self.passed = commit.end_lsn
        point = commit.commit_lsn, commit.end_lsn, commit.commit_us
        if ended.begun and ended.commit is None:
            yield one.header + protocol.stream_stop()
            yield one.header + protocol.stream_commit(told.xid, *point)
            return
        if ended.held:
            yield ended.header + protocol.begin(commit.commit_lsn, commit.commit_us, told.xid)
            yield from (header + message for header, message in ended.held)
        if ended.held or ended.begun:
            yield one.header + protocol.commit(*point)

    def _put(self, header: bytes, message: bytes) -> Iterator[bytes]:
        current = self._require_open()
        if current.commit is not None:
            if not current.begun:
                yield current.header + protocol.begin(
                    current.commit.commit_lsn, current.commit.commit_us, current.writing.xid
                )
                current.begun = True
            yield header + message
            return
        if current.begun:
            yield header + protocol.in_block(message, current.writing.xid)
            return
        current.held.append((header, message))
        current.held_bytes += len(header) + len(message)
        if self.gives_blocks and current.held_bytes > self._hold_bytes:
            yield current.header + protocol.stream_start(current.writing.xid)
            for earlier, held in current.held:
                yield earlier + protocol.in_block(held, current.writing.xid)
            current.begun, current.held = True, []

    def _row(self, told: RowTold) -> Iterator[bytes]:
        facts = self._certain(told.table)
        if facts is None:
            yield from self._refuse_all(told.table)
            return
        if self._left_out(facts, told.kind):
            return
        before = partial(self._before, told.table)
        try:
            last = self._sent.get(facts.oid)
            relation = describing.described(told, facts, before, self._server_version, last)
            message = describing.encoded(told, facts, relation, before)
        except Refused as refused:
            yield from self._refuse(facts, refused)
            return
        yield from self._describe(relation)
        yield message

    def _truncate(self, told: Truncated) -> Iterator[bytes]:
        oids = []
        for name in told.tables:
            facts = self._certain(name)
            if facts is None:
                yield from self._refuse_all(name)
            elif not self._left_out(facts, "T"):
                yield from self._describe(self._sent.get(facts.oid) or self._present(facts))
                oids.append(facts.oid)
        if oids:
            yield protocol.truncate(oids)

    def _left_out(self, facts: RelationFacts, kind: str) -> bool:
        """Whether a change is none of the stream's: it was certainly not published when it was made.

        What had been a partition until then may have been published as one.
        """
        if facts.kind != "r":
            return True
        return kind not in facts.published and all(
            self._before(facts.table, one) for one in (facts.written, *facts.memberships)
        )

    def _certain(self, name: TableName) -> RelationFacts | None:
        """The table that had a name when the open transaction wrote it; None if that is not certain."""
        known = self._known[name]
        return known.facts if known.facts is not None and self._had_name(known.facts, known.snapshot) else None

    def _had_name(self, facts: RelationFacts, snapshot: PgSnapshot) -> bool:
        writing = self._require_open().writing
        xid = snapshot.full(writing.xid)
        return self._chronicle.before(facts.named, xid) and self._chronicle.before_begin(
            facts.schema_named, writing, xid
        )

    def _before(self, name: TableName, altered: int) -> bool:
        xid = self._known[name].snapshot.full(self._require_open().writing.xid)
        return self._chronicle.before(altered, xid)

    def _refuse_all(self, name: TableName) -> Iterator[bytes]:
        """Refuse a change of every table of the stream that may have had a name."""
        known = self._known[name]
        for facts in known.published or ():
            if facts.table == name or not self._had_name(facts, known.snapshot):
                yield from self._refuse(facts, describing.copy_needed(describing.NAME_UNSURE))

    def _refuse(self, facts: RelationFacts, refused: Refused) -> Iterator[bytes]:
        if facts.kind == "r":
            yield from self._describe(self._sent.get(facts.oid) or self._present(facts))
            yield protocol.refused(facts.oid, refused.error, **refused.fields)

    def _present(self, facts: RelationFacts) -> Relation:
        return describing.present(facts, self._server_version)

    def _describe(self, relation: Relation) -> Iterator[bytes]:
        if self._sent.get(relation.oid) != relation:
            self._sent[relation.oid] = relation
            yield protocol.relation(relation)

    def _require_open(self) -> _Open:
        if self._open is None:
            raise _disorder()
        return self._open


def _names(told: Told | None) -> tuple[TableName, ...]:
    if isinstance(told, RowTold):
        return (told.table,)
    return told.tables if isinstance(told, Truncated) else ()


def _disorder() -> SourceError:
    return SourceError(operation="reading the stream", cause="its transactions do not follow each other")
