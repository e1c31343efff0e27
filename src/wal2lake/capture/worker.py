"""Capture of one group: one replication session after the other, until it is stopped or fails for good.

A session follows the stream from the change log's position. After a failure the next session begins there again, and
files that no manifest names are deleted: nothing is lost or repeated.
"""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..changelog import ChangeLog, LogStorage, Manifest, scratch_for
from ..config import PGOUTPUT, Config, GroupConfig
from ..decode import TextNeeded, readable
from ..errors import (
    CaptureError,
    ChangeLogDamaged,
    ConnectionFailed,
    ErrorKind,
    LakeUnwritable,
    SlotLost,
    SourceError,
    SourceRestored,
    Wal2LakeError,
    advise,
)
from ..executor import SYSTEM_EXECUTOR, Executor
from ..position import ZERO, Lsn
from ..source import CaptureSource, ChangeSource, ControlSession, ServerFacts, StreamRequest
from ..source.publishing import append_name, publication_used_by
from ..source.streaming import CrossingStream
from ..source.tables import anything_masked
from .replication import REPORT_SECONDS, StreamSession
from .report import CaptureReport, CaptureState, Owner

log = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)


class CaptureWorker:
    """Runs sessions until it is stopped or an error is permanent."""

    def __init__(
        self, config: Config, group: GroupConfig, owner: Owner, source: CaptureSource, logs: LogStorage,
        executor: Executor = SYSTEM_EXECUTOR, spools: Path | None = None,
    ) -> None:  # fmt: skip
        """`spools`: a local directory for open transactions; None: beside the change log."""
        self.config = config.model_copy(update={"tables": config.tables_of(group)})
        self.group, self.owner, self.source, self.executor = group, owner, source, executor
        self.changelog = ChangeLog(logs, group.name)
        self.spools = spools if spools is not None else scratch_for(config.changelog_path) / group.name / "spool"
        self.publication = publication_used_by(group)
        self.appending = append_name(group.name)
        self.report = CaptureReport()
        self._failures = 0
        self._needs_text = False
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
            except TextNeeded as needed:
                log.info("capture of group %s: values are requested as text because of a %s", self.group.name, needed)
                self._needs_text = True
            except Exception as error:
                if not self._failed(error):
                    return
                self._pause()
        self.update(True, state=CaptureState.STOPPED)

    def update(self, urgent: bool = False, /, **changes: Any) -> None:
        """Record progress; reported at once if urgent, otherwise a few times a second."""
        report = replace(self.report, **changes)
        if report != self.report:
            self.report, self._unreported = report, True
        now = self.executor.clock.monotonic()
        if self._unreported and (urgent or now - self._reported_at >= REPORT_SECONDS):
            self._unreported = not self.owner.send_report(self.report)
            self._reported_at = now

    def streaming(self, last: Manifest | None, **positions: Lsn) -> None:
        """The stream is open, which clears an error of the connection, and no other."""
        error = None if isinstance(self.report.error, ConnectionFailed) else self.report.error
        self.update(
            True, state=CaptureState.STREAMING, error=error, connected_once=True, manifest=last.number if last else 0,
            commit_ts=last.commit_ts if last else None, **positions,
        )  # fmt: skip

    def note_success(self) -> None:
        """Something has become durable, or the session has lasted: the failure counter starts anew."""
        self._failures = 0
        if self.report.error is not None:
            self.update(True, error=None)

    @property
    def unreported(self) -> bool:
        return self._unreported

    def _session(self) -> None:
        with closing(self.source.control()) as control:
            start, confirmed = self._verify(control)
            appends = self.changelog.appends_since()
            also = (self.appending,) if appends is not None and appends <= start else ()
            publications = (self.publication, *also)
            self._require_publications(control, publications, start)
            binary = self._takes_binary(control, publications)
        swept = self.changelog.sweep()
        if swept:
            log.info("change log of group %s: %d files without a manifest removed", self.group.name, swept)
        # Spooled messages are on disk as they came, before masking, so streaming is off if there are masks.
        streamed = self.config.source.streaming and not anything_masked(self.config.tables)
        with self._open(StreamRequest(self.slot, publications, start, streamed, binary), confirmed) as stream:
            self.update(appends=bool(also))
            session = StreamSession(self, stream, start)
            try:
                session.follow()
                stream.finish()
            finally:
                session.close()

    def _open(self, request: StreamRequest, confirmed: Lsn) -> ChangeSource:
        crossing = self.changelog.stretch.crossing
        if self.group.triggers or crossing is None or request.start >= crossing.until:
            return self.source.open(request)
        if self.group.polls:
            # A bite follows when all of the one before is acknowledged, and here nothing may be.
            raise SourceError(
                operation="opening the slot", cause="the group is still changing from triggers to the WAL",
                remedy=f'set capture = "wal" in group {self.group.name} until its tables are STREAMING',
            )  # fmt: skip
        return CrossingStream(
            self.source.open(replace(request, start=confirmed, streamed=False)), self.changelog.position(), crossing
        )

    def reopens(self, acknowledged: Lsn) -> bool:
        """Whether the stream lacks the publication of append-only tables, which it can have from this position on."""
        since = self.changelog.appends_since() if not self.report.appends else None
        return since is not None and since <= acknowledged

    def _takes_binary(self, control: ControlSession, publications: Sequence[str]) -> bool:
        """Whether to request values in binary form. A type that needs text may still occur in the WAL."""
        if self._needs_text or not self.config.source.binary or anything_masked(self.config.tables):
            # sha256 hashes the text.
            return False
        types = [one for name in publications for one in control.published_types(name)]
        return all(readable(oid, typmod) for oid, typmod in types)

    def _verify(self, control: ControlSession) -> tuple[Lsn, Lsn]:
        """The position to stream from, and that of the slot. Raises unless the slot and the log belong together."""
        position = self.changelog.position()
        facts = control.facts()
        self.changelog.must_be_from(facts)
        self._require_not_set_back(control, facts, position)
        if self.changelog.by_triggers is not self.group.triggers:
            cause = "is not what the change log was read from: that was captured by triggers"
            if self.group.triggers:
                cause = "of triggers is not what the change log was read from"
            raise SlotLost(slot=self.slot, cause=cause, lsn=position)
        info = control.slot(self.slot)
        if info is None:
            raise SlotLost(slot=self.slot, cause="does not exist", lsn=position)
        if info.lost is not None:
            raise SlotLost(slot=self.slot, cause=info.lost, lsn=position)
        confirmed = info.confirmed_flush_lsn
        plugin = PGOUTPUT if self.group.triggers else self.config.source.plugin
        if info.plugin != plugin:
            cause = f"has the output plugin {info.plugin}, not {plugin}"
            raise SlotLost(slot=self.slot, cause=cause, lsn=position)
        if confirmed is None or info.database != facts.database:
            raise SlotLost(slot=self.slot, cause="was replaced by another one of that name", lsn=position)
        acknowledged = self._acknowledged(control, confirmed)
        if confirmed > acknowledged:
            cause = f"was moved or re-created by another program (to {confirmed})"
            raise SlotLost(slot=self.slot, cause=cause, lsn=acknowledged)
        return max(position, confirmed), confirmed

    def _acknowledged(self, control: ControlSession, confirmed: Lsn) -> Lsn:
        """The highest position that may have been acknowledged. A damaged record is restored if possible.

        A position that the state store in the same database or the log's witness has was captured by us.
        """
        try:
            return self.changelog.acknowledged()
        except ChangeLogDamaged:
            known = control.known_position(self.group.name) if self.config.state.dsn is None else None
            ours = max(self.changelog.position(), known or ZERO, self.changelog.witness.stored() or ZERO)
            if confirmed > ours:
                raise
            self.changelog.record_acknowledged(ours)
            log.warning("change log of group %s: acknowledged.json was damaged and is restored", self.group.name)
            return ours

    def _require_publications(self, control: ControlSession, publications: Sequence[str], position: Lsn) -> None:
        for name in publications:
            if not control.has_publication(name):
                raise SlotLost(slot=self.slot, cause=f"has no publication {name}", lsn=position)

    def _require_not_set_back(self, control: ControlSession, facts: ServerFacts, position: Lsn) -> None:
        """Refuse a database that lost what was captured from it; its slot alone may not show it."""
        witness, cause = self.changelog.witness, None
        if facts.wal_end < position:
            cause = f"its WAL ends at {facts.wal_end}, the log holds changes up to {position}"
        elif (stored := witness.stored()) is not None:
            # Read again: the run writes it concurrently, after the database.
            known = control.known_position(self.group.name)
            if known is not None and known < stored == witness.stored():
                cause = f"position {stored} was written to it, and it has {known} only"
        before, now = witness.timeline(), facts.timeline
        if cause is None and before is not None and now not in (None, before):
            left = control.timeline_left_at(now, before)
            if left is None or left < position:
                cause = f"timeline {now} left timeline {before} at {left or 'no time'}, the log is at {position}"
        if cause is not None:
            raise SourceRestored(group=self.group.name, cause=cause)
        if now is not None and now != before:
            witness.on_timeline(now)

    def _failed(self, error: Exception) -> bool:
        """Report an error; return whether to retry."""
        known = self._known(error)
        again = known.kind is not ErrorKind.CONFIGURATION or type(known) is SourceError
        log.warning("capture of group %s: %s", self.group.name, known)
        log.debug("capture of group %s failed", self.group.name, exc_info=error)
        state = CaptureState.RECONNECTING if again else CaptureState.FAILED
        self.update(True, state=state, error=known)
        return again

    def _known(self, error: Exception) -> Wal2LakeError:
        if isinstance(error, Wal2LakeError):
            return error
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return LakeUnwritable(path=error.filename or self.changelog.storage.uri(), cause=error.strerror)
        return CaptureError(group=self.group.name, cause=advise(error).message)

    def _pause(self) -> None:
        self._failures += 1
        delay = self.source.retry.after(self._failures, random.random())
        clock = self.executor.clock
        until = clock.monotonic() + delay
        while not self.owner.stopping and (left := until - clock.monotonic()) > 0:
            if self.executor.wait_readable(self.owner.wake, left):
                self.owner.poll_commands()
