"""From messages to manifests, beside the thread that reads: decode, write, publish, each on threads of its own.

    reading thread ── take ──► sorted out ──► converted ──► segments grow (writers) ──┐
                   └─ publish ─────────────────────────► they are finished, on disk ──┴─► manifest ──► published()

A transaction that is streamed while it runs is decoded ahead, into segments of its own; its commit is entered into
them when it comes. Should anything make that doubtful, they are thrown away and it is decoded from its spool.

Manifests are published in the order in which they were asked for, and hold whole transactions only. What is on its way
is bounded by its bytes: `full` asks the reading thread to wait. An error of any thread comes out of `published`; what
had not been published by then does not count, and is read again.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from .. import faults
from ..changelog import ChangeLog, Manifest, stamp
from ..changelog.segment import SegmentWriter
from ..decode import (
    SLICE_BYTES,
    Cut,
    Decoder,
    Messages,
    Relation,
    Target,
    Undecoded,
    batch_schema,
    slice_bytes,
    slices,
)
from ..decode.messages import STREAM_EPOCH_US
from ..errors import SourceError
from ..position import Lsn
from .open_segments import OpenSegment, OpenSegments, tables_of
from .streamed_transactions import Streamed, plain

log = logging.getLogger(__name__)

MOST_BYTES = 40 * 1024 * 1024
"""raw bytes that may be on their way to a segment; several times that is what the process takes"""
SEGMENT_BYTES = 128 * 1024 * 1024
"""raw bytes after which a table's next segment begins"""
WRITERS = 2
_DECODED_AHEAD = 3
"""slices that may be decoded and not yet written"""


class Resolver(Protocol):
    """What the decoder asks, and the names of the tables that it was asked for."""

    names: dict[int, str]

    def __call__(self, relation: Relation) -> Target | None: ...
    def glance(self, relation: Relation) -> Target | None:
        """The same while the transaction runs that describes it. Raises SourceError if that can't be said at once."""


@dataclass(frozen=True)
class Published:
    """Everything that committed below `cut.to_lsn` is durable."""

    cut: Cut
    manifest: Manifest | None
    """None where no transaction held a row of ours"""


@dataclass
class _Line:
    """Messages that follow each other, and the segments that come of them."""

    decoder: Decoder
    assembly: OpenSegments = field(default_factory=OpenSegments)
    ahead: bool = False


class _Targets:
    """Where the rows of a running transaction went, by what was said while it ran."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._told: dict[Relation, Target | None] = {}

    def __call__(self, relation: Relation) -> Target | None:
        if any(other.oid == relation.oid and other != relation for other in self._told):
            raise SourceError(operation="decoding ahead", cause="a table was altered in the transaction")
        target = self._told[relation] = self._resolver.glance(relation)
        return target

    def still_hold(self) -> bool:
        """Whether the same is said now that it has committed."""
        return all(self._resolver(relation) == target for relation, target in self._told.items())


@dataclass
class _Ahead:
    """A running transaction that is decoded ahead."""

    line: _Line
    targets: _Targets
    messages: int = 0


class Pipeline:
    """Methods are for the reading thread. `wake` is readable when something was published, failed, or made room."""

    def __init__(self, log: ChangeLog, resolver: Resolver, position: Lsn, binary: bool = False) -> None:
        self._log, self._resolver, self._binary = log, resolver, binary
        self._line = _Line(Decoder(resolver, position, binary))
        self._ahead: dict[int, _Ahead | None] = {}
        """running transactions by xid; None: no longer decoded ahead"""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._bytes = 0
        self._decoded = 0
        self._done: deque[Published] = deque()
        self._failure: BaseException | None = None
        self._ending = False
        self._kept_back = 0
        """questions whether there is anything to publish that were answered with yes"""
        self.publishing = 0
        """manifests that were asked for and have not come out"""
        self._signalled, self._signal = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.wake = self._signalled
        self._writers = [ThreadPoolExecutor(1, "segment") for _ in range(WRITERS)]
        self._converter = ThreadPoolExecutor(1, "convert")
        self._next_writer = 0
        self._unpublished: set[OpenSegment] = set()
        self._publisher = ThreadPoolExecutor(1, "manifest")
        self._thread = threading.Thread(target=self._work, name="decode", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether as much is on its way as may be."""
        return self._bytes >= MOST_BYTES

    @property
    def idle(self) -> bool:
        """Whether all that was taken is written."""
        return not self._bytes

    @property
    def unpublished_bytes(self) -> int:
        """What segments that no manifest names yet have on disk."""
        return sum(each.writer.bytes for each in tuple(self._unpublished))

    def take(self, parts: Sequence[Messages], certain: bool = True) -> None:
        """Messages that continue those taken before. Uncertain: of a transaction whose commit has not come."""
        size, messages = sum(part.size for part in parts), sum(len(part) for part in parts)
        self._grow(size)
        waiting, most = deque(parts), slice_bytes(size, messages)
        self._jobs.put(lambda: self._decode_all(_emptied(waiting), most, certain))

    def take_streamed(self, transaction: Streamed) -> None:
        """A transaction that is kept on disk and has committed. Its files go when its rows are in segments."""
        self._jobs.put(lambda: self._decode_streamed(transaction))

    def take_ahead(self, xid: int, parts: Sequence[Messages]) -> None:
        """Messages of a transaction that runs, as they stand in its blocks, which continue those taken before."""
        self._grow(sum(part.size for part in parts))
        waiting = deque(parts)
        self._jobs.put(lambda: self._decode_ahead(xid, waiting))

    def forget(self, xid: int) -> None:
        """What was taken ahead of a transaction does not count."""
        self._jobs.put(lambda: self._discard(xid))

    def publish(self) -> None:
        """Publish all transactions that are complete in what was taken."""
        self.publishing += 1
        self._jobs.put(self._ask_to_publish)

    def pass_over(self) -> None:
        """Say up to where transactions are complete if none of them has anything to publish; `published` has it."""
        self.publishing += 1
        self._jobs.put(self._say_if_nothing)

    def published(self) -> list[Published]:
        """What has been published since the last call; the error that has stopped everything, if there was one."""
        with suppress(BlockingIOError):
            os.read(self._signalled, 4096)
        with self._state:
            if self._failure is not None:
                raise self._failure
            done = list(self._done)
            self._done.clear()
            self.publishing -= len(done) + self._kept_back
            self._kept_back = 0
        return done

    def close(self) -> None:
        """End the threads. What is not published by then never is."""
        with self._state:
            self._ending = True
            self._state.notify_all()
        self._jobs.put(None)
        self._thread.join()
        # Writers wait for what is being converted, so they end first.
        for threads in (*self._writers, self._converter, self._publisher):
            threads.shutdown(cancel_futures=True)
        for each in self._unpublished:
            each.writer.abandon()
        os.close(self._signalled)
        os.close(self._signal)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._ending or self._failure is not None:
                continue
            try:
                job()
            except BaseException as error:
                self._fail(error)

    def _decode_all(self, parts: Iterable[Messages], most_bytes: int, certain: bool) -> None:
        for some in slices(parts, most_bytes):
            if not self._may_go_on():
                return
            self._decode(self._line, some, certain, sum(part.size for part in some))

    def _decode_ahead(self, xid: int, waiting: deque[Messages]) -> None:
        ahead = self._ahead.setdefault(xid, self._begin_ahead(xid))
        size = sum(part.size for part in waiting)
        if ahead is None or not self._may_go_on():
            self._drop(size)
            return
        ahead.messages += sum(len(part) for part in waiting)
        try:
            self._decode(ahead.line, [plain(part) for part in _emptied(waiting)], False, size)
        except SourceError as error:
            # It is no error: at the commit all is looked at again.
            log.debug("transaction %d is not decoded ahead: %s", xid, error)
            self._drop(size)
            self._discard(xid)
            self._ahead[xid] = None

    def _begin_ahead(self, xid: int) -> _Ahead:
        targets = _Targets(self._resolver)
        return _Ahead(_Line(Decoder.ahead(targets, xid, self._binary), ahead=True), targets)

    def _discard(self, xid: int) -> None:
        ahead = self._ahead.pop(xid, None)
        for each in ahead.line.assembly.grown if ahead is not None else ():
            self._unpublished.discard(each)
            each.thread.submit(each.writer.discard)

    def _decode_streamed(self, transaction: Streamed) -> None:
        try:
            if self._take_over(transaction):
                return
            self._discard(transaction.xid)
            for part in transaction.chunks(SLICE_BYTES):
                if not self._may_go_on():
                    return
                self._grow(part.size)
                self._decode(self._line, [part], True, part.size)
        finally:
            transaction.remove()

    def _take_over(self, transaction: Streamed) -> bool:
        """Take what was decoded ahead of a transaction that has committed, if it is all of it and holds."""
        ahead = self._ahead.get(transaction.xid)
        if ahead is None or ahead.messages != transaction.messages:
            return False
        if transaction.commit_lsn < self._line.decoder.position or not ahead.targets.still_hold():
            return False
        del self._ahead[transaction.xid]
        self._line.decoder.adopt(ahead.line.decoder, transaction.commit)
        commit = stamp.Commit(transaction.commit_lsn, transaction.commit_us + STREAM_EPOCH_US)
        self._line.assembly.adopt(ahead.line.assembly.grown, commit)
        return True

    def _may_go_on(self) -> bool:
        """Wait until the writers have caught up; whether anybody still wants what would come."""
        with self._state:
            self._state.wait_for(lambda: self._decoded < _DECODED_AHEAD or self._over)
            return not self._over

    @property
    def _over(self) -> bool:
        return self._ending or self._failure is not None

    def _decode(self, line: _Line, some: Sequence[Messages], certain: bool, size: int) -> None:
        line.assembly.turn(certain)
        tables = line.decoder.plan(some, certain)
        with self._state:
            self._decoded += bool(tables)
        if not tables:
            self._drop(size)
            return
        left = set(range(len(tables)))
        for number, rows in enumerate(tables):
            segment = self._segment(line, rows, size // len(tables))
            written = segment.take(self._converter.submit(rows.decode))
            written.add_done_callback(partial(self._written, size, left, number))

    def _segment(self, line: _Line, rows: Undecoded, size: int) -> OpenSegment:
        """The segment that some rows go to, which grows by so much."""
        oid, meta = rows.schema.oid, rows.schema.meta
        key, assembly = (oid, rows.version), line.assembly
        segment = assembly.growing.get(key)
        if segment is None or segment.size >= SEGMENT_BYTES:
            if segment is not None and not line.ahead:
                segment.finish()
            stamped = (meta.commit_lsn, meta.commit_ts) if line.ahead else None
            writer = SegmentWriter(self._log, oid, rows.version, batch_schema(rows.schema), stamped)
            segment = OpenSegment(oid, writer, self._writers[self._next_writer])
            self._next_writer = (self._next_writer + 1) % WRITERS
            self._unpublished.add(segment)
            assembly.growing[key] = segment
            assembly.grown.append(segment)
        segment.size += size
        return segment

    def _written(self, size: int, left: set[int], number: int, write: Future[None]) -> None:
        """The last table of a slice makes room for another slice."""
        if not write.cancelled() and (error := write.exception()) is not None:
            self._fail(error)
        with self._state:
            left.discard(number)
            if left:
                return
            self._decoded -= 1
            self._bytes -= size
            self._state.notify_all()
        self._tell()

    def _grow(self, size: int) -> None:
        with self._state:
            self._bytes += size

    def _drop(self, size: int) -> None:
        """Bytes that nothing is written of are no longer on their way."""
        self._grow(-size)
        self._tell()

    def _say_if_nothing(self) -> None:
        if self._line.assembly.empty and not self._line.decoder.has_found:
            # After the manifests that were asked for before it.
            self._publisher.submit(self._publish, self._line.decoder.boundary(), [], {})
            return
        with self._state:
            self._kept_back += 1
        self._tell()

    def _ask_to_publish(self) -> None:
        cut, segments = self._line.decoder.boundary(), self._line.assembly.take()
        names = dict(self._resolver.names)
        self._publisher.submit(self._publish, cut, segments, names)

    def _publish(self, cut: Cut, segments: list[OpenSegment], names: dict[int, str]) -> None:
        try:
            tables = tables_of(cut, segments, names)
            manifest = None
            if self._over:
                return
            if tables:
                faults.reached(faults.SEGMENT_WRITTEN)
                manifest = self._log.publish(cut.to_lsn, cut.transactions, cut.commit_ts, tables)
                faults.reached(faults.MANIFEST_PUBLISHED)
        except BaseException as error:
            self._fail(error)
            return
        self._unpublished.difference_update(segments)
        with self._state:
            self._done.append(Published(cut, manifest))
        self._tell()

    def _fail(self, error: BaseException) -> None:
        with self._state:
            self._failure = self._failure or error
            self._state.notify_all()
        self._tell()

    def _tell(self) -> None:
        # A full pipe is as readable as can be.
        with suppress(BlockingIOError):
            os.write(self._signal, b"x")


def _emptied(parts: deque[Messages]) -> Iterator[Messages]:
    """Each part is freed when it is decoded, not when all are."""
    while parts:
        yield parts.popleft()
