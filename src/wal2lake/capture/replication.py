"""One replication stream: the thread that reads, acknowledges and reports, and never waits for the disk.

    read ─► (streamed transactions to spools) ─► intake ─► pipeline ─► published ─► acknowledge

Only durable positions are acknowledged, and only commit ends. Reading pauses while the pipeline or the change log is
full; the server keeps the rest, and still receives status updates.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol

from ..changelog import RECHECK_SECONDS, Budget, ChangeLog, Manifest
from ..config import Config, GroupConfig
from ..decode import Intake, Messages
from ..errors import ConnectionFailed, SourceError
from ..executor import Executor
from ..position import Lsn
from ..source import CaptureSource, ChangeSource, ControlSession
from .pipeline import Pipeline, Published
from .relations import RelationResolver
from .report import CaptureReport, Owner
from .speculative import SpeculativeReader
from .spool import Spools
from .streamed_transactions import Demultiplexer, Streamed

log = logging.getLogger(__name__)

IDLE_ACKNOWLEDGE_SECONDS = 0.5
"""seconds between acknowledgements of positions without mirrored rows: once a second is promised, with a margin"""
_SOON = IDLE_ACKNOWLEDGE_SECONDS / 2
"""minimum seconds between two acknowledgements: each is recorded on disk first"""
REPORT_SECONDS = 0.1
LASTING_SECONDS = 30.0
"""a session that has been idle for so long counts as successful"""
REOPEN_LOOK_SECONDS = 1.0
STOP_SECONDS = 5.0
"""limit for publishing what is complete after a stop; the rest is read again later"""
_MOST_PUBLISHING = 2
"""manifests being published at a time; meanwhile the next one grows"""


class Worker(Protocol):
    """The worker as a session uses it."""

    @property
    def config(self) -> Config: ...
    @property
    def group(self) -> GroupConfig: ...
    @property
    def owner(self) -> Owner: ...
    @property
    def source(self) -> CaptureSource: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def changelog(self) -> ChangeLog: ...
    @property
    def spools(self) -> Path: ...
    @property
    def report(self) -> CaptureReport: ...
    @property
    def unreported(self) -> bool:
        """Whether there is progress that was not passed on yet."""

    def update(self, urgent: bool = False, /, **changes: Any) -> None:
        """Record progress; reported at once if urgent, otherwise a few times a second."""

    def streaming(self, last: Manifest | None, **positions: Lsn) -> None:
        """The stream is open."""

    def note_success(self) -> None:
        """Something has become durable, or the session has lasted: the failure counter starts anew."""

    def reopens(self, acknowledged: Lsn) -> bool:
        """Whether the stream is to be opened again, with one publication more."""


class StreamSession:
    """One stream and one decoder: from a position until the connection or the worker ends."""

    def __init__(self, worker: Worker, stream: ChangeSource, start: Lsn) -> None:
        self._worker, self._stream = worker, stream
        self._log, self._monotonic = worker.changelog, worker.executor.clock.monotonic
        self._resolver = RelationResolver(
            worker.source.catalog(), worker.group.name, self._log, worker.config.tables,
            published_only=stream.capabilities.published_only,
        )  # fmt: skip
        self._budget = Budget(self._log, worker.config.changelog.max_bytes, worker.group.name, self._monotonic)
        self._pipeline = Pipeline(
            self._log, self._resolver, self._log.position(), stream.capabilities.binary, worker.executor,
            worker.source.token,
        )  # fmt: skip
        self._spools = Spools(worker.spools, worker.executor)
        self._speculative = SpeculativeReader(self._pipeline)
        self._streamed = Demultiplexer(self._spools, self._speculative)
        self._intake = Intake()
        self._wake = (*worker.owner.wake, self._pipeline.wake)
        self._flush_until: Lsn | None = None
        """what is complete is published as soon as everything below it has arrived"""
        self._owes_answer = False
        """whether a flush was requested and not yet reported as done"""
        self._pending_since: float | None = None
        """since when a complete transaction has been waiting for its manifest to be requested"""
        self._handed_over = 0
        """bytes of complete transactions for the next manifest so far"""
        self._logged = start
        self._acknowledged_at = 0.0
        """when a position beyond the last manifest was last acknowledged"""
        self._reported_at = 0.0
        """when the pipeline was last asked whether it has mirrored rows"""
        self._control: ControlSession | None = None
        self._opened = self._monotonic()
        self._heartbeat_at, self._heartbeat_logged = self._monotonic(), start
        self._looked_at = self._monotonic()

    def follow(self) -> None:
        self._worker.streaming(self._log.last(), **self._positions())
        owner = self._worker.owner
        while not owner.stopping:
            self._read()
            if (until := owner.poll_commands()) is not None:
                self._flush_until = until
                self._stream.ask()
            self._pass_on_complete()
            if self._due() or self._flush_requested():
                self._publish()
            elif self._report_due():
                self._report_if_empty()
            self._take_published()
            self._advance_idle()
            self._send_heartbeat()
            if self._idle and self._monotonic() - self._opened > LASTING_SECONDS:
                self._worker.note_success()
            self._worker.update(**self._positions())
            if self._reopens():
                break
        self._finish()

    def _reopens(self) -> bool:
        """Whether to reopen the stream with an additional publication. Checked from time to time."""
        now = self._monotonic()
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
        """Read, or pause; the only place where reading pauses."""
        usage = self._budget.look(self._spools.bytes + self._pipeline.unpublished_bytes)
        self._worker.update(usage.level is not self._worker.report.budget.level, budget=usage)
        if usage.paused:
            self._stay_while_the_server_does(min(self._wait_seconds(), RECHECK_SECONDS))
        elif self._pipeline.full:
            self._stream.stay(self._wait_seconds(), self._wake)
        elif messages := self._stream.read(self._wait_seconds(), self._wake):
            self._feed(messages)

    def _stay_while_the_server_does(self, seconds: float) -> None:
        """Read nothing for a while. A server that shuts down waits for its walsenders and does not notify them, but it
        ends ordinary sessions, such as the control session.
        """
        control = self._control_session()
        ended = control.fileno()
        self._stream.stay(seconds, self._wake if ended is None else (*self._wake, ended))
        if not control.alive():
            raise ConnectionFailed(server="the source", cause="the server ends its sessions: it may be shutting down")

    def _control_session(self) -> ControlSession:
        """An ordinary session of this thread."""
        if self._control is None or self._control.closed:
            self._control = self._worker.source.control()
        return self._control

    def _feed(self, messages: Messages) -> None:
        for item in self._streamed.feed(messages) if self._stream.capabilities.streamed else [messages]:
            if isinstance(item, Streamed):
                self._feed_streamed(item)
            else:
                self._intake.feed(item)
        if self._pending_since is None and self._intake.has_complete:
            self._pending_since = self._monotonic()

    def _feed_streamed(self, transaction: Streamed) -> None:
        if self._intake.in_transaction:
            raise SourceError(operation="reading the stream", cause="a streamed transaction commits inside another")
        # Everything before it is passed on first, also relation messages between transactions.
        self._take_complete()
        self._pipeline.take(self._intake.take_open())
        self._speculative.complete(transaction.xid)
        self._pipeline.take_streamed(transaction)
        self._handed_over += transaction.bytes
        if self._pending_since is None:
            self._pending_since = self._monotonic()

    def _pass_on_complete(self) -> None:
        """Pass on complete messages if there are enough: rows are written in portions of this size."""
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
        if self._stream.awaits_acknowledgement and not self._intake.in_transaction:
            return not publishing
        if self._handed_over + self._intake.complete_bytes >= self._worker.group.flush_bytes:
            return publishing < _MOST_PUBLISHING
        return not publishing and self._monotonic() - self._pending_since >= self._worker.group.flush_interval

    def _flush_requested(self) -> bool:
        if self._flush_until is None or self._stream.received < self._flush_until:
            return False
        self._flush_until, self._owes_answer = None, True
        return self._pending_since is not None

    def _publish(self) -> None:
        self._take_complete()
        self._pipeline.publish()
        self._pending_since, self._handed_over = None, 0

    def _report_due(self) -> bool:
        """Whether complete transactions have waited so long that the pipeline is asked if they have mirrored rows."""
        if self._pending_since is None or self._pipeline.publishing:
            return False
        return self._monotonic() - max(self._pending_since, self._reported_at) >= IDLE_ACKNOWLEDGE_SECONDS

    def _report_if_empty(self) -> None:
        """Without mirrored rows, complete transactions move the position; otherwise they wait for their manifest."""
        self._reported_at = self._monotonic()
        self._take_complete()
        self._pipeline.report_if_empty()

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
            # Transactions without mirrored rows move the position, not the log; there may be very many.
            self._acknowledge_logged(_SOON)
            return
        self._budget.published(manifest)
        self._stream.acknowledge(cut.to_lsn)
        self._worker.note_success()
        self._worker.update(True, manifest=manifest.number, commit_ts=cut.commit_ts, **self._positions())

    def _finish(self) -> None:
        """Publish what is complete within a limit; the rest is read again later."""
        if self._pending_since is not None:
            self._publish()
        until = self._monotonic() + STOP_SECONDS
        while self._pipeline.publishing and (left := until - self._monotonic()) > 0:
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

    def _wait_seconds(self) -> float:
        now = self._monotonic()
        waits = [self._heartbeat_at + self._worker.config.source.heartbeat_interval - now]
        if self._pending_since is not None and not self._pipeline.publishing:
            waits.append(self._pending_since + self._worker.group.flush_interval - now)
        if self._worker.unreported:
            waits.append(REPORT_SECONDS)
        if self._pending_since is not None and not self._pipeline.publishing:
            waits.append(max(self._pending_since, self._reported_at) + IDLE_ACKNOWLEDGE_SECONDS - now)
        if self._idle and self._logged > self._stream.acknowledged:
            waits.append(self._acknowledged_at + IDLE_ACKNOWLEDGE_SECONDS - now)
        return max(0.0, min(waits))

    @property
    def _idle(self) -> bool:
        """Whether everything received is durable. Open streamed transactions are sent again by the server."""
        return self._pending_since is None and not self._pipeline.publishing and not self._intake.in_transaction

    def _advance_idle(self, at_once: bool = False) -> None:
        """With nothing pending, everything that the server has sent is logged, so the slot may advance."""
        if not self._idle:
            return
        self._logged = max(self._logged, self._stream.keepalive_lsn)
        self._acknowledge_logged(0.0 if at_once else IDLE_ACKNOWLEDGE_SECONDS)

    def _acknowledge_logged(self, seconds: float) -> None:
        """Acknowledge a position beyond the last manifest, if the last time is so many seconds ago."""
        now = self._monotonic()
        if self._logged > self._stream.acknowledged and now - self._acknowledged_at >= seconds:
            self._log.record_acknowledged(self._logged)
            self._stream.acknowledge(self._logged)
            self._acknowledged_at = now
            self._worker.note_success()

    def _send_heartbeat(self) -> None:
        """If the position has not moved although the server's WAL has, write a message to the WAL to receive."""
        now = self._monotonic()
        if now - self._heartbeat_at < self._worker.config.source.heartbeat_interval:
            return
        if self._idle and self._logged == self._heartbeat_logged and not self._worker.report.budget.paused:
            control = self._control_session()
            if control.wal_end() > self._logged:
                control.mark()
        self._heartbeat_at, self._heartbeat_logged = now, self._logged
