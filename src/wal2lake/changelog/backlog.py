"""The manifests that tables still need: a queue for each table, and which manifests can be deleted.

    change log ──► read ──► a queue for each table ──► applied ──► retired when no table needs it

The cost is proportional to what arrives and what is deleted; a table that no manifest names costs nothing. A table may
have been paused for days, so only number and size of each manifest are in memory. A manifest is read when a batch is
planned, and long backlogs are read over several turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ChangeLogDamaged
from ..position import ZERO, Lsn
from .manifest import Manifest
from .retention import Retention
from .store import ChangeLog

READ_AT_ONCE = 1000
"""manifests that are read per turn"""


class _Part(NamedTuple):
    """The part of a manifest that is about one table."""

    number: int
    bytes: int


class _Kept(NamedTuple):
    """A manifest that is not retired, and the tables that it names."""

    number: int
    to_lsn: Lsn
    oids: tuple[int, ...]
    bytes: int


class Waiting:
    """What waits for a table: its part of each manifest, in order, read on demand."""

    def __init__(self, log: ChangeLog, oid: int) -> None:
        self._log, self._oid = log, oid
        self._parts: deque[_Part] = deque()
        self.bytes = 0
        """bytes of their segments on disk"""

    def __iter__(self) -> Iterator[Manifest]:
        for part in tuple(self._parts):
            yield self._log.read(part.number).of(self._oid)

    def __len__(self) -> int:
        return len(self._parts)

    def numbers(self) -> tuple[int, ...]:
        """Their numbers, on any thread: the queue is copied in one step."""
        return tuple(part.number for part in self._parts.copy())

    def add(self, manifest: Manifest) -> None:
        part = _Part(manifest.number, manifest.tables[self._oid].bytes)
        self._parts.append(part)
        self.bytes += part.bytes

    def pass_over(self, number: int) -> None:
        """Remove those up to a number."""
        while self._parts and self._parts[0].number <= number:
            self.bytes -= self._parts.popleft().bytes


class Backlog:
    def __init__(self, log: ChangeLog, clock: Clock = SYSTEM_CLOCK, retention: Retention | None = None) -> None:
        self._log, self._clock = log, clock
        self._retention = retention or Retention(clock=clock)
        self._waiting_bytes = 0
        """what the manifests take that are kept because some table needs them"""
        self._deleting = log.reopened()
        """the same log, for the thread that deletes"""
        self._retired = self._deleted = 0
        self._queues: dict[int, Waiting] = {}
        self._passed: dict[int, int] = {}
        """for each table the number up to which manifests were removed from its queue"""
        self._kept: deque[_Kept] = deque()
        self._as_partition: dict[int, list[tuple[int, int]]] = {}
        """for each partition the manifests that have changes of it, each with the table that these are part of"""
        self._new_partitions: dict[int, int] = {}
        self._named: dict[tuple[int, ...], tuple[int, ...]] = {}
        """one object for all manifests that name the same tables"""
        self._end = self._read_to = ZERO
        self.complete = False
        """whether everything that was published at the last check has been read"""
        self.seen = 0
        """number of the last manifest that was read"""
        self.read_at = 0.0
        """time of that read, by the monotonic clock"""
        self.newest: Manifest | None = None
        """that manifest, without its tables"""

    @property
    def position(self) -> Lsn:
        """Everything that committed below this, and after the log's start, has been read."""
        return self._end if self.complete else self._read_to

    def begin(self, damaged: bool = False) -> None:
        """Start reading at the oldest manifest, or at the start of the new stretch.

        `damaged`: the manifests before that stretch were deleted.
        """
        if damaged:
            self._queues.clear()
            self._kept.clear()
            self._waiting_bytes = 0
            self._as_partition.clear()
            self.seen, self.newest = self._log.stretch.manifest - 1, None
        elif not self.seen:
            self.seen = self._log.oldest() - 1
        last = self._log.last()
        if not self._kept:
            self.complete = last is None or last.number <= self.seen
        self._end = self._log.position()

    def read(self) -> Iterator[tuple[int, Manifest]]:
        """Read new manifests, at most so many; yields each table with its part."""
        manifests = self._log.after(self.seen, READ_AT_ONCE)
        for manifest in manifests:
            oids = tuple(manifest.tables)
            self._kept.append(
                _Kept(manifest.number, manifest.to_lsn, self._named.setdefault(oids, oids), manifest.bytes)
            )
            self._waiting_bytes += manifest.bytes
            self.seen, self._end, self._read_to = manifest.number, manifest.to_lsn, manifest.to_lsn
            self.newest, self.read_at = replace(manifest, tables={}), self._clock.monotonic()
            for cut in manifest.tables.values():
                for leaf in {leaf for segment in cut.segments for leaf in segment.leaves}:
                    self._as_partition.setdefault(leaf, []).append((manifest.number, cut.oid))
                    self._new_partitions.setdefault(leaf, manifest.number)
            for oid in manifest.tables:
                self._queue(oid).add(manifest)
                yield oid, manifest.of(oid)
        self.complete = len(manifests) < READ_AT_ONCE

    def after(self, oid: int, number: int) -> Waiting:
        """A table's manifests above `number`, its position; those up to it are removed from its queue."""
        if number < self._passed.get(oid, 0):
            self._read_again(oid, number)
        self._passed[oid] = number
        queue = self._queues.get(oid)
        if queue is None:
            return Waiting(self._log, oid)
        queue.pass_over(number)
        return queue

    def waiting(self, oid: int) -> Iterator[Manifest]:
        """A table's manifests that were read and are in its queue; for any thread."""
        queue = self._queues.get(oid)
        log = self._log.reopened()
        for number in queue.numbers() if queue is not None else ():
            yield log.read(number).of(oid)

    def partitions_read(self) -> dict[int, int]:
        """The partitions that have changes in what was read since the last call, each with the first manifest."""
        found, self._new_partitions = self._new_partitions, {}
        return found

    def first_as_partition(self, oid: int, number: int) -> int | None:
        """The first manifest above a number that has changes of a table as those of a partition."""
        return next((each for each, _ in self._as_partition.get(oid, ()) if each > number), None)

    def captured_as_partition(self, oid: int, lsn: Lsn) -> bool:
        """Whether changes of a table from a position on are, or may be, part of another one, whose partition it was."""
        try:
            return any(
                commit >= lsn
                for number, root in self._as_partition.get(oid, ())
                for segment in self._log.read(number).tables[root].segments
                if oid in segment.leaves
                for commit in self._log.commits_of(segment, oid)
            )
        except ChangeLogDamaged:
            # The other table is stopped by it.
            return True

    def number_at(self, position: Lsn) -> int:
        """The last manifest that a table at a position has completely; it may have a part of later ones."""
        number = self._kept[0].number - 1 if self._kept else self.seen
        for kept in self._kept:
            if kept.to_lsn > position:
                break
            number = kept.number
        return number

    def retire(self, done: int) -> None:
        """Forget manifests up to `done`: no table needs them."""
        while self._kept and self._kept[0].number <= done:
            number, _, oids, size = self._kept.popleft()
            self._retention.add(number, size)
            self._waiting_bytes -= size
            for oid in oids:
                if (queue := self._queues.get(oid)) is not None:
                    queue.pass_over(number)
                    if not queue:
                        del self._queues[oid]
        for leaf, found in list(self._as_partition.items()):
            if found[0][0] <= done:
                self._as_partition[leaf] = [each for each in found if each[0] > done]
                if not self._as_partition[leaf]:
                    del self._as_partition[leaf]
        if not self._kept:
            self._named.clear()
        self._retired = max(self._retired, self._retention.upto(self._waiting_bytes))

    def has_retired(self) -> bool:
        """Whether there is something to delete."""
        return self._retired > self._deleted

    def delete(self) -> None:
        """Delete retired manifests; for any thread."""
        upto = self._retired
        self._deleting.retire(upto)
        self._deleted = upto

    def _read_again(self, oid: int, number: int) -> None:
        """The lake table has a lower position than was known: queue the manifests that are still there again."""
        self._queues.pop(oid, None)
        for kept in self._kept:
            if kept.number > number and oid in kept.oids:
                self._queue(oid).add(self._log.read(kept.number))

    def _queue(self, oid: int) -> Waiting:
        if (queue := self._queues.get(oid)) is None:
            queue = self._queues[oid] = Waiting(self._log, oid)
        return queue
