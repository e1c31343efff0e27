"""The manifests that some table still needs: for each table those that name it, and which can go.

    change log ──► read ──► a queue for each table ──► applied ──► retired when no table holds it

Reading costs what has arrived, retiring what goes. A table that no manifest names costs nothing, and of a manifest
nothing is kept in memory but the parts that are not applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic

from ..changelog import ChangeLog, Manifest
from ..position import ZERO, Lsn


class Backlog:
    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._deleting = ChangeLog(log.directory.parent, log.group)
        """the same log, for the thread that deletes"""
        self._retired = self._deleted = 0
        self._queues: dict[int, deque[Manifest]] = {}
        self._passed: dict[int, int] = {}
        """for each table the number up to which manifests have been taken off its queue"""
        self._kept: deque[tuple[int, tuple[int, ...]]] = deque()
        """number and tables of each manifest that is not retired"""
        self.seen = 0
        """number of the last manifest that was read"""
        self.read_at = 0.0
        """when that was, by the clock that only goes forward"""
        self.newest: Manifest | None = None
        """that manifest, without its tables"""
        self.position: Lsn = ZERO
        """everything that committed below this, and after the log's start, has been read"""

    def begin(self) -> None:
        """Start reading at the oldest manifest that is kept, or at the log's new stretch."""
        if not self.seen:
            self.seen = self._log.oldest() - 1
        self.position = self._log.position()

    def read(self) -> Iterator[tuple[int, Manifest]]:
        """Take in what was published since; each table that is named, with its own part of the manifest."""
        for manifest in self._log.after(self.seen):
            self._kept.append((manifest.number, tuple(manifest.tables)))
            self.seen, self.position = manifest.number, manifest.to_lsn
            self.newest, self.read_at = replace(manifest, tables={}), monotonic()
            for oid in manifest.tables:
                part = manifest.of(oid)
                self._queues.setdefault(oid, deque()).append(part)
                yield oid, part

    def after(self, oid: int, number: int) -> Sequence[Manifest]:
        """A table's manifests above `number`, which it has; those up to it are let go."""
        if number < self._passed.get(oid, 0):
            self._read_again(oid, number)
        queue = self._queues.get(oid)
        while queue and queue[0].number <= number:
            queue.popleft()
        self._passed[oid] = number
        return queue or ()

    def number_at(self, position: Lsn) -> int:
        """The last manifest that a table at a position has all of; later ones may hold some that it has."""
        number = self._kept[0][0] - 1 if self._kept else self.seen
        for kept, _ in self._kept:
            if self._log.read(kept).to_lsn > position:
                break
            number = kept
        return number

    def retire(self, done: int) -> None:
        """Forget manifests up to `done`: no table needs them."""
        while self._kept and self._kept[0][0] <= done:
            number, oids = self._kept.popleft()
            self._retired = number
            for oid in oids:
                queue = self._queues.get(oid)
                while queue and queue[0].number <= number:
                    queue.popleft()
                if not queue:
                    self._queues.pop(oid, None)

    def has_rubbish(self) -> bool:
        """Whether there is anything to delete."""
        return self._retired > self._deleted

    def delete(self) -> None:
        """Delete what is retired, from any thread."""
        upto = self._retired
        self._deleting.retire(upto)
        self._deleted = upto

    def _read_again(self, oid: int, number: int) -> None:
        """The lake table says that it has less than was known: what is still kept is there for it again."""
        numbers = [kept for kept, oids in self._kept if kept > number and oid in oids]
        self._queues[oid] = deque(self._log.read(each).of(oid) for each in numbers)
