"""The changes of a group as events for programs: each once, in the order of the commits, from a position on.

    manifests ──► segments ──► parts of one table ──► merged over the tables ──► a format: JSON lines, dictionaries

Memory is bounded: a segment is read in parts, and small segments whole. What the change log has no more is an error
that names the gap, never passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..change import Refusal, Truncation
from ..changelog import ChangeLog, Manifest, ManifestEntry
from ..errors import ChangeLogDamaged, CommandRefused, ConfigError, EventsGone, PositionUnknown
from ..executor import Event
from ..position import Lsn
from ..schema import TableId
from .captured_rows import OPERATIONS, CapturedRows, Numbers, read_rows
from .event_position import EventPosition, Place

LOOK_SECONDS = 0.1
BEGINNING, NOW = "beginning", "now"
_SMALL_BYTES = 256 * 1024
_MOST_BYTES = 32 * 1024 * 1024
"""of the parts of all segments that are read at once"""
_PART_BYTES = 4 * 1024 * 1024
_LEAST_BYTES = 256 * 1024


@dataclass(frozen=True)
class Single:
    """An event that stands between rows: a TRUNCATE, or a change that could not be carried."""

    table: TableId
    what: Truncation | Refusal
    sub: int

    @property
    def place(self) -> Place:
        return self.what.commit_lsn, self.what.seq, self.sub

    @property
    def operation(self) -> str:
        return "TRUNCATE" if isinstance(self.what, Truncation) else "REFUSED"


@dataclass(frozen=True)
class Run:
    """Changes of one table that follow each other in it: rows `begin` to `end` of a part."""

    part: CapturedRows
    begin: int
    end: int


@dataclass(frozen=True)
class Events:
    """Some events in their order: those of all runs, one after the other, then the single ones, in `order`."""

    group: str
    stretch: int
    runs: Sequence[Run]
    singles: Sequence[Single]
    order: Numbers | None
    """None: as they are"""

    def __len__(self) -> int:
        return sum(run.end - run.begin for run in self.runs) + len(self.singles)


Start: TypeAlias = "EventPosition | str"


class EventLog:
    """Reads one group's log from a position on. `tables`: oids, None for all; `operations`: None for all."""

    def __init__(
        self, changelog: ChangeLog, start: Start = NOW, tables: Collection[int] | None = None,
        operations: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        self._log, self._tables = changelog, tables
        self._operations = None if operations is None else np.array([each in operations for each in OPERATIONS])
        self._truncates = operations is None or "TRUNCATE" in operations
        self._start = start
        self._after: Place = (0, -1, 0)
        self._next: int | None = None
        """number of the manifest to read next"""
        self._reached: Lsn | None = None
        self._look()

    @property
    def group(self) -> str:
        return self._log.group

    def new(self) -> Iterator[Events]:
        """All that the log has and was not given yet."""
        newest = self._look()
        while newest is not None and self._next is not None and self._next <= newest:
            yield from self._manifest(self._next)
            self._next += 1

    def _look(self) -> int | None:
        """The number of the newest manifest; None if the group has no log."""
        if not self._log.started:
            return None
        last = self._log.last()
        newest = last.number if last is not None else self._log.stretch.manifest - 1
        if self._next is None:
            self._next = self._first(newest)
        return newest

    def _first(self, newest: int) -> int:
        if self._start == NOW:
            self._reached = self._log.position()
            return newest + 1
        if self._start == BEGINNING:
            return self._log.oldest()
        assert isinstance(self._start, EventPosition)
        self._after, self._reached = self._start.last, self._start.lsn
        return self._holding(self._start)

    def _holding(self, start: EventPosition) -> int:
        """The manifest that holds a position, or the first after it."""
        starts = self._log.starts
        stretch = starts[-1].manifest if start.stretch is None else start.stretch
        if stretch not in [each.manifest for each in starts]:
            raise PositionUnknown(group=self.group, position=str(start))
        following = [each.manifest for each in starts if each.manifest > stretch]
        while True:
            oldest, last = self._log.oldest(), self._log.last()
            begin = max(oldest, stretch)
            end = following[0] if following else (stretch if last is None else last.number + 1)
            if begin >= end:
                # Nothing of the stretch is kept, or it has no manifest yet.
                known = starts[-1].lsn if not following else None
                if known is None or start.lsn < known:
                    raise self._gone(start.lsn)
                return begin
            try:
                if start.lsn < self._log.read(begin).from_lsn:
                    raise self._gone(start.lsn)
                return self._search(begin, end, start.lsn)
            except ChangeLogDamaged:
                if begin >= self._log.oldest():
                    raise

    def _search(self, begin: int, end: int, lsn: Lsn) -> int:
        """The first manifest from `begin` on that ends above a position, else the one at `end`."""
        while begin < end:
            middle = (begin + end) // 2
            if self._log.read(middle).to_lsn > lsn:
                end = middle
            else:
                begin = middle + 1
        return begin

    def _gone(self, since: Lsn) -> EventsGone:
        """What was asked for next is missing; the log goes on with the oldest manifest that is kept."""
        oldest = self._log.oldest()
        last = self._log.last()
        stretch = next(each for each in reversed(self._log.starts) if each.manifest <= oldest)
        to_lsn = stretch.lsn if last is None else self._log.read(oldest).from_lsn
        resume = EventPosition(to_lsn, stretch=stretch.manifest)
        return EventsGone(group=self.group, since=str(since), to=str(to_lsn), position=str(resume))

    def _manifest(self, number: int) -> Iterator[Events]:
        try:
            manifest = self._log.read(number)
            starts = {each.manifest: each for each in self._log.starts}
            if number in starts and self._reached is not None and number != min(starts):
                resume = EventPosition(manifest.from_lsn, stretch=number)
                raise EventsGone(
                    group=self.group, since=str(self._reached), to=str(manifest.from_lsn), position=str(resume)
                )
            self._reached = max(self._reached or manifest.from_lsn, manifest.from_lsn)
            yield from self._merged(manifest, max(each for each in starts if each <= number))
            self._reached, self._after = manifest.to_lsn, (0, -1, 0)
        except (ChangeLogDamaged, FileNotFoundError):
            if number >= self._log.oldest():
                raise
            if self._reached is not None:
                raise self._gone(self._reached) from None
            # The beginning is wherever the log begins when it is read.
            self._next = self._log.oldest() - 1

    def _merged(self, manifest: Manifest, stretch: int) -> Iterator[Events]:
        cuts = [cut for cut in manifest.tables.values() if self._tables is None or cut.oid in self._tables]
        large = sum(segment.bytes > _SMALL_BYTES for cut in cuts for segment in cut.segments)
        most_bytes = max(_LEAST_BYTES, min(_PART_BYTES, _MOST_BYTES // max(large, 1)))
        singles = sorted((each for cut in cuts for each in self._singles(cut)), key=lambda each: each.place)
        sources = [_Source(parts) for cut in cuts for parts in self._parts(cut, most_bytes)]
        for runs, some in _interleaved(sources, singles):
            yield Events(self.group, stretch, runs, some, _order(runs, some))

    def _singles(self, cut: ManifestEntry) -> Iterator[Single]:
        table = TableId.parse(cut.name)
        refused = min(cut.refusals, key=lambda each: (each.commit_lsn, each.seq), default=None)
        found = [] if refused is None else [Single(table, refused, cut.oid)]
        if self._truncates:
            found += [
                Single(table, each, each.relation or cut.oid)
                for each in cut.truncations
                if refused is None or each.commit_lsn < refused.commit_lsn
            ]
        yield from (each for each in found if each.place > self._after)

    def _parts(self, cut: ManifestEntry, most_bytes: int) -> Iterator[Iterator[CapturedRows]]:
        # From the transaction of a refused change on, values may be missing that the segment has no place for.
        refused = min((refusal.commit_lsn for refusal in cut.refusals), default=None)
        table = TableId.parse(cut.name)
        for segment in cut.segments:
            read = read_rows(self._log, cut.oid, table, segment, most_bytes)
            parts = (self._kept(part, refused) for part in read)
            # Small ones are read at once, so that any number of tables needs few open files.
            yield iter(list(parts)) if segment.bytes <= _SMALL_BYTES else parts

    def _kept(self, part: CapturedRows, refused: Lsn | None) -> CapturedRows:
        lsn, seq, _ = self._after
        kept = (part.lsn > lsn) | ((part.lsn == lsn) & (part.seq > seq))
        if refused is not None:
            kept &= part.lsn < refused
        if self._operations is not None:
            kept &= self._operations[part.operation]
        return part.where(kept)


class _Source:
    """The changes of one segment: the part that is at hand, and whether there are more."""

    def __init__(self, parts: Iterator[CapturedRows]) -> None:
        self._parts = parts
        self.part = next(parts, None)
        self._following = next(parts, None) if self.part is not None else None
        self.begin = 0
        self._skip_empty()

    @property
    def more(self) -> bool:
        return self._following is not None

    @property
    def last(self) -> tuple[int, int]:
        assert self.part is not None
        return int(self.part.lsn[-1]), int(self.part.seq[-1])

    def upto(self, lsn: int, seq: int) -> Run | None:
        """Take what is not behind a place."""
        part = self.part
        if part is None:
            return None
        low, high = np.searchsorted(part.lsn, lsn, "left"), np.searchsorted(part.lsn, lsn, "right")
        end = int(low + np.searchsorted(part.seq[low:high], seq, "right"))
        return self._take(part, end)

    def rest(self) -> Run | None:
        return None if self.part is None else self._take(self.part, len(self.part))

    def _take(self, part: CapturedRows, end: int) -> Run | None:
        run = Run(part, self.begin, end) if end > self.begin else None
        self.begin = max(end, self.begin)
        self._skip_empty()
        return run

    def _skip_empty(self) -> None:
        while self.part is not None and self.begin >= len(self.part):
            self.part, self.begin = self._following, 0
            self._following = next(self._parts, None) if self.part is not None else None


def _interleaved(
    sources: Sequence[_Source], singles: Sequence[Single]
) -> Iterator[tuple[Sequence[Run], Sequence[Single]]]:
    """All changes in steps, each before those of the next; what a step has is in no order over the tables."""
    while sources := [source for source in sources if source.part is not None]:
        bounds = [source.last for source in sources if source.more]
        if not bounds:
            # Each is at its last part.
            runs = [source.rest() for source in sources]
            some, singles = singles, ()
        else:
            lsn, seq = min(bounds)
            runs = [source.upto(lsn, seq) for source in sources]
            some = [single for single in singles if single.place[:2] <= (lsn, seq)]
            singles = singles[len(some) :]
        yield [run for run in runs if run is not None], some
    if singles:
        yield [], singles


def _order(runs: Sequence[Run], singles: Sequence[Single]) -> Numbers | None:
    if len(runs) == 1 and not singles:
        return None
    lsn = np.concatenate([*(run.part.lsn[run.begin : run.end] for run in runs), [each.place[0] for each in singles]])
    seq = np.concatenate([*(run.part.seq[run.begin : run.end] for run in runs), [each.place[1] for each in singles]])
    sub = np.zeros(len(lsn), np.int64)
    sub[len(lsn) - len(singles) :] = [each.sub for each in singles]
    return np.lexsort((sub, seq.astype(np.int64), lsn.astype(np.int64)))


def parse_start(text: str) -> Start:
    """`beginning`, `now` or a position."""
    word = text.strip().lower()
    try:
        return word if word in (BEGINNING, NOW) else EventPosition.parse(text)
    except ValueError:
        allowed = "beginning, now, an LSN such as 0/16B3748, or the _position of an event"
        raise ConfigError(field="--from", cause=f"{text!r} is no position", allowed=allowed) from None


def parse_operations(texts: Collection[str]) -> frozenset[str] | None:
    """The operations to show; None: all."""
    known = (*OPERATIONS, "TRUNCATE")
    for text in texts:
        if text.upper() not in known:
            raise ConfigError(field="--op", cause=f"{text!r} is no operation", allowed=", ".join(known).lower())
    return frozenset(text.upper() for text in texts) or None


def chosen(logs: Sequence[ChangeLog], group: str | None) -> Sequence[ChangeLog]:
    """The logs of a group; None: of all."""
    found = [log for log in logs if group in (None, log.group)]
    if not found:
        known = ", ".join(log.group for log in logs)
        raise ConfigError(field="--group", cause=f"{group!r} is no group", allowed=f"one of: {known}")
    return found


def one_log(logs: Sequence[ChangeLog], start: Start) -> Sequence[ChangeLog]:
    """The logs; of a position there is one, because each group has a stream of its own."""
    if isinstance(start, EventPosition) and len(logs) > 1:
        names = [log.group for log in logs]
        raise CommandRefused(
            object=f"--from {start}", cause=f"a position is one of a group, and there are {' and '.join(names)}",
            remedy=f"name the group that it is from: wal2lake tail --format flat --from {start} --group {names[0]}",
        )  # fmt: skip
    return logs


def follow(logs: Sequence[EventLog], stop: Event | None) -> Iterator[Events]:
    """What the logs have, then each new event until `stop`; without it no new ones."""
    while True:
        for each in logs:
            yield from each.new()
        if stop is None or stop.wait(LOOK_SECONDS):
            return
