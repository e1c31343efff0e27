"""The capture loop of one group: socket, decoder, change log, acknowledgement, and again.

    read ─► feed ─► (flush interval or bytes) ─► segments ─► manifest ─► acknowledge

Nothing is acknowledged that is not durable, and nothing in the middle of a transaction. After any failure the loop
begins again at the change log's position, with what no manifest names swept away: nothing is lost, nothing repeated.
"""

from __future__ import annotations

import errno
import logging
import random
import select
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from .. import faults
from ..changelog import ChangeLog, Segment, TableCut
from ..changelog.segment import Rows, write_segment
from ..config import Config, GroupConfig
from ..decode import Cut, DecodedTable, Decoder
from ..errors import (
    CaptureError,
    Kind,
    LakeUnwritable,
    SlotLost,
    SourceError,
    SourceReplaced,
    Wal2LakeError,
    advise,
)
from ..position import ZERO, Lsn
from ..source import Connection, connect, mark, publication, server_facts, slot, wal_end
from ..source.stream import Pace, ReplicationStream
from .resolver import Resolver

log = logging.getLogger(__name__)

BACKOFF_FIRST = 0.5
BACKOFF_MOST = 30.0
IDLE_ACKNOWLEDGE_SECONDS = 1.0
REPORT_SECONDS = 0.1
WRITERS = 2
_NO_ROOM = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)


class CaptureState(StrEnum):
    STARTING = "starting"
    STREAMING = "streaming"
    RECONNECTING = "reconnecting"
    """an error that goes away by itself; tried again with backoff"""
    FAILED = "failed"
    """an error that stays; the process ends"""
    STOPPED = "stopped"


@dataclass(frozen=True)
class CaptureReport:
    """How far capture is. Positions never go back while the process lives."""

    state: CaptureState = CaptureState.STARTING
    received_lsn: Lsn = ZERO
    logged_lsn: Lsn = ZERO
    """everything that committed below this is in a manifest"""
    acknowledged_lsn: Lsn = ZERO
    manifest: int = 0
    """number of the last manifest, 0 if there is none"""
    commit_ts: datetime | None = None
    """commit time of the last transaction in that manifest"""
    error: Wal2LakeError | None = None
    """what stands in the way; None when all is well"""
    connected_once: bool = False
    """whether the stream has ever been open"""

    @property
    def fatal(self) -> bool:
        """Whether the process has given up."""
        return self.state is CaptureState.FAILED


class Owner(Protocol):
    """Whoever started the pump: is told how it goes, and says when to stop."""

    wake: Sequence[int]
    """file descriptors that become readable when `attend` has something to do"""

    def attend(self) -> bool:
        """Take what has come in; whether it asks for a flush at once."""

    @property
    def stopping(self) -> bool: ...

    def tell(self, report: CaptureReport) -> bool:
        """Pass a report on without waiting; False if it can't be taken right now."""


class Pump:
    """Runs sessions until it is told to stop or an error stays."""

    def __init__(self, config: Config, group: GroupConfig, owner: Owner, pace: Pace | None = None) -> None:
        self.config, self.group, self.owner, self.pace = config, group, owner, pace
        self.changelog = ChangeLog(config.changelog_path, group.name)
        self.publication = publication.publication_name(group.name)
        self.report = CaptureReport()
        self.failures = 0
        self._reported_at = 0.0
        self._unreported = True

    @property
    def slot(self) -> str:
        return self.changelog.origin.slot

    def run(self) -> None:
        while not self.owner.stopping:
            try:
                with self.changelog.held():
                    self._session()
            except Exception as error:
                if not self._failed(error):
                    return
                self._pause()
        self.update(True, state=CaptureState.STOPPED)

    def update(self, urgent: bool = False, /, **changes: Any) -> None:
        """Note progress; passed on at once when urgent, else a few times a second."""
        report = replace(self.report, **changes)
        if report != self.report:
            self.report, self._unreported = report, True
        now = time.monotonic()
        if self._unreported and (urgent or now - self._reported_at >= REPORT_SECONDS):
            self._unreported = not self.owner.tell(self.report)
            self._reported_at = now

    @property
    def unreported(self) -> bool:
        return self._unreported

    def _session(self) -> None:
        with connect(self.config.source, self.group.name) as conn:
            start = self._verify(conn)
        swept = self.changelog.sweep()
        if swept:
            log.info("change log of group %s: %d files without a manifest removed", self.group.name, swept)
        with ReplicationStream(
            self.config.source, self.slot, self.publication, start, group=self.group.name, pace=self.pace
        ) as stream:
            session = Session(self, stream, start)
            try:
                session.follow()
                stream.finish()
            finally:
                session.close()

    def _verify(self, conn: Connection) -> Lsn:
        """The position to stream from, if the slot and the log belong together."""
        position, acknowledged = self.changelog.position(), self.changelog.acknowledged()
        facts = server_facts(conn)
        self.changelog.must_be_from(facts)
        if facts.wal_end < position:
            cause = f"its WAL ends at {facts.wal_end}, the log holds changes up to {position}: was it restored?"
            raise SourceReplaced(group=self.group.name, cause=cause)
        info = slot.info(conn, self.slot)
        if info is None:
            raise SlotLost(slot=self.slot, cause="does not exist", lsn=position)
        if info.lost is not None:
            raise SlotLost(slot=self.slot, cause=info.lost, lsn=position)
        confirmed = info.confirmed_flush_lsn
        if confirmed is None or info.plugin != "pgoutput" or info.database != facts.database:
            raise SlotLost(slot=self.slot, cause="was replaced by another one of that name", lsn=position)
        if confirmed > acknowledged:
            cause = f"was moved or made anew by somebody else (to {confirmed})"
            raise SlotLost(slot=self.slot, cause=cause, lsn=acknowledged)
        if not publication.exists(conn, self.publication):
            raise SlotLost(slot=self.slot, cause=f"has no publication {self.publication}", lsn=position)
        return max(position, confirmed)

    def _failed(self, error: Exception) -> bool:
        """Report an error; whether to try again."""
        known = self._known(error)
        again = known.kind is not Kind.CONFIGURATION or type(known) is SourceError
        log.warning("capture of group %s: %s", self.group.name, known)
        log.debug("capture of group %s failed", self.group.name, exc_info=error)
        state = CaptureState.RECONNECTING if again else CaptureState.FAILED
        self.update(True, state=state, error=known)
        return again

    def _known(self, error: Exception) -> Wal2LakeError:
        if isinstance(error, Wal2LakeError):
            return error
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return LakeUnwritable(path=error.filename or str(self.changelog.directory), cause=error.strerror)
        return CaptureError(group=self.group.name, cause=advise(error).message)

    def _pause(self) -> None:
        delay = min(BACKOFF_MOST, BACKOFF_FIRST * 2.0**self.failures) * random.uniform(0.5, 1.0)
        self.failures += 1
        until = time.monotonic() + delay
        poll = select.poll()
        for fd in self.owner.wake:
            poll.register(fd, select.POLLIN)
        while not self.owner.stopping and (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                self.owner.attend()


class Session:
    """One stream, one decoder: from a position until the connection or the pump ends."""

    def __init__(self, pump: Pump, stream: ReplicationStream, start: Lsn) -> None:
        self._pump, self._stream = pump, stream
        self._log = pump.changelog
        self._resolver = Resolver(pump.config.source, pump.group.name, self._log, pump.config.tables)
        self._decoder = Decoder(self._resolver, self._log.position())
        self._writers = ThreadPoolExecutor(WRITERS, "segment")
        self._held: list[tuple[int, Segment]] = []
        """segments of the transaction that is still arriving; they are part of the log when it commits"""
        self._pending_since: float | None = None
        self._logged = start
        self._idle_acknowledged_at = 0.0
        self._beat_at, self._beat_logged = time.monotonic(), start

    def follow(self) -> None:
        last = self._log.last()
        self._pump.update(
            True, state=CaptureState.STREAMING, error=None, connected_once=True, manifest=last.number if last else 0,
            commit_ts=last.commit_ts if last else None, **self._positions(),
        )  # fmt: skip
        owner = self._pump.owner
        while not owner.stopping:
            messages = self._stream.read(self._patience(), owner.wake)
            if messages:
                self._decoder.feed(messages)
            hurried = owner.attend()
            if hurried:
                self._stream.ask()
            self._keep_small()
            if self._due() or (hurried and self._decoder.has_complete):
                self._flush()
            self._advance_idle()
            self._beat()
            if self._idle:
                # All that came is durable: the next failure is a first one.
                self._pump.failures = 0
            self._pump.update(**self._positions())
        if self._decoder.has_complete:
            self._flush()
        self._advance_idle(at_once=True)
        self._pump.update(**self._positions())

    def close(self) -> None:
        self._writers.shutdown(cancel_futures=True)
        self._resolver.close()

    def _positions(self) -> dict[str, Lsn]:
        return {
            "received_lsn": max(self._pump.report.received_lsn, self._stream.received),
            "logged_lsn": max(self._pump.report.logged_lsn, self._logged),
            "acknowledged_lsn": max(self._pump.report.acknowledged_lsn, self._stream.acknowledged),
        }

    def _patience(self) -> float:
        waits = [self._beat_at + self._pump.config.source.heartbeat_interval - time.monotonic()]
        if self._pending_since is not None:
            waits.append(self._pending_since + self._pump.group.flush_interval - time.monotonic())
        if self._pump.unreported:
            waits.append(REPORT_SECONDS)
        if self._idle and self._logged > self._stream.acknowledged:
            waits.append(self._idle_acknowledged_at + IDLE_ACKNOWLEDGE_SECONDS - time.monotonic())
        return max(0.0, min(waits))

    @property
    def _idle(self) -> bool:
        return not self._decoder.has_complete and not self._decoder.in_transaction and not self._held

    def _due(self) -> bool:
        if not self._decoder.has_complete:
            return False
        now = time.monotonic()
        if self._pending_since is None:
            self._pending_since = now
        full = self._decoder.pending_bytes >= self._pump.group.flush_bytes
        return full or now - self._pending_since >= self._pump.group.flush_interval

    def _keep_small(self) -> None:
        """Write out the rows of a transaction that has grown large before its end has come."""
        if self._decoder.open_bytes < self._pump.group.flush_bytes:
            return
        if self._decoder.has_complete:
            self._flush()
        self._held += self._write(self._decoder.spill())

    def _write(self, tables: Sequence[DecodedTable]) -> list[tuple[int, Segment]]:
        rows = [
            Rows(t.schema.oid, t.version, t.batch, t.inserts, t.updates, t.deletes, t.key_changes, t.unchanged)
            for t in tables
            if t.batch.num_rows
        ]
        segments = self._writers.map(lambda each: write_segment(self._log, each), rows)
        return [(each.oid, segment) for each, segment in zip(rows, segments, strict=True)]

    def _flush(self) -> None:
        """Make all complete transactions durable, then tell the source."""
        cut = self._decoder.cut()
        self._pending_since = None
        segments = self._held + self._write(cut.tables)
        tables = self._cuts(cut, segments)
        if tables:
            faults.reached(faults.SEGMENT_WRITTEN)
            manifest = self._log.publish(cut.to_lsn, cut.transactions, cut.commit_ts, tables)
            faults.reached(faults.MANIFEST_PUBLISHED)
            self._held = []
            self._logged = max(self._logged, cut.to_lsn)
            self._stream.acknowledge(cut.to_lsn)
            self._pump.update(True, manifest=manifest.number, commit_ts=cut.commit_ts, **self._positions())
        else:
            # Transactions without a row of ours move the position, not the log.
            self._logged = max(self._logged, cut.to_lsn)

    def _cuts(self, cut: Cut, segments: Sequence[tuple[int, Segment]]) -> dict[int, TableCut]:
        by_table: defaultdict[int, list[Segment]] = defaultdict(list)
        for oid, segment in segments:
            by_table[oid].append(segment)
        oids = sorted({*by_table, *cut.truncations, *cut.refusals})
        return {
            oid: TableCut(
                oid, self._resolver.names.get(oid, str(oid)), tuple(by_table[oid]),
                tuple(cut.truncations.get(oid, ())), tuple(cut.refusals.get(oid, ())),
            )
            for oid in oids
        }  # fmt: skip

    def _advance_idle(self, at_once: bool = False) -> None:
        """With nothing pending, everything that the server has sent so far is logged: it may forget that WAL."""
        if not self._idle:
            return
        self._logged = max(self._logged, self._stream.keepalive_lsn)
        now = time.monotonic()
        late = now - self._idle_acknowledged_at >= IDLE_ACKNOWLEDGE_SECONDS
        if self._logged > self._stream.acknowledged and (late or at_once):
            self._log.record_acknowledged(self._logged)
            self._stream.acknowledge(self._logged)
            self._idle_acknowledged_at = now

    def _beat(self) -> None:
        """When nothing has moved for a while though the server's WAL has, write an empty transaction to get a sign."""
        now = time.monotonic()
        if now - self._beat_at < self._pump.config.source.heartbeat_interval:
            return
        if self._idle and self._logged == self._beat_logged:
            conn = self._resolver.connection()
            if wal_end(conn) > self._logged:
                mark(conn)
        self._beat_at, self._beat_logged = now, self._logged
