"""From messages to manifests: decoding, writing and publishing run on their own threads, beside the reading thread.

    reading thread ── take ──► plan ──► decode ──► segments grow (writers) ────┐
                   └─ publish ───────────────────► segments are finished ──────┴─► manifest ──► published()

A transaction that is streamed before its commit is decoded speculatively, into segments of its own; the commit is
stamped into them when it arrives. If a speculative result is doubtful, it is discarded and the spool is decoded.

Manifests are published in the order of their requests and hold whole transactions only. The bytes in the pipeline are
bounded: while `full`, the reading thread must not read. An error on any thread is raised by `published`; what was not
published by then is read from the source again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from .. import faults
from ..changelog import ChangeLog, CommitStamp, Manifest, SegmentWriter
from ..decode import (
    SLICE_BYTES,
    STREAM_EPOCH_US,
    Boundary,
    Decoder,
    Messages,
    Relation,
    Target,
    Undecoded,
    batch_schema,
    slice_bytes,
    slices,
)
from ..errors import SourceError
from ..executor import SYSTEM_EXECUTOR, Executor, Future, Queue
from ..position import Lsn
from ..schema import Membership
from .open_segments import GrowingSegment, OpenSegments, tables_of
from .streamed_transactions import Streamed, plain

log = logging.getLogger(__name__)

MOST_BYTES = 40 * 1024 * 1024
"""raw bytes that may be in the pipeline; the process needs a multiple of this in memory"""
SEGMENT_BYTES = 128 * 1024 * 1024
"""raw bytes after which a new segment of a table is started"""
WRITERS = 2
_MAX_DECODED = 3
"""slices that may be decoded and not yet written"""


class Relations(Protocol):
    """Finds the target of a relation, and has the names of the tables that it found."""

    names: dict[int, str]
    attached: dict[int, tuple[Membership, ...]]

    def __call__(self, relation: Relation, commit_lsn: Lsn) -> Target | None: ...
    def resolve_at_once(self, relation: Relation) -> Target | None:
        """The same for a transaction that has not committed. Raises SourceError if it can't be decided at once."""

    def doubts(self, upto: Lsn) -> Mapping[int, frozenset[int]]: ...


@dataclass(frozen=True)
class Published:
    """Everything that committed below `cut.to_lsn` is durable."""

    cut: Boundary
    manifest: Manifest | None
    """None if no transaction had a row of a mirrored table"""


@dataclass
class _Line:
    """Consecutive messages, and the segments that they go into."""

    decoder: Decoder
    assembly: OpenSegments = field(default_factory=OpenSegments)
    speculative: bool = False


class _Targets:
    """The targets of a transaction's relations, as they were found before its commit."""

    def __init__(self, resolver: Relations) -> None:
        self._resolver = resolver
        self._answers: dict[Relation, Target | None] = {}

    def __call__(self, relation: Relation, _: Lsn) -> Target | None:
        if any(other.oid == relation.oid and other != relation for other in self._answers):
            raise SourceError(operation="speculative decoding", cause="a table was altered in the transaction")
        target = self._answers[relation] = self._resolver.resolve_at_once(relation)
        return target

    def still_hold(self, commit_lsn: Lsn) -> bool:
        """Whether the same targets are found after its commit."""
        return all(self._resolver(relation, commit_lsn) == target for relation, target in self._answers.items())


@dataclass
class _Speculative:
    """A transaction that is decoded before its commit."""

    line: _Line
    targets: _Targets
    messages: int = 0


class Pipeline:
    """Methods are for the reading thread. `wake` is readable after something was published, failed, or made room."""

    def __init__(
        self, log: ChangeLog, resolver: Relations, position: Lsn, binary: bool = False,
        executor: Executor = SYSTEM_EXECUTOR, token: Callable[[Lsn], str | None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`token`: what a stream resumes from at a position, where that alone does not say it."""
        self._token = token
        self._log, self._resolver, self._binary = log, resolver, binary
        self._line = _Line(Decoder(resolver, position, binary))
        self._speculative: dict[int, _Speculative | None] = {}
        """open transactions by xid; None: not decoded speculatively"""
        self._jobs: Queue[Callable[[], None] | None] = executor.queue()
        self._state = executor.condition()
        self._bytes = 0
        self._decoded = 0
        self._done: deque[Published] = deque()
        self._failure: BaseException | None = None
        self._ending = False
        self._kept_back = 0
        """requests to report an empty position that found something to publish"""
        self.publishing = 0
        """manifests that were requested and are not published"""
        self._wakeup = executor.wakeup()
        self.wake = self._wakeup.fileno()
        self._writers = [executor.pool("segment", 1) for _ in range(WRITERS)]
        self._converter = executor.pool("convert", 1)
        self._next_writer = 0
        self._unpublished: set[GrowingSegment] = set()
        self._publisher = executor.pool("manifest", 1)
        self._decoding = executor.start("decode", self._work, daemon=True)

    @property
    def full(self) -> bool:
        """Whether the pipeline has reached its bound."""
        return self._bytes >= MOST_BYTES

    @property
    def idle(self) -> bool:
        """Whether everything taken is written."""
        return not self._bytes

    @property
    def unpublished_bytes(self) -> int:
        """Bytes on disk of segments that no manifest names."""
        return sum(each.writer.bytes for each in tuple(self._unpublished))

    def take(self, parts: Sequence[Messages], certain: bool = True) -> None:
        """Take messages that continue those before. `certain` is false for a transaction that has not committed."""
        size, messages = sum(part.size for part in parts), sum(len(part) for part in parts)
        self._grow(size)
        waiting, most = deque(parts), slice_bytes(size, messages)
        self._jobs.put(lambda: self._decode_all(_emptied(waiting), most, certain))

    def take_streamed(self, transaction: Streamed) -> None:
        """Take a spooled transaction that has committed. Its files are deleted when its rows are in segments."""
        self._jobs.put(lambda: self._decode_streamed(transaction))

    def take_speculative(self, xid: int, parts: Sequence[Messages]) -> None:
        """Take messages of a transaction that has not committed, as they are in its blocks, continuing those before."""
        self._grow(sum(part.size for part in parts))
        waiting = deque(parts)
        self._jobs.put(lambda: self._decode_speculatively(xid, waiting))

    def forget(self, xid: int) -> None:
        """Discard what was decoded speculatively of a transaction."""
        self._jobs.put(lambda: self._discard(xid))

    def publish(self) -> None:
        """Publish all transactions that are complete."""
        self.publishing += 1
        self._jobs.put(self._submit_manifest)

    def report_if_empty(self) -> None:
        """If no complete transaction has anything to publish, report their position through `published`."""
        self.publishing += 1
        self._jobs.put(self._report_if_empty)

    def published(self) -> list[Published]:
        """What was published since the last call; raises the error that stopped the pipeline, if any."""
        self._wakeup.clear()
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
        self._decoding.join()
        # Writers wait for decoding, so they end first.
        for threads in (*self._writers, self._converter, self._publisher):
            threads.shutdown(cancel_futures=True)
        for each in self._unpublished:
            each.writer.abandon()
        self._wakeup.close()

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

    def _decode_speculatively(self, xid: int, waiting: deque[Messages]) -> None:
        speculative = self._speculative.setdefault(xid, self._begin_speculative(xid))
        size = sum(part.size for part in waiting)
        if speculative is None or not self._may_go_on():
            self._drop(size)
            return
        speculative.messages += sum(len(part) for part in waiting)
        try:
            self._decode(speculative.line, [plain(part) for part in _emptied(waiting)], False, size)
        except SourceError as error:
            # No error: the transaction is decoded from its spool at its commit.
            log.debug("transaction %d is not decoded speculatively: %s", xid, error)
            self._drop(size)
            self._discard(xid)
            self._speculative[xid] = None

    def _begin_speculative(self, xid: int) -> _Speculative:
        targets = _Targets(self._resolver)
        return _Speculative(_Line(Decoder.speculative(targets, xid, self._binary), speculative=True), targets)

    def _discard(self, xid: int) -> None:
        speculative = self._speculative.pop(xid, None)
        for each in speculative.line.assembly.grown if speculative is not None else ():
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
        """Use the speculative result of a transaction that has committed, if it is complete and valid."""
        speculative = self._speculative.get(transaction.xid)
        if speculative is None or speculative.messages != transaction.messages:
            return False
        if transaction.commit_lsn < self._line.decoder.position or not speculative.targets.still_hold(
            Lsn(transaction.commit_lsn)
        ):
            return False
        del self._speculative[transaction.xid]
        self._line.decoder.append_committed(speculative.line.decoder, transaction.commit)
        commit = CommitStamp(transaction.commit_lsn, transaction.commit_us + STREAM_EPOCH_US)
        self._line.assembly.append_committed(speculative.line.assembly.grown, commit)
        return True

    def _may_go_on(self) -> bool:
        """Wait until the writers have caught up; False if the pipeline is closed."""
        with self._state:
            self._state.wait_for(lambda: self._decoded < _MAX_DECODED or self._over)
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

    def _segment(self, line: _Line, rows: Undecoded, size: int) -> GrowingSegment:
        """The segment for some rows, which grows by `size`."""
        oid, meta = rows.schema.oid, rows.schema.meta
        key, assembly = (oid, rows.version), line.assembly
        segment = assembly.growing.get(key)
        if segment is None or segment.size >= SEGMENT_BYTES:
            if segment is not None and not line.speculative:
                segment.finish()
            stamped = (meta.commit_lsn, meta.commit_ts) if line.speculative else None
            writer = SegmentWriter(self._log, oid, rows.version, batch_schema(rows.schema), stamped)
            segment = GrowingSegment(oid, writer, self._writers[self._next_writer])
            self._next_writer = (self._next_writer + 1) % WRITERS
            self._unpublished.add(segment)
            assembly.growing[key] = segment
            assembly.grown.append(segment)
        segment.size += size
        return segment

    def _written(self, size: int, left: set[int], number: int, write: Future[None]) -> None:
        """When the last table of a slice is written, another slice may be decoded."""
        if not write.cancelled() and (error := write.exception()) is not None:
            self._fail(error)
        with self._state:
            left.discard(number)
            if left:
                return
            self._decoded -= 1
            self._bytes -= size
            self._state.notify_all()
        self._wakeup.set()

    def _grow(self, size: int) -> None:
        with self._state:
            self._bytes += size

    def _drop(self, size: int) -> None:
        """Release bytes from which no row is written."""
        self._grow(-size)
        self._wakeup.set()

    def _report_if_empty(self) -> None:
        if self._line.assembly.empty and not self._line.decoder.has_found:
            # In order, after the manifests that were requested before it.
            self._publisher.submit(self._publish, self._line.decoder.boundary(), [], {}, {}, {})
            return
        with self._state:
            self._kept_back += 1
        self._wakeup.set()

    def _submit_manifest(self) -> None:
        cut, segments = self._line.decoder.boundary(), self._line.assembly.take()
        names, attached = dict(self._resolver.names), dict(self._resolver.attached)
        doubts = self._resolver.doubts(cut.to_lsn)
        self._publisher.submit(self._publish, cut, segments, names, attached, doubts)

    def _publish(
        self, cut: Boundary, segments: list[GrowingSegment], names: dict[int, str],
        attached: dict[int, tuple[Membership, ...]], doubts: Mapping[int, frozenset[int]],
    ) -> None:  # fmt: skip
        try:
            tables = tables_of(cut, segments, names, attached, doubts)
            manifest = None
            if self._over:
                return
            if tables:
                faults.reached(faults.SEGMENT_WRITTEN)
                manifest = self._log.publish(
                    cut.to_lsn, cut.transactions, cut.commit_ts, tables, self._token(cut.to_lsn)
                )
                faults.reached(faults.MANIFEST_PUBLISHED)
        except BaseException as error:
            self._fail(error)
            return
        self._unpublished.difference_update(segments)
        with self._state:
            self._done.append(Published(cut, manifest))
        self._wakeup.set()

    def _fail(self, error: BaseException) -> None:
        with self._state:
            self._failure = self._failure or error
            self._state.notify_all()
        self._wakeup.set()


def _emptied(parts: deque[Messages]) -> Iterator[Messages]:
    """The parts, each freed as soon as it is decoded."""
    while parts:
        yield parts.popleft()
