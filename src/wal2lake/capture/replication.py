"""One replication stream, followed: the thread that reads, acknowledges, reports, and never waits for the disk.

    read ─► (streamed transactions aside) ─► intake ─► pipeline ─► published ─► acknowledge

Nothing is acknowledged that is not durable, and nothing in the middle of a transaction. Reading pauses where too much
is on its way or the change log is full; the server holds the rest, and is told that we live.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ..changelog.budget import RECHECK_SECONDS, Budget
from ..decode import Intake, Messages
from ..errors import ConnectionFailed, SourceError
from ..position import Lsn
from ..source import Connection, alive, connect, mark, wal_end
from ..source.stream import ReplicationStream
from .pipeline import Pipeline, Published
from .relations import Resolver
from .speculative import Ahead
from .spool import Spools
from .streamed_transactions import Demultiplexer, Streamed

if TYPE_CHECKING:
    from .worker import CaptureWorker

log = logging.getLogger(__name__)

IDLE_ACKNOWLEDGE_SECONDS = 0.5
"""what is without a row of ours is acknowledged so often: once a second is promised, and the pipeline may be busy"""
_SOON = IDLE_ACKNOWLEDGE_SECONDS / 2
"""seconds between two acknowledgements at least: each is noted on disk first"""
REPORT_SECONDS = 0.1
LASTING_SECONDS = 30.0
"""a session without anything to do for so long is a good one"""
REOPEN_LOOK_SECONDS = 1.0
STOP_SECONDS = 5.0
"""what is complete is published within this time after a stop, or comes again"""
_MOST_PUBLISHING = 2
"""manifests on their way; while they are, the next one grows"""


class Session:
    """One stream, one decoder: from a position until the connection or the worker ends."""

    def __init__(self, worker: CaptureWorker, stream: ReplicationStream, start: Lsn) -> None:
        self._worker, self._stream = worker, stream
        self._log = worker.changelog
        self._resolver = Resolver(worker.config.source, worker.group.name, self._log, worker.config.tables)
        self._budget = Budget(self._log, worker.config.changelog.max_bytes, worker.group.name)
        self._pipeline = Pipeline(self._log, self._resolver, self._log.position(), stream.binary)
        self._spools = Spools(self._log.directory / "spool")
        self._ahead = Ahead(self._pipeline)
        self._streamed = Demultiplexer(self._spools, self._ahead)
        self._intake = Intake()
        self._wake = (*worker.owner.wake, self._pipeline.wake)
        self._flush_until: Lsn | None = None
        """when all below it has come, what is complete is published at once"""
        self._owes_answer = False
        """whether a flush was requested and its answer has not been sent"""
        self._pending_since: float | None = None
        """since when a complete transaction waits for a manifest to be asked for"""
        self._handed_over = 0
        """bytes of complete transactions that the next manifest has so far"""
        self._logged = start
        self._acknowledged_at = 0.0
        """when a position was last acknowledged that no manifest has"""
        self._passed_at = 0.0
        """when the pipeline was last asked whether it has anything of ours at all"""
        self._control: Connection | None = None
        self._opened = time.monotonic()
        self._beat_at, self._beat_logged = time.monotonic(), start
        self._looked_at = time.monotonic()

    def follow(self) -> None:
        self._worker.streaming(self._log.last(), **self._positions())
        owner = self._worker.owner
        while not owner.stopping:
            self._read()
            if (until := owner.poll_commands()) is not None:
                self._flush_until = until
                self._stream.ask()
            self._hand_over()
            if self._due() or self._flush_requested():
                self._publish()
            elif self._may_pass():
                self._pass_over()
            self._take_published()
            self._advance_idle()
            self._beat()
            if self._idle and time.monotonic() - self._opened > LASTING_SECONDS:
                self._worker.proven()
            self._worker.update(**self._positions())
            if self._reopens():
                break
        self._finish()

    def _reopens(self) -> bool:
        """Whether the stream is to be opened again, with one publication more. Looked at now and then."""
        now = time.monotonic()
        if now - self._looked_at < REOPEN_LOOK_SECONDS:
            return False
        self._looked_at = now
        return self._worker.reopens(self._stream.acknowledged)

    def close(self) -> None:
        self._pipeline.close()
        self._streamed.close()
        self._spools.close()
        self._resolver.close()
        if self._control is not None:
            self._control.close()

    def _read(self) -> None:
        """The one place where reading pauses; it goes on by itself when the reason is gone."""
        usage = self._budget.look(self._spools.bytes + self._pipeline.unpublished_bytes)
        self._worker.update(usage.level is not self._worker.report.budget.level, budget=usage)
        if usage.paused:
            self._stay_while_the_server_does(min(self._patience(), RECHECK_SECONDS))
        elif self._pipeline.full:
            self._stream.stay(self._patience(), self._wake)
        elif messages := self._stream.read(self._patience(), self._wake):
            self._feed(messages)

    def _stay_while_the_server_does(self, seconds: float) -> None:
        """Read nothing for a while. A server that shuts down waits for its readers, and says so to other sessions only:
        it ends them.
        """
        control = self._session()
        self._stream.stay(seconds, (*self._wake, control.fileno()))
        if not alive(control):
            raise ConnectionFailed(server="the source", cause="the server ends its sessions: it may be shutting down")

    def _session(self) -> Connection:
        """An ordinary session of this thread's own."""
        if self._control is None or self._control.closed:
            self._control = connect(self._worker.config.source, self._worker.group.name)
        return self._control

    def _feed(self, messages: Messages) -> None:
        for item in self._streamed.feed(messages) if self._stream.streaming else [messages]:
            if isinstance(item, Streamed):
                self._feed_streamed(item)
            else:
                self._intake.feed(item)
        if self._pending_since is None and self._intake.has_complete:
            self._pending_since = time.monotonic()

    def _feed_streamed(self, transaction: Streamed) -> None:
        if self._intake.in_transaction:
            raise SourceError(operation="reading the stream", cause="a streamed transaction commits inside another")
        # What came before it goes before it, descriptions of tables outside of any transaction too.
        self._take_complete()
        self._pipeline.take(self._intake.take_open())
        self._ahead.complete(transaction.xid)
        self._pipeline.take_streamed(transaction)
        self._handed_over += transaction.bytes
        if self._pending_since is None:
            self._pending_since = time.monotonic()

    def _hand_over(self) -> None:
        """Pass on what is enough to be worth it: rows are written in portions of this size."""
        if self._intake.complete_is_worth_decoding(self._pipeline.idle):
            self._take_complete()
        if self._intake.open_is_worth_decoding:
            self._take_complete()
            self._pipeline.take(self._intake.take_open(), certain=False)

    def _take_complete(self) -> None:
        if self._intake.has_complete:
            self._handed_over += self._intake.complete_bytes
            self._pipeline.take(self._intake.take_complete())

    def _due(self) -> bool:
        if self._pending_since is None:
            return False
        publishing = self._pipeline.publishing
        if self._handed_over + self._intake.complete_bytes >= self._worker.group.flush_bytes:
            return publishing < _MOST_PUBLISHING
        return not publishing and time.monotonic() - self._pending_since >= self._worker.group.flush_interval

    def _flush_requested(self) -> bool:
        if self._flush_until is None or self._stream.received < self._flush_until:
            return False
        self._flush_until, self._owes_answer = None, True
        return self._pending_since is not None

    def _publish(self) -> None:
        self._take_complete()
        self._pipeline.publish()
        self._pending_since, self._handed_over = None, 0

    def _may_pass(self) -> bool:
        """Whether transactions wait for a manifest for so long that it is asked if any of them has a row of ours."""
        if self._pending_since is None or self._pipeline.publishing:
            return False
        return time.monotonic() - max(self._pending_since, self._passed_at) >= IDLE_ACKNOWLEDGE_SECONDS

    def _pass_over(self) -> None:
        """Without a row of ours, what is complete moves the position; otherwise it waits for its manifest."""
        self._passed_at = time.monotonic()
        self._take_complete()
        self._pipeline.pass_over()

    def _take_published(self) -> None:
        for published in self._pipeline.published():
            self._note(published)
        if self._owes_answer and not self._pipeline.publishing:
            self._owes_answer = False
            self._worker.update(True, answers=self._worker.report.answers + 1)

    def _note(self, published: Published) -> None:
        cut, manifest = published.cut, published.manifest
        self._logged = max(self._logged, cut.to_lsn)
        if manifest is None:
            # Transactions without a row of ours move the position, not the log; there may be one every moment.
            self._acknowledge_logged(_SOON)
            return
        self._budget.published(manifest)
        self._stream.acknowledge(cut.to_lsn)
        self._worker.proven()
        self._worker.update(True, manifest=manifest.number, commit_ts=cut.commit_ts, **self._positions())

    def _finish(self) -> None:
        """Publish what is complete, if that can be had in time; what can't comes again."""
        if self._pending_since is not None:
            self._publish()
        until = time.monotonic() + STOP_SECONDS
        while self._pipeline.publishing and (left := until - time.monotonic()) > 0:
            self._stream.stay(left, (self._pipeline.wake,))
            self._take_published()
        self._advance_idle(at_once=True)
        self._worker.update(**self._positions())

    def _positions(self) -> dict[str, Lsn]:
        return {
            "received_lsn": max(self._worker.report.received_lsn, self._stream.received),
            "logged_lsn": max(self._worker.report.logged_lsn, self._logged),
            "acknowledged_lsn": max(self._worker.report.acknowledged_lsn, self._stream.acknowledged),
        }

    def _patience(self) -> float:
        now = time.monotonic()
        waits = [self._beat_at + self._worker.config.source.heartbeat_interval - now]
        if self._pending_since is not None and not self._pipeline.publishing:
            waits.append(self._pending_since + self._worker.group.flush_interval - now)
        if self._worker.unreported:
            waits.append(REPORT_SECONDS)
        if self._pending_since is not None and not self._pipeline.publishing:
            waits.append(max(self._pending_since, self._passed_at) + IDLE_ACKNOWLEDGE_SECONDS - now)
        if self._idle and self._logged > self._stream.acknowledged:
            waits.append(self._acknowledged_at + IDLE_ACKNOWLEDGE_SECONDS - now)
        return max(0.0, min(waits))

    @property
    def _idle(self) -> bool:
        """Whether all that came is durable. A streamed transaction that runs is the server's to send again."""
        return self._pending_since is None and not self._pipeline.publishing and not self._intake.in_transaction

    def _advance_idle(self, at_once: bool = False) -> None:
        """With nothing pending, everything that the server has sent so far is logged: it may forget that WAL."""
        if not self._idle:
            return
        self._logged = max(self._logged, self._stream.keepalive_lsn)
        self._acknowledge_logged(0.0 if at_once else IDLE_ACKNOWLEDGE_SECONDS)

    def _acknowledge_logged(self, seconds: float) -> None:
        """Acknowledge a position beyond the last manifest, if that was last done so many seconds ago."""
        now = time.monotonic()
        if self._logged > self._stream.acknowledged and now - self._acknowledged_at >= seconds:
            self._log.record_acknowledged(self._logged)
            self._stream.acknowledge(self._logged)
            self._acknowledged_at = now
            self._worker.proven()

    def _beat(self) -> None:
        """When nothing has moved for a while though the server's WAL has, write an empty transaction to get a sign."""
        now = time.monotonic()
        if now - self._beat_at < self._worker.config.source.heartbeat_interval:
            return
        if self._idle and self._logged == self._beat_logged and not self._worker.report.budget.paused:
            conn = self._session()
            if wal_end(conn) > self._logged:
                mark(conn)
        self._beat_at, self._beat_logged = now, self._logged
