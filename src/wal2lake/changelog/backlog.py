"""The manifests that some table still needs: for each table those that name it, and which can go.

    change log ──► read ──► a queue for each table ──► applied ──► retired when no table holds it

Reading costs what has arrived, retiring what goes. A table that no manifest names costs nothing. A table may have been
paused for days, so of each manifest only its number and size are kept in memory; what it holds is read when it is
planned, and many of them are taken in over several turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import NamedTuple

from ..position import ZERO, Lsn
from . import ChangeLog, Manifest

READ_AT_ONCE = 1000
"""manifests that are taken in at a time"""


class _Part(NamedTuple):
    """What a table has in a manifest."""

    number: int
    bytes: int


class _Kept(NamedTuple):
    """A manifest that is not retired, and the tables that it names."""

    number: int
    to_lsn: Lsn
    oids: tuple[int, ...]


class Waiting:
    """What waits for a table: its own part of each manifest, in order, read as it is asked for."""

    def __init__(self, log: ChangeLog, oid: int) -> None:
        self._log, self._oid = log, oid
        self._parts: deque[_Part] = deque()
        self.bytes = 0
        """what their segments take on disk"""

    def __iter__(self) -> Iterator[Manifest]:
        for part in tuple(self._parts):
            yield self._log.read(part.number).of(self._oid)

    def __len__(self) -> int:
        return len(self._parts)

    def numbers(self) -> tuple[int, ...]:
        """Their numbers, from any thread: the queue is copied in one step."""
        return tuple(part.number for part in self._parts.copy())

    def add(self, manifest: Manifest) -> None:
        part = _Part(manifest.number, manifest.tables[self._oid].bytes)
        self._parts.append(part)
        self.bytes += part.bytes

    def pass_over(self, number: int) -> None:
        """Let go of those up to a number."""
        while self._parts and self._parts[0].number <= number:
            self.bytes -= self._parts.popleft().bytes


class Backlog:
    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._deleting = ChangeLog(log.directory.parent, log.group)
        """the same log, for the thread that deletes"""
        self._retired = self._deleted = 0
        self._queues: dict[int, Waiting] = {}
        self._passed: dict[int, int] = {}
        """for each table the number up to which manifests have been taken off its queue"""
        self._kept: deque[_Kept] = deque()
        self._named: dict[tuple[int, ...], tuple[int, ...]] = {}
        """one object for all manifests that name the same tables"""
        self._end = self._read_to = ZERO
        self.complete = False
        """whether all that was published when it was last looked at has been read"""
        self.seen = 0
        """number of the last manifest that was read"""
        self.read_at = 0.0
        """when that was, by the clock that only goes forward"""
        self.newest: Manifest | None = None
        """that manifest, without its tables"""

    @property
    def position(self) -> Lsn:
        """Everything that committed below this, and after the log's start, has been read."""
        return self._end if self.complete else self._read_to

    def begin(self, damaged: bool = False) -> None:
        """Start reading at the oldest manifest that is kept, or at the log's new stretch.

        `damaged`: the manifests before that stretch are gone.
        """
        if damaged:
            self._queues.clear()
            self._kept.clear()
            self.seen, self.newest = self._log.stretch.manifest - 1, None
        elif not self.seen:
            self.seen = self._log.oldest() - 1
        last = self._log.last()
        if not self._kept:
            self.complete = last is None or last.number <= self.seen
        self._end = self._log.position()

    def read(self) -> Iterator[tuple[int, Manifest]]:
        """Take in what was published since, or some of it; each table that is named, with its own part."""
        manifests = self._log.after(self.seen, READ_AT_ONCE)
        for manifest in manifests:
            oids = tuple(manifest.tables)
            self._kept.append(_Kept(manifest.number, manifest.to_lsn, self._named.setdefault(oids, oids)))
            self.seen, self._end, self._read_to = manifest.number, manifest.to_lsn, manifest.to_lsn
            self.newest, self.read_at = replace(manifest, tables={}), monotonic()
            for oid in manifest.tables:
                self._queue(oid).add(manifest)
                yield oid, manifest.of(oid)
        self.complete = len(manifests) < READ_AT_ONCE

    def after(self, oid: int, number: int) -> Waiting:
        """A table's manifests above `number`, which it has; those up to it are dropped."""
        if number < self._passed.get(oid, 0):
            self._read_again(oid, number)
        self._passed[oid] = number
        queue = self._queues.get(oid)
        if queue is None:
            return Waiting(self._log, oid)
        queue.pass_over(number)
        return queue

    def waiting(self, oid: int) -> Iterator[Manifest]:
        """A table's manifests that were read and not dropped, from any thread."""
        queue = self._queues.get(oid)
        log = ChangeLog(self._log.directory.parent, self._log.group)
        for number in queue.numbers() if queue is not None else ():
            yield log.read(number).of(oid)

    def number_at(self, position: Lsn) -> int:
        """The last manifest that a table at a position has all of; later ones may hold some that it has."""
        number = self._kept[0].number - 1 if self._kept else self.seen
        for kept in self._kept:
            if kept.to_lsn > position:
                break
            number = kept.number
        return number

    def retire(self, done: int) -> None:
        """Forget manifests up to `done`: no table needs them."""
        while self._kept and self._kept[0].number <= done:
            number, _, oids = self._kept.popleft()
            self._retired = number
            for oid in oids:
                if (queue := self._queues.get(oid)) is not None:
                    queue.pass_over(number)
                    if not queue:
                        del self._queues[oid]
        if not self._kept:
            self._named.clear()

    def has_retired(self) -> bool:
        """Whether there is anything to delete."""
        return self._retired > self._deleted

    def delete(self) -> None:
        """Delete what is retired, from any thread."""
        upto = self._retired
        self._deleting.retire(upto)
        self._deleted = upto

    def _read_again(self, oid: int, number: int) -> None:
        """The lake table says that it has less than was known: what is still kept is there for it again."""
        self._queues.pop(oid, None)
        for kept in self._kept:
            if kept.number > number and oid in kept.oids:
                self._queue(oid).add(self._log.read(kept.number))

    def _queue(self, oid: int) -> Waiting:
        if (queue := self._queues.get(oid)) is None:
            queue = self._queues[oid] = Waiting(self._log, oid)
        return queue
